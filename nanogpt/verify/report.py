"""The report of a referee: findings, each with its evidence, and one verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

VERDICTS = ("equal", "rounding", "undecided", "bug")  # from good to bad
CODES = {"equal": 0, "rounding": 0, "bug": 1, "undecided": 3}  # exit codes; 2: nothing was judged


class CacheBug(AssertionError):
    """A referee found a bug; the message is its report."""


@dataclass
class Finding:
    """One way to compute logits or texts, compared with another. `words` are the evidence."""

    way: str
    verdict: str  # one of VERDICTS
    words: str
    size: float = 0.0  # the largest difference of a logit
    position: int | None = None  # the first token whose logits are wrong
    code: str = ""  # a script that shows a bug again
    # Of a bug: the likeliest token after each, as it should be and as it is (-1: no number), and
    # the difference of their logits; or a server's two texts.
    turn: tuple = field(default=(), repr=False)
    how: dict = field(default_factory=dict, repr=False)  # the pieces of a way to read a text
    known: bool = False  # a bug that the caller knows of, by name

    def __str__(self) -> str:
        known = "known " * self.known
        return f"{known}{self.verdict}: {self.way}: {self.words}"


@dataclass
class Report:
    """The findings of `referee`; `padding` has those on padding without a cache."""

    model: str
    findings: list[Finding] = field(default_factory=list)
    padding: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # ways not tried, causes not excluded
    unreached: list[str] = field(default_factory=list)  # ways for which no time was left
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The verdict on the cache: the worst of its findings. Known bugs are no part of it."""
        judged = (f.verdict for f in self.findings if not f.known)
        nothing = "undecided" if self.unreached and not self.findings else "equal"
        return max(judged, key=VERDICTS.index, default=nothing)

    @property
    def bugs(self) -> list[Finding]:
        """All that is wrong, padding included, and not known."""
        findings = self.findings + self.padding
        return [f for f in findings if f.verdict == "bug" and not f.known]

    @property
    def code(self) -> int:
        """The exit code of this verdict: 0 sound, 1 a bug, 3 undecided."""
        return CODES[self.verdict]

    def raise_for_bug(self) -> Report:
        """The report itself; raises CacheBug where the verdict is a bug."""
        if self.verdict == "bug":
            raise CacheBug(str(self))
        return self

    def to_json(self) -> str:
        """Strict JSON: an infinite size, or one that is no number, is a text."""
        data = {"verdict": self.verdict, "code": self.code} | asdict(self)
        return json.dumps(_plain(data), indent=1, allow_nan=False)

    def __str__(self) -> str:
        bugs = [f for f in self.findings if f.verdict == "bug" and not f.known]
        open_ = [f for f in self.findings if f.verdict == "undecided" or f.known]
        sound = [f for f in self.findings if f.verdict in ("equal", "rounding")]
        lines = [f"{self.model}: {self.verdict}"]
        for i, alike in enumerate(_alike(bugs)):
            more = "".join(f"\n    and so: {f.way}" for f in alike[1:])
            lines.append(f"  {alike[0]}{more}")
            if i == 0:  # the first with its code; `findings` has all
                lines += [f"      {line}" for line in alike[0].code.splitlines()]
        lines += [f"  {f}" for f in open_]
        if sound:
            worst = max(sound, key=lambda f: (VERDICTS.index(f.verdict), f.size))
            lines.append(f"  {len(sound)} of {len(self.findings)} ways are sound; the farthest is")
            lines.append(f"  {worst}")
        for alike in _alike(self.padding, by_verdict=True):
            worst = max(alike, key=lambda f: f.size)
            more = f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""
            lines.append(f"  padding, which is not the cache's: {worst}{more}")
        lines += [f"  note: {note}" for note in dict.fromkeys(self.notes)]
        if self.unreached:
            names = "; ".join(self.unreached[:6]) + "; …" * (len(self.unreached) > 6)
            n = len(self.unreached)
            lines.append(f"  no time was left for {n} way{'s' * (n > 1)}: {names}")
        return "\n".join(lines)


def mark_known(result: Report, known: Iterable[str]) -> list[str]:
    """Mark the bugs whose ways have one of these names; the names that had none."""
    absent = []
    for name in known:
        hits = [f for f in result.findings + result.padding if name in f.way and f.verdict == "bug"]
        for finding in hits:
            finding.known = True
        if not hits:
            absent.append(name)
    return absent


def _alike(findings: list[Finding], by_verdict: bool = False) -> list[list[Finding]]:
    """Findings with the same evidence, or the same verdict, together."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        key = finding.verdict if by_verdict else finding.words
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _plain(value):
    """The same data without a float that JSON has not."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
