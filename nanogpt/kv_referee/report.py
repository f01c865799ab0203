"""The referee's report: findings, each with its evidence, and one verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

# Tokens that a model reads, with and without a cache, before no further scenario starts.
TOKEN_BUDGET = 30_000
_SHOWN = 8  # most bugs in a printed report


class Verdict(str, Enum):
    """What a comparison shows, from best to worst."""

    EQUAL = "equal"
    ROUNDING = "rounding"
    KNOWN = "known bugs"
    UNDECIDED = "undecided"
    BUG = "bug"

    def __str__(self) -> str:
        return self.value

    @property
    def sound(self) -> bool:
        """Whether the logits are equal, or differ only by rounding."""
        return self in (Verdict.EQUAL, Verdict.ROUNDING)


VERDICTS = tuple(Verdict)


class ExitCode(IntEnum):
    """How a command that judges ends, and what that means."""

    SOUND = 0
    BUG = 1
    UNJUDGED = 2  # as of any command that was used wrongly
    UNDECIDED = 3

    @property
    def meaning(self) -> str:
        """The verdicts that end so."""
        names = [str(verdict) for verdict, code in CODES.items() if code is self]
        return ", ".join(names) or "nothing was judged"


CODES = {
    Verdict.EQUAL: ExitCode.SOUND,
    Verdict.ROUNDING: ExitCode.SOUND,
    Verdict.KNOWN: ExitCode.SOUND,
    Verdict.BUG: ExitCode.BUG,
    Verdict.UNDECIDED: ExitCode.UNDECIDED,
}


class ScenarioKind(str, Enum):
    """The kinds of scenarios. The report is undecided unless each that a model offers was tried."""

    FIRST = "the first requests of a new object"
    PREFILL = "a prompt, then single tokens"
    CHUNKS = "pieces of several tokens"
    REWIND = "rejected drafts taken back"
    PARTING = "requests that share a prefix"
    INTERLEAVED = "sessions by turns"
    FORK = "a session forked"
    BEAMS = "beams that change places"
    LEAVING = "texts that leave a batch"
    BATCH = "a batch"
    PADDING = "padded batches"
    THREADS = "sessions in two threads"

    def __str__(self) -> str:
        return self.value


class Mistake(str, Enum):
    """The kinds of mistakes that a diagnosis tells apart."""

    LOST_TOKEN = "lost token"
    STALE_TOKEN = "stale token"  # taken back, or there twice, and still read
    SHIFTED_POSITION = "shifted position"
    WRONG_WINDOW = "wrong window"
    MASK = "mask"
    WRONG_ROW = "wrong batch row"
    PREVIOUS_REQUEST = "previous request"
    ANOTHER_SESSION = "another session"
    ROUNDING = "rounding too coarse"

    def __str__(self) -> str:
        return self.value


class CacheBug(AssertionError):
    """The referee found a bug; the message is its report."""


class CacheUndecided(AssertionError):
    """The referee could not decide: nothing was proved. The message is its report."""


@dataclass(frozen=True)
class Unsupported:
    """A scenario that a model does not support, and the reason."""

    way: str
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
        if not self.chunks:
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


@dataclass
class Judgement:
    """One scenario and its verdict. `words` are the evidence."""

    name: str  # of the scenario
    verdict: Verdict
    words: str
    size: float = 0.0  # the largest logit difference
    position: int | None = None  # the first token whose logits are wrong
    cache: str | None = None  # through which the texts were read; None: without one
    kind: ScenarioKind | None = None  # None: not of a cache
    mistake: Mistake | None = None  # the kind of mistake, if the numbers show it
    cause: str = ""  # the mistake in words
    code: str = ""  # a script that shows the bug
    tokens: int = 0  # that the script reads through the cache
    turn: LogitTurn | TextTurn | None = field(default=None, repr=False)  # where a bug shows
    known: bool = False  # a bug that the caller listed as known

    @property
    def way(self) -> str:
        """The scenario in words, with its cache."""
        return self.name if self.cache is None else f"{self.cache}, {self.name}"

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain data."""
        data = {"way": self.way} | asdict(self)
        return data | {"turn": self.turn or ()}

    def __str__(self) -> str:
        known = "known " if self.known else ""
        return f"{known}{self.verdict}: {self.way}: {self.words}"


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
    unreached: list[str] = field(default_factory=list)  # scenarios beyond the budget
    tokens: int = 0  # that the model has read
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The verdict on the cache: the worst of its findings.

        Bugs that the caller knows do not count as bugs, but with one of them it is never sound.
        """
        judged = [Verdict.KNOWN if f.known else f.verdict for f in self.findings]
        nothing_tried = self.unreached and not self.findings
        default = Verdict.UNDECIDED if nothing_tried else Verdict.EQUAL
        return max(judged, key=VERDICTS.index, default=default)

    @property
    def bugs(self) -> list[Judgement]:
        """All bugs that are not known, including those of padding."""
        findings = self.findings + self.padding
        return [f for f in findings if f.verdict is Verdict.BUG and not f.known]

    @property
    def code(self) -> ExitCode:
        """The exit code of this verdict."""
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
        data["not_offered"] = [asdict(one) for one in self.not_offered]
        data |= {"notes": self.notes, "unreached": self.unreached}
        data |= {"tokens": self.tokens, "seconds": self.seconds}
        return json.dumps(_plain(data), indent=1, allow_nan=False)

    def __str__(self) -> str:
        lines = [f"{self.model}: {self.verdict}"]
        # 1. Bugs: those of the plain pass first, then the one that was found first.
        bugs = [f for f in self.findings if f.verdict is Verdict.BUG and not f.known]
        bugs.sort(key=lambda f: (f.cache is not None, not f.cause))
        for i, bug in enumerate(bugs[:_SHOWN]):
            lines += _brief(bug) if i and bug.cache is not None else _in_full(bug)
        if len(bugs) > _SHOWN:
            lines.append(f"  and {len(bugs) - _SHOWN} more scenarios; `findings` has all of them")
        # 2. What was left open, and how many scenarios pass.
        lines += [f"  {f}" for f in self.findings if f.verdict is Verdict.UNDECIDED or f.known]
        sound = [f for f in self.findings if f.verdict.sound]
        if sound:
            worst = max(sound, key=lambda f: (VERDICTS.index(f.verdict), f.size))
            n = len(self.findings)
            lines.append(f"  {len(sound)} of {n} scenarios pass; the largest difference:")
            lines.append(f"  {worst}")
        # 3. Padding without a cache, one line for each verdict.
        by_verdict: dict[Verdict, list[Judgement]] = {}
        for finding in self.padding:
            by_verdict.setdefault(finding.verdict, []).append(finding)
        for alike in by_verdict.values():
            worst = max(alike, key=lambda f: f.size)
            more = f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""
            lines.append(f"  padding without a cache: {worst}{more}")
        # 4. What the verdict rests on, and what it does not cover.
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
            lines.append(f"  not reached: {n} scenario{'s' if n > 1 else ''}: {names}")
        return "\n".join(lines)


def _in_full(bug: Judgement) -> list[str]:
    """The lines of a bug with its mistake and script."""
    lines = [f"  {bug}"]
    if bug.mistake or bug.cause:
        lines.append(f"    kind of mistake: {bug.mistake or 'not known'}: {bug.cause}")
    return lines + [f"      {line}" for line in bug.code.splitlines()]


def _brief(bug: Judgement) -> list[str]:
    """The line of a further bug."""
    cause = f" ({bug.mistake})" if bug.mistake else ""
    return [f"  also wrong: {bug.way}{cause}"]


def mark_known(result: Report, known: Iterable[str]) -> list[str]:
    """Mark bugs of scenarios with exactly these names; returns the names that matched none."""
    absent = []
    for name in known:
        findings = result.findings + result.padding
        hits = [f for f in findings if name in (f.name, f.way) and f.verdict is Verdict.BUG]
        for finding in hits:
            finding.known = True
        if not hits:
            absent.append(name)
    return absent


def _plain(value: object) -> object:
    """The same data, with floats that JSON does not have as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
