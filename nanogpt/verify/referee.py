"""My cached text differs from my uncached text: is that rounding, or a bug? A verdict, with why.

Rounding shrinks when the dtype grows, and a bug does not. So a model is run in float64 where it can
be. There a sound cache differs from a plain pass by about 10⁻⁹ of what float32 rounds away, and a
wrong mask or position by as much as before. yardstick.py measures this in the model itself; ways.py
and situations.py have what is tried, short texts first, and long ones while there is time.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ..console import first_line
from ..sampling import check_seed
from .door import subject_of
from .report import Finding, Report, mark_known
from .subjects import NotOffered, Subject
from .texts import edges_of, lengths_of, text
from .yardstick import ULPS, Yardstick, jitter, name_of, narrowed, thinned

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
SECONDS = 60.0  # after which no further way is begun
REQUESTS = 24  # one after the other, many of which share a beginning
SHORTEST = 16  # tokens: the ways need so many
STOPS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError)
STOPS += (SystemExit, TypeError, ValueError)
FULL = ("pop from", "out of memory", "no free", "is full", "capacity", "exhausted", "pool")


def referee(
    model,
    *,
    caches=None,
    seed: int = 0,
    seconds: float = SECONDS,
    length: int | None = None,
    requests: int = REQUESTS,
    expects: float | None = None,
    known: Iterable[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Compare every way to read a text through the model's cache with one plain pass.

    `model` is a GPT, a model of transformers, a server's URL, or any object with plain(ids) and
    cached(pieces), as `Subject` describes. `caches` are the classes to try with a GPT, whose heads
    may be the reader's: GPT(config, head=Head) and caches=[KVCache], built as `kv_cache` does.
    None: the package's.

    Texts grow from short to long, to `length` tokens (past every edge), while there are `seconds`;
    the report names what was not reached. `requests` are read one after the other. `expects` is
    the part of the largest logit that a lossy cache may move, 1e-2 for int8. `known` are parts of
    the names of ways whose bugs are known. `say` gets a line when a way begins.

    Raises ValueError for anything else and for a model without a cache, ConnectionError for a
    server that gives no answers.
    """
    if caches is None and (hasattr(model, "ask") or isinstance(model, str) and "://" in model):
        from .server import referee_server

        return referee_server(model, seed, seconds=seconds, known=known)
    check_seed("seed", seed)
    modes = _modes(model)
    try:
        subject = subject_of(model, caches)
        result = Report(subject.name)
        case = Case(subject, seed, "MODEL" if caches is None else "MODEL, CACHES", result)
        case.settings(seconds, length, requests, expects, say)
        case.known = tuple(known)
        try:
            case.run()
        except Stopped as why:
            result.findings += why.args
    finally:
        for module, training in modes:
            module.training = training
    for name in mark_known(result, known):
        result.notes.append(f"the known failure {name!r} did not occur")
    result.seconds = time.monotonic() - case.began
    return result


def _modes(model) -> list[tuple[nn.Module, bool]]:
    """Each module of the caller's model, and whether it is in train mode."""
    model = model if isinstance(model, nn.Module) else getattr(model, "model", model)
    return [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []


class Stopped(Exception):
    """A plain pass with which nothing can be compared; it holds the Finding."""


class Case:
    """One model: its yardstick, what its logits should be, and all comparisons."""

    def __init__(self, subject: Subject, seed: int, given: str, result: Report):
        self.seed, self.given, self.result = seed, given, result
        self.began, self.pick = time.monotonic(), random.Random(seed)
        self.dtypes = self._dtypes(subject)
        self.as_given = subject  # its cache may have another dtype there
        (self.dtype, self.subject), *coarser = self.dtypes.items()
        self.other, self.coarse = coarser[0] if coarser else (None, None)
        self.spent = self.units = 0.0
        self.held: dict[int, tuple[Tensor, Tensor] | None] = {}  # texts and logits, by length
        self.known: tuple[str, ...] = ()
        self.refused: dict[str, list[str]] = {}  # reasons, and the ways that are not offered
        self.room: dict[str, int] = {}  # the most tokens, of all texts, that each cache has held

    def settings(self, seconds, length, requests, expects, say) -> None:
        """What `referee` was asked for."""
        self.seconds, self.requests, self.say = seconds, requests, say
        lossy = self.subject.expects if expects is None else expects
        self.yard = Yardstick(self.dtype, self.other, lossy)
        self.lengths = lengths_of(self.subject, length)
        if self.lengths[0] < SHORTEST:
            name, n = self.subject.name, self.lengths[0]
            raise ValueError(f"{name} reads {n} tokens: {SHORTEST} are needed")
        if self.other is None:
            only = f"only in {name_of(self.dtype)}: rounding is told by its size alone"
            self.result.notes.append(only)

    def _dtypes(self, subject: Subject) -> dict[torch.dtype, Subject]:
        """The model in every dtype in which it runs, the finest first.

        Raises ValueError for one that does not run at all: there is nothing to compare with.
        """
        found, ids = {}, text(subject, 1)[:, :2]
        try:
            torch.finfo(own := subject.plain(ids).dtype)  # a TypeError unless these are floats
        except STOPS as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            raise ValueError(f"{subject.name} reads no text without a cache ({why})") from None
        for dtype in DTYPES:
            if len(found) == 2:
                break  # the two finest measure what rounding does
            try:
                copy = subject_of(subject.to(dtype))
                copy.plain(ids)
                found[dtype] = copy
            except (NotOffered, MemoryError, *STOPS) as why:
                self.result.notes.append(f"not in {name_of(dtype)}: {first_line(why)}")
        return found or {own: subject}

    # -------------------------------------------------------------- the plain pass

    def plain(self, ids: Tensor, subject: Subject | None = None) -> Tensor:
        """The logits of one pass.  (B, T) -> (B, T, V). Raises Stopped."""
        try:
            return thinned((subject or self.subject).plain(ids))
        except STOPS as error:
            why = f"too long, or it keeps an earlier text ({first_line(error)})"
            words = f"it stops at {len(ids)} texts of {ids.shape[1]} tokens, after others: {why}"
            raise Stopped(Finding("the plain pass", "bug", words, math.inf)) from None

    def alone(self, ids: Tensor, subject: Subject | None = None) -> Tensor:
        """The plain pass of each text alone.  (B, T) -> (B, T, V)"""
        return torch.cat([self.plain(row[None], subject) for row in ids])

    def first(self, n: int) -> tuple[Tensor, Tensor]:
        """Short texts and what their logits must be; measures all that moves a plain pass."""
        ids = text(self.subject, seed=self.seed, length=n)
        together, alone = self.plain(ids), self.alone(ids)
        self.yard.add(alone)
        self._repeated(ids, alone)
        self.measure(ids, alone)
        batch = self.judge("the plain pass of a batch, against each text alone", together, alone)
        self.result.findings += [batch] * (batch.verdict == "bug")
        return ids, self._causal(ids, alone)

    def measure(self, ids: Tensor, alone: Tensor) -> None:
        """Let the yardstick learn what rounding does to these texts."""
        self.yard.add(alone)
        if self.coarse is not None:
            self.yard.add(alone, self.alone(ids, self.coarse))
            return
        module, eps = getattr(self.subject, "model", None), self.yard.eps
        for seed in range(3) if isinstance(module, nn.Module) else ():
            with jitter(module, eps, seed):
                self.yard.add(alone, jittered=self.alone(ids))

    def _repeated(self, ids: Tensor, alone: Tensor) -> None:
        """The same plain pass again: what varies by itself is no cache's fault, and is measured."""
        if alone.isnan().any():
            words = "its logits are NaN: no cache can be judged"
            raise Stopped(Finding("the plain pass", "bug", words, math.nan))
        again = [self.plain(ids[:1]) for _ in range(2)]
        apart = [float((one - alone[:1]).abs().nan_to_num(math.inf).max()) for one in again]
        if max(apart) <= max(self.yard.limit, self.yard.base):
            return
        stays = float((again[0] - again[1]).abs().nan_to_num(math.inf).max())
        way = "the plain pass, a second time"
        if stays <= self.yard.base:
            words = f"off by {apart[0]:.1e}, then the same: something of an earlier text is kept"
            raise Stopped(Finding(way, "bug", words, apart[0]))
        spread = float(alone.double().std())
        self.yard.noise = max(*apart, stays)
        words = f"off by {self.yard.noise:.1e}: it varies by itself"
        if self.yard.noise > 0.1 * spread:
            words += "; dropout is on (call eval()), or it draws in another way"
            turn = _turn(again[0], alone[:1], 0)
            raise Stopped(Finding(way, "bug", words, self.yard.noise, 0, turn=turn))
        self.result.notes.append(f"{way}: {words}; less than six times that is no finding")

    def _causal(self, ids: Tensor, alone: Tensor) -> Tensor:
        """What the logits must be.  (B, T, V)

        Where the plain pass looks ahead, those of plain passes that end at each token.
        """
        n = ids.shape[1]
        for t in (1, 2, n // 3, n // 2, n - 1):
            way = "the plain pass, with later tokens and without them"
            ahead = self.judge(way, self.plain(ids[:1, :t]), alone[:1, :t])
            if ahead.verdict == "bug":
                if getattr(self.subject, "bidirectional", False):
                    cure = "an encoder has a cache where it is built with is_decoder=True"
                    raise ValueError(f"{self.subject.name} is bidirectional: {cure}")
                ahead.words += ": it looks ahead, or depends on the length; instead of it the "
                ahead.words += "cache is compared with plain passes that end at each token"
                ahead.how = {"seed": self.seed, "length": n, "ends": t}
                self.result.findings.append(ahead)
                ends = range(1, n + 1)
                return torch.cat([self.plain(ids[:, :t])[:, -1:] for t in ends], dim=1)
        return alone

    # -------------------------------------------------------------- a verdict

    def judge(self, way: str, got: Tensor, expected: Tensor, again=None, inside=None) -> Finding:
        """The Finding on these logits, by the size of their differences.  (B, T, V) twice

        `again` computes them once more: where rounding of float64 is too little to explain them.
        `inside` is what rounding explains in another dtype than the finest.
        """
        if not isinstance(got, Tensor):
            raise ValueError(f"{way}: logits must be a tensor, (B, T, V), not {type(got).__name__}")
        if got.shape != expected.shape:
            words = f"logits {tuple(got.shape)}, where {tuple(expected.shape)} are wanted"
            return Finding(way, "bug", words, math.inf)
        diffs = (got.double() - expected.double()).abs().amax((0, 2))  # (T,)
        size, yard = float(diffs.max()), self.yard
        words = "NaN" if math.isnan(size) else f"off by {size:.1e}" if size else "to the bit"
        words += f" in {name_of(got.dtype if inside else self.dtype)}"
        inside = inside or yard.inside
        if size <= inside:
            verdict = "equal" if size <= ULPS * yard.ulp else "rounding"
            if size > yard.limit and not yard.lossy and again is not None:
                verdict = self._float32_inside(again, size)
            explained = f", where {yard.words}" if size else ""
            return Finding(way, verdict, words + explained, size)
        wrong = ~(diffs <= inside)
        at = int(wrong.nonzero()[0])
        words += f" from token {at} on, where {yard.words}"
        if self._may_be_a_tie(got, expected, at):
            words += "; few tokens are, so a router's near tie may part them"
            return Finding(way, "undecided", words, size, at)
        return Finding(way, "bug", words, size, at, turn=_turn(got, expected, at))

    def _float32_inside(self, again: Callable, size: float) -> str:
        """The verdict on what float32 explains and float64 does not: does float32 compute here?"""
        if narrowed(again):
            words = "something computes in float32 even where the model is in float64: a bug"
            self.result.notes.append(f"{words} below {self.yard.inside:.1e} cannot be excluded")
            return "rounding"
        words = f"off by {size:.1e} with no float32 inside: more than float64 explains"
        self.result.notes.append(words)
        return "undecided"

    def _may_be_a_tie(self, got: Tensor, expected: Tensor, at: int) -> bool:
        """Whether so few logits of a model in 16 bits differ that a tie may be the cause."""
        if self.other is not None or self.yard.eps < 1e-4 or got.isnan().any():
            return False
        diffs = (got.double() - expected.double()).abs().amax(-1)[:, at:]  # (B, T - at)
        return float((diffs > self.yard.inside).float().mean()) < 0.5

    def read(self, way: str, read: Callable, expected: Tensor, inside=None) -> Finding | None:
        """The verdict on the logits that read() gives; None where the model has no such way."""
        cache, size = way.split(", ")[0], expected.shape[0] * expected.shape[1]
        try:
            got = read()
        except (NotOffered, NotImplementedError, MemoryError) as why:
            self.not_offered(way, why)
            return None
        except STOPS as error:
            full = any(x in str(error).lower() for x in FULL)
            leaks = full and 2 * size <= self.room.get(cache, 0)
            if (full or isinstance(error, self.refuses)) and not leaks:
                self.not_offered(way, error)
                return None
            words = f"it stops with {type(error).__name__}: {first_line(error)}"
            more = f", at {size} tokens, where {self.room[cache]} were read before" if leaks else ""
            return Finding(way, "bug", words + more, math.inf)
        self.room[cache] = max(size, self.room.get(cache, 0))
        got = thinned(got) if isinstance(got, Tensor) else got
        return self.judge(way, got, expected, read, inside)

    def not_offered(self, way: str, why: Exception) -> None:
        ways = self.refused.setdefault(first_line(why), [])
        if way not in ways:
            ways.append(way)

    # -------------------------------------------------------------- the ways

    def run(self) -> None:
        """All comparisons, of short texts and then of longer ones, until there is a bug.

        A few of either come first: a large model may have no time for more.
        """
        s, notes = self.subject, self.result.notes
        stages = {0, len(self.lengths) - 1}
        if self._stages(sorted(stages), core=True):
            self._stages(range(len(self.lengths)), core=False)
        for why, ways in self.refused.items():
            more = f", and {len(ways) - 3} more ways" if len(ways) > 3 else ""
            notes.append(f"not offered by this model: {'; '.join(ways[:3])}{more} ({why})")
        if not s.rewinds:
            notes.append("not offered by this model: tokens taken back")
        if s.window and s.window >= self.lengths[-1]:
            most = self.lengths[-1]
            notes.append(f"these texts of {most} tokens do not leave its window of {s.window}")
        far = [e for e in edges_of(s) if e >= self.lengths[-1] and e != s.window]
        if far:
            notes.append(f"not passed: {', '.join(map(str, far))} tokens")

    def _stages(self, stages: Iterable[int], core: bool) -> bool:
        """Try these lengths of texts; whether none is left to be tried because of a bug."""
        for stage in stages:
            n, notes = self.lengths[stage], self.result.notes
            if not self._read(n, stage):
                continue
            self.refuses = (ValueError,) if stage else ()  # a cache may be shorter than its model
            self._all(stage, core)
            mark_known(self.result, self.known)  # they do not stop longer texts
            if self.result.verdict == "bug" and n < self.lengths[-1]:
                if core:
                    self._all(stage, False)
                notes.append(f"texts of more than {n} tokens were not read: shorter ones convict")
                return False
        return True

    def _all(self, stage: int, core: bool) -> None:
        """Try what comes first with these texts, or all else."""
        from .situations import situations

        for first, name, cost, trial in situations(self, stage, *self.held[stage]):
            if first == core and self._allows(name, cost):
                self._try(name, cost, trial)
        if not stage and not self.result.findings and self.refused and not core:
            why = next(iter(self.refused))
            raise ValueError(f"{self.subject.name} has no cache that can be used: {why}")

    def _read(self, n: int, stage: int) -> bool:
        """Whether there are texts of n tokens to compare with; what they need is read once."""
        if stage in self.held:
            return self.held[stage] is not None
        if stage and not self._allows(f"texts of {n} tokens", 6 * n):
            return False
        try:
            self.held[stage] = self._texts(n, stage)
            return True
        except Stopped as why:
            if not stage:
                raise
            self.held[stage] = None
            self.result.notes.append(f"texts of {n} tokens were not read: {why.args[0].words}")
            return False

    def _texts(self, n: int, stage: int) -> tuple[Tensor, Tensor]:
        """Three texts of n tokens, and their logits.  (3, n), (3, n, V)"""
        if not stage:
            return self.first(n)
        self.say(f"a plain pass of {n} tokens")
        ids = text(self.subject, seed=self.seed + stage, length=n)
        alone = self.alone(ids)
        self.measure(ids, alone)
        part = n // 2
        way = f"the plain pass of {n} tokens, with later ones and without them"
        ahead = self.judge(way, self.plain(ids[:1, :part]), alone[:1, :part])
        if ahead.verdict != "bug":
            return ids, alone
        ahead.words += ": it looks ahead, or depends on the length"
        self.result.findings.append(ahead)
        ends = range(1, n + 1)
        return ids, torch.cat([self.plain(ids[:, :t])[:, -1:] for t in ends], dim=1)

    def _try(self, name: str, cost: float, trial: Callable) -> None:
        """One comparison, or several; what it took tells what the next ones take."""
        self.say(name)
        began = time.monotonic()
        found = trial()
        self.result.findings += [one for one in found if one is not None]
        self.spent += time.monotonic() - began
        self.units += cost

    def _allows(self, name: str, cost: float) -> bool:
        """Whether there is time left for this; if not, that is said."""
        left = self.seconds - (time.monotonic() - self.began)
        needed = cost * self.spent / self.units if self.units else 0
        if needed <= left and left > 0:
            return True
        self.result.unreached += [] if name in self.result.unreached else [name]
        return False


def _turn(got: Tensor, expected: Tensor, at: int) -> tuple[list, list, list]:
    """Finding.turn of the text that is wrong at token `at`.  (B, T, V) twice"""
    diffs = (got.double() - expected.double()).abs().amax(-1).nan_to_num(math.inf)  # (B, T)
    row = int(diffs[:, at].argmax())
    rows = [logits[row].nan_to_num(nan=0, posinf=0, neginf=0) for logits in (expected, got)]
    tokens = [torch.where(one.any(-1), one.argmax(-1), -1).tolist() for one in rows]
    return *tokens, diffs[row].tolist()
