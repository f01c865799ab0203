"""What a referee says: findings, each with its evidence, and one verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

VERDICTS = ("equal", "rounding", "bug")  # from good to bad


@dataclass
class Finding:
    """One way to compute logits or texts, compared with another. `words` are the evidence."""

    way: str
    verdict: str  # one of VERDICTS
    words: str
    size: float = 0.0  # the largest difference of a logit
    position: int | None = None  # the first token whose logits are wrong
    code: str = ""  # shows a bug again
    # Of a bug: the likeliest token after each, as it should be and as it is (-1: no number), and
    # the difference of their logits; or a server's two texts.
    turn: tuple = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.way}: {self.words}"


@dataclass
class Report:
    """What `referee` found; `padding` says what padding does without a cache."""

    model: str
    findings: list[Finding] = field(default_factory=list)
    padding: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was not tried, or cannot be excluded

    @property
    def verdict(self) -> str:
        """That of the cache: the worst of its findings."""
        return max((f.verdict for f in self.findings), key=VERDICTS.index, default="equal")

    @property
    def bugs(self) -> list[Finding]:
        """All that is wrong, padding included."""
        return [f for f in self.findings + self.padding if f.verdict == "bug"]

    def __str__(self) -> str:
        bugs = [f for f in self.findings if f.verdict == "bug"]
        sound = [f for f in self.findings if f.verdict != "bug"]
        lines = [f"{self.model}: {self.verdict}", *(f"  {f}" for f in bugs)]
        if bugs:  # the first with its code; `findings` has all
            lines[2:2] = [f"      {line}" for line in bugs[0].code.splitlines()]
        if sound:
            worst = max(sound, key=lambda f: (VERDICTS.index(f.verdict), f.size))
            lines.append(f"  {len(sound)} of {len(self.findings)} ways are sound; the farthest is")
            lines.append(f"  {worst}")
        lines += [f"  padding, which is not the cache's: {f}" for f in self.padding]
        return "\n".join([*lines, *(f"  note: {note}" for note in dict.fromkeys(self.notes))])
