"""My cached text differs from my uncached text: is that rounding, or a bug? A verdict, with why.

Rounding shrinks when the dtype grows, and a bug does not. So a model is run in float64 where it can
be. There a sound cache differs from a plain pass by about 10⁻⁹ of what float32 rounds away, and a
wrong mask or position by as much as before. reference.py has the plain passes and the verdict;
ways.py and situations.py have what is tried, short texts first, and long ones while there is time.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from ..console import first_line
from ..sampling import check_seed
from .door import subject_of
from .reference import STOPS, Reference, Stopped
from .report import Finding, Report, mark_known
from .situations import situations
from .subjects import NotOffered
from .texts import edges_of, lengths_of
from .yardstick import thinned

SECONDS = 60.0  # after which no further way is begun
REQUESTS = 24  # one after the other, many of which share a beginning
SHORTEST = 16  # tokens: the ways need so many
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
        given = "MODEL" if caches is None else "MODEL, CACHES"
        case = Case(subject, seed, result, expects, given)
        case.settings(seconds, length, requests, tuple(known), say)
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


class Case(Reference):
    """One model under the referee: all comparisons, and the time that is left for them."""

    def __init__(self, subject, seed: int, result: Report, expects: float | None, given: str):
        self.began, self.pick, self.given = time.monotonic(), random.Random(seed), given
        super().__init__(subject, seed, result, expects)
        self.spent = self.units = 0.0
        self.held: dict[int, tuple[Tensor, Tensor] | None] = {}  # texts and logits, by length
        self.refused: dict[str, list[str]] = {}  # reasons, and the ways that are not offered
        self.room: dict[str, set] = {}  # texts and tokens for which each cache had room

    def settings(self, seconds, length, requests, known, say) -> None:
        """What `referee` was asked for."""
        self.seconds, self.requests, self.known, self.say = seconds, requests, known, say
        self.lengths = lengths_of(self.subject, length)
        if self.lengths[0] < SHORTEST:
            name, n = self.subject.name, self.lengths[0]
            raise ValueError(f"{name} reads {n} tokens: {SHORTEST} are needed")

    def read(self, way: str, read: Callable, expected: Tensor, inside=None) -> Finding | None:
        """The verdict on the logits that read() gives; None where the model has no such way."""
        cache, (rows, tokens) = self._cache_of(way), expected.shape[:2]
        room = self.room.setdefault(cache, set())
        try:
            got = read()
        except (NotOffered, NotImplementedError, MemoryError) as why:
            self.not_offered(way, why)
            return None
        except STOPS as error:
            full = any(x in str(error).lower() for x in FULL)
            if full and any(rows <= b and tokens <= t for b, t in room):
                words = f"{cache} has no room for what it read before: are blocks given back?"
                self.result.notes.append(words)
            if full or isinstance(error, self.refuses):
                self.not_offered(way, error)
                return None
            words = f"it stops with {type(error).__name__}: {first_line(error)}"
            return Finding(way, "bug", words, math.inf)
        if way.startswith(cache) or "through the cache" in way:
            room.add((rows, tokens))
        got = thinned(got) if isinstance(got, Tensor) else got
        found = self.judge(way, got, expected, read, inside)
        return self._again(found, read, got) if found.verdict == "bug" else found

    def _again(self, found: Finding, read: Callable, got: Tensor) -> Finding:
        """A small difference that another reading does not have may be the model's own noise."""
        if not found.size < 0.01 * float(got.double().std()):
            return found
        try:
            varies = max(float((thinned(read()) - got).abs().max()) for _ in range(2))
        except STOPS:
            return found
        if varies > self.yard.inside:
            self.yard.noise = max(self.yard.noise, varies)
            found.verdict = "undecided"
            found.words += f"; read again, it varies by {varies:.1e}"
        return found

    def _cache_of(self, way: str) -> str:
        names = self.subject.caches
        return next((name for name in names if way.startswith(f"{name}, ")), names[0])

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
            self.say(f"a plain pass of {n} tokens")
            self.held[stage] = self.texts(n, stage)
            return True
        except Stopped as why:
            if not stage:
                raise
            self.held[stage] = None
            self.result.notes.append(f"texts of {n} tokens were not read: {why.args[0].words}")
            return False

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
