"""The referee's report: findings, each with its evidence, and one verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from .texts import Length

_SHOWN = 8  # most bugs in a printed report


class Verdict(str, Enum):
    """What a comparison shows, from best to worst."""

    EQUAL = "equal"
    ROUNDING = "rounding"
    UNDECIDED = "undecided"
    BUG = "bug"

    def __str__(self) -> str:
        return self.value

    @property
    def sound(self) -> bool:
        """Whether the logits are equal, or differ only by rounding."""
        return self in (Verdict.EQUAL, Verdict.ROUNDING)


VERDICTS = tuple(Verdict)
CODES = {  # exit codes; 2: nothing was judged
    Verdict.EQUAL: 0,
    Verdict.ROUNDING: 0,
    Verdict.BUG: 1,
    Verdict.UNDECIDED: 3,
}


class CacheBug(AssertionError):
    """The referee found a bug; the message is its report."""


class CacheUndecided(AssertionError):
    """The referee could not decide: nothing was proved. The message is its report."""


@dataclass(frozen=True)
class Scenario:
    """What is compared: a decoding path through `cache`, or something without a cache (None).

    `padded` texts are only read through the default cache, so their name does not repeat it.
    """

    name: str
    cache: str | None = None
    padded: bool = False

    def __str__(self) -> str:
        return self.name if self.cache is None or self.padded else f"{self.cache}, {self.name}"


@dataclass(frozen=True)
class Unsupported:
    """A comparison that a model does not support, and the reason."""

    comparison: Scenario
    reason: str


@dataclass
class Reach:
    """How far the referee got with a model."""

    longest: int = 0  # tokens of a text
    rows: int = 0  # texts in a batch
    chunks: set[int] = field(default_factory=set)  # tokens read at once
    requests: int = 0

    def read(self, rows: int, n: int, total: int) -> None:
        """Record n tokens that were read at once, of texts that now have `total` tokens."""
        self.rows = max(self.rows, rows)
        self.chunks.add(n)
        self.longest = max(self.longest, total)

    def __str__(self) -> str:
        if not self.requests:
            return "nothing was read through the cache"
        few, most = min(self.chunks), max(self.chunks)
        return (
            f"read through the cache: texts of up to {self.longest} tokens, up to {self.rows} in "
            f"a batch, {few} to {most} tokens at once, {self.requests} requests"
        )


@dataclass(frozen=True)
class Damage:
    """A cache that was damaged on purpose, and whether the comparison detected it."""

    name: str
    cache: str
    seen: bool
    size: float  # the difference that it made


class LogitTurn(NamedTuple):
    """The most likely next token at each position, expected and actual (-1: not a number)."""

    expected: list[int]
    got: list[int]
    sizes: list[float]  # the largest difference of each token's logits


class TextTurn(NamedTuple):
    """Two texts of a server that should be equal."""

    expected: str
    got: str


@dataclass(frozen=True)
class CachedRun:
    """How to repeat a cached pass: the pieces in which texts of this seed are read."""

    seed: int
    length: int
    rows: int
    lengths: tuple[Length, ...]  # as `cut` takes them
    cache: str


@dataclass(frozen=True)
class PlainRun:
    """How to repeat a pass without a cache over the first `ends` tokens of a text."""

    seed: int
    length: int
    ends: int


@dataclass
class Judgement:
    """One comparison and its verdict. `words` are the evidence."""

    comparison: Scenario
    verdict: Verdict
    words: str
    size: float = 0.0  # the largest logit difference
    position: int | None = None  # the first token whose logits are wrong
    cause: str = ""  # the kind of mistake, if the numbers show it
    code: str = ""  # a script that reproduces a bug
    turn: LogitTurn | TextTurn | None = field(default=None, repr=False)  # where a bug shows
    how: CachedRun | PlainRun | None = field(default=None, repr=False)
    known: bool = False  # a bug that the caller listed as known

    @property
    def way(self) -> str:
        """The comparison in words."""
        return str(self.comparison)

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain data, with the comparison in words."""
        data = {"way": self.way} | asdict(self)
        del data["comparison"]
        return data | {"turn": self.turn or (), "how": data["how"] or {}}

    def __str__(self) -> str:
        known = "known " if self.known else ""
        return f"{known}{self.verdict}: {self.comparison}: {self.words}"


@dataclass
class Report:
    """The findings of `referee`; `padding` has those on padding without a cache."""

    model: str
    findings: list[Judgement] = field(default_factory=list)
    padding: list[Judgement] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)  # done to the cache by the referee
    reach: Reach = field(default_factory=Reach)
    not_offered: list[Unsupported] = field(default_factory=list)  # and why
    notes: list[str] = field(default_factory=list)  # what was not tried, causes not excluded
    unreached: list[str] = field(default_factory=list)  # scenarios that there was no time for
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The verdict on the cache: the worst of its findings. Known bugs do not count."""
        judged = (f.verdict for f in self.findings if not f.known)
        nothing_tried = self.unreached and not self.findings
        default = Verdict.UNDECIDED if nothing_tried else Verdict.EQUAL
        return max(judged, key=VERDICTS.index, default=default)

    @property
    def bugs(self) -> list[Judgement]:
        """All bugs that are not known, including those of padding."""
        findings = self.findings + self.padding
        return [f for f in findings if f.verdict is Verdict.BUG and not f.known]

    @property
    def code(self) -> int:
        """The exit code of this verdict: 0 sound, 1 a bug, 3 undecided."""
        return CODES[self.verdict]

    def raise_for_bug(self) -> Report:
        """Return the report itself; raises CacheBug if the verdict is a bug."""
        if self.verdict is Verdict.BUG:
            raise CacheBug(str(self))
        return self

    def raise_unless_sound(self) -> Report:
        """Return the report itself; raises CacheBug, or CacheUndecided if nothing was proved."""
        if self.verdict is Verdict.UNDECIDED:
            raise CacheUndecided(str(self))
        return self.raise_for_bug()

    def to_json(self) -> str:
        """The report as strict JSON: infinite and NaN sizes become strings."""
        data: dict[str, Any] = {"verdict": self.verdict, "code": self.code, "model": self.model}
        data["findings"] = [finding.to_dict() for finding in self.findings]
        data["padding"] = [finding.to_dict() for finding in self.padding]
        data["damages"] = [asdict(damage) for damage in self.damages]
        data["reach"] = asdict(self.reach) | {"chunks": sorted(self.reach.chunks)}
        data["not_offered"] = [
            {"way": str(one.comparison), "reason": one.reason} for one in self.not_offered
        ]
        data |= {"notes": self.notes, "unreached": self.unreached, "seconds": self.seconds}
        return json.dumps(_plain(data), indent=1, allow_nan=False)

    def __str__(self) -> str:
        bugs = [f for f in self.findings if f.verdict is Verdict.BUG and not f.known]
        open_ = [f for f in self.findings if f.verdict is Verdict.UNDECIDED or f.known]
        sound = [f for f in self.findings if f.verdict.sound]
        lines = [f"{self.model}: {self.verdict}"]
        # Bugs of the plain pass first, then the one with a script.
        bugs.sort(key=lambda f: (f.comparison.cache is not None, not f.code))
        for i, bug in enumerate(bugs[:_SHOWN]):
            cause = f" ({bug.cause})" if bug.cause else ""
            if i and bug.comparison.cache is not None and not bug.code:
                lines.append(f"  also wrong: {bug.comparison}{cause}")
                continue
            lines.append(f"  {bug}")
            if bug.cause:
                lines.append(f"    kind of mistake: {bug.cause}")
            lines += [f"      {line}" for line in bug.code.splitlines()]
        if len(bugs) > _SHOWN:
            lines.append(f"  and {len(bugs) - _SHOWN} more scenarios; `findings` has all of them")
        lines += [f"  {f}" for f in open_]
        if sound:
            worst = max(sound, key=lambda f: (VERDICTS.index(f.verdict), f.size))
            n = len(self.findings)
            lines.append(f"  {len(sound)} of {n} scenarios pass; the largest difference:")
            lines.append(f"  {worst}")
        for alike in _alike(self.padding, by_verdict=True):
            worst = max(alike, key=lambda f: f.size)
            more = f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""
            lines.append(f"  padding without a cache: {worst}{more}")
        if self.damages:
            seen = sum(damage.seen for damage in self.damages)
            missed = [f"{d.cache}, {d.name}" for d in self.damages if not d.seen]
            words = f"{seen} of {len(self.damages)} faults that the referee planted were found"
            lines.append(f"  {words}; not: {'; '.join(missed)}" if missed else f"  {words}")
        lines.append(f"  {self.reach}")
        if self.not_offered:
            n = len(self.not_offered)
            reasons = "; ".join(dict.fromkeys(one.reason for one in self.not_offered))
            scenarios = "1 scenario needs" if n == 1 else f"{n} scenarios need"
            lines.append(f"  {scenarios} what this model or cache lacks: {reasons}")
        lines += [f"  note: {note}" for note in dict.fromkeys(self.notes)]
        if self.unreached:
            n = len(self.unreached)
            names = "; ".join(self.unreached[:6]) + ("; …" if n > 6 else "")
            lines.append(f"  out of time for {n} scenario{'s' if n > 1 else ''}: {names}")
        return "\n".join(lines)


def mark_known(result: Report, known: Iterable[str]) -> list[str]:
    """Mark bugs whose scenario contains one of these names; returns the names that matched none."""
    absent = []
    for name in known:
        findings = result.findings + result.padding
        hits = [f for f in findings if name in f.way and f.verdict is Verdict.BUG]
        for finding in hits:
            finding.known = True
        if not hits:
            absent.append(name)
    return absent


def _alike(findings: list[Judgement], by_verdict: bool = False) -> list[list[Judgement]]:
    """Group findings that have the same evidence, or the same verdict."""
    groups: dict[str, list[Judgement]] = {}
    for finding in findings:
        key = finding.verdict if by_verdict else finding.words
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _plain(value: object) -> object:
    """The same data, with floats that JSON does not have as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
