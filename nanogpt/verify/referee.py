"""My cached text differs from my uncached text: is that rounding, or a bug? A verdict, with why.

Rounding shrinks when the dtype grows, and a bug does not. So a model is run in float64 where it can
be. There a sound cache differs from a plain pass by about 10⁻⁹ of what float32 rounds away, and a
wrong mask or position by as much as before. The yardstick is measured in the model itself: how far
float32 moves the logits of its plain pass.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..comparison import rounding
from ..console import first_line
from ..sampling import check_seed
from .report import Finding, Report
from .subjects import NotOffered, Subject, cut, plans, subject_of, text, total

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
ULPS = 4  # units in the last place of the largest logit, up to which logits are called equal
SHORTEST = 16  # tokens: the ways need so many
STOPS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError)
STOPS += (SystemExit, TypeError, ValueError)


def referee(model, *, caches=None, seed: int = 0) -> Report:
    """Compare every way to read a text through the model's cache with one plain pass.

    `model` is a GPT, a model of transformers, a server's URL, or any object with plain(ids) and
    cached(pieces), as `Subject` describes. `caches` are the classes to try with a GPT, whose heads
    may be the reader's: GPT(config, head=Head) and caches=[KVCache], built as `kv_cache` does.
    None: the package's. Raises ValueError for anything else and for a model without a cache,
    ConnectionError for a server that gives no answers.
    """
    if caches is None and (hasattr(model, "ask") or isinstance(model, str) and "://" in model):
        from .server import referee_server

        return referee_server(model, seed)
    check_seed("seed", seed)
    subject = subject_of(model, caches)
    result = Report(subject.name)
    try:
        _Case(subject, seed, "MODEL" if caches is None else "MODEL, CACHES", result).run()
    except _Stopped as why:
        result.findings += why.args
    return result


class _Stopped(Exception):
    """A plain pass with which nothing can be compared; it holds the Finding."""


class _Case:
    """One model: its yardstick, what its logits should be, and all comparisons."""

    def __init__(self, subject: Subject, seed: int, given: str, result: Report):
        self.seed, self.given, self.result = seed, given, result
        self.dtypes = self._dtypes(subject)
        (self.dtype, self.subject), *coarser = self.dtypes.items()
        self.ids = text(self.subject, seed=seed)  # (B, T)
        self.n = self.ids.shape[1]
        if self.n < SHORTEST:
            raise ValueError(f"{subject.name} reads {self.n} tokens: {SHORTEST} are needed")
        plain = self._plain(self.ids)
        eps = torch.finfo(self.dtype).eps
        self.ulp = eps * float(plain.abs().nan_to_num().max())
        self.limit = self.inside = rounding(plain.nan_to_num())
        self.yard = f"rounding explains {self.limit:.1e}"
        alone = self._repeated()  # before a yardstick is taken: dropout would be in it
        if coarser:  # the two finest dtypes measure what rounding does
            other, coarse = coarser[0]
            moved = float((coarse.plain(self.ids) - plain.double()).abs().nan_to_num().max())
            self.yard = f"{_name(other)} moves the plain pass by {moved:.1e}"
            shrinks = math.sqrt(eps / torch.finfo(other).eps)  # half-way, in orders of magnitude
            self.limit = max(moved * shrinks, ULPS * self.ulp)
            # A float32 inside a model of float64 rounds as float32 does.
            self.inside = moved if other == torch.float32 else self.limit
        else:
            result.notes.append(f"only in {_name(self.dtype)}: rounding is told by its size alone")
        self.expected = self._truth(plain, alone)

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
            try:
                copy = subject_of(subject.to(dtype))
                copy.plain(ids)
                found[dtype] = copy
            except (NotOffered, MemoryError, *STOPS) as why:
                self.result.notes.append(f"not in {_name(dtype)}: {first_line(why)}")
        return found or {own: subject}

    # -------------------------------------------------------------- the plain pass

    def _plain(self, ids: Tensor) -> Tensor:
        try:
            return self.subject.plain(ids)
        except STOPS as error:
            why = f"too long, or it keeps an earlier text ({first_line(error)})"
            words = f"it stops at {len(ids)} texts of {ids.shape[1]} tokens, after others: {why}"
            raise _Stopped(Finding("the plain pass", "bug", words, math.inf)) from None

    def _repeated(self) -> Tensor:
        """The plain pass of each text alone, where it gives the same again.  (B, T, V)"""
        alone, again = (torch.cat([self._plain(row[None]) for row in self.ids]) for _ in "12")
        twice = self.judge("the plain pass, a second time", again, alone)
        if alone.isnan().any():
            twice.words = "its logits are NaN: no cache can be judged"
        else:
            twice.words += ": dropout is on (call eval()), or something of an earlier text is kept"
        if twice.verdict == "bug":
            raise _Stopped(twice)
        return alone

    def _truth(self, plain: Tensor, alone: Tensor) -> Tensor:
        """What the logits must be: the plain pass of each text alone.  (B, T, V)

        Where that looks ahead, those of plain passes that end at each token.
        """
        batch = self.judge("the plain pass of a batch, against each text alone", plain, alone)
        found = self.result.findings
        found += [batch] * (batch.verdict == "bug")
        for t in (1, 2, self.n // 3, self.n // 2, self.n - 1):
            way = "the plain pass, with later tokens and without them"
            ahead = self.judge(way, self._plain(self.ids[:1, :t]), alone[:1, :t])
            if ahead.verdict == "bug":
                ahead.words += ": it looks ahead, or depends on the length; instead of it the "
                ahead.words += "cache is compared with plain passes that end at each token"
                found.append(ahead)
                ends = range(1, self.n + 1)
                return torch.cat([self._plain(self.ids[:, :t])[:, -1:] for t in ends], dim=1)
        return alone

    # -------------------------------------------------------------- a verdict

    def judge(self, way: str, got: Tensor, expected: Tensor) -> Finding:
        """The verdict on these logits, by the size of their differences.  (B, T, V) twice"""
        if not isinstance(got, Tensor):
            raise ValueError(f"{way}: logits must be a tensor, (B, T, V), not {type(got).__name__}")
        if got.shape != expected.shape:
            words = f"logits {tuple(got.shape)}, where {tuple(expected.shape)} are wanted"
            return Finding(way, "bug", words, math.inf)
        diffs = (got.double() - expected.double()).abs().amax((0, 2))  # (T,)
        size, dtype = float(diffs.max()), _name(self.dtype)
        if self.limit < size <= self.inside:
            words = "something computes in float32 even where the model is in float64: a bug"
            self.result.notes.append(f"{words} below {self.inside:.1e} cannot be excluded")
        off = "NaN" if math.isnan(size) else f"off by {size:.1e}"
        if size <= self.inside:
            verdict = "equal" if size <= ULPS * self.ulp else "rounding"
            words = f"{off} in {dtype}, where {self.yard}" if size else f"to the bit in {dtype}"
            return Finding(way, verdict, words, size)
        at = int((~(diffs <= self.inside)).nonzero()[0])
        words = f"{off} in {dtype} from token {at} on, where {self.yard}"
        return Finding(way, "bug", words, size, at, turn=_turn(got, expected, at))

    def read(self, way: str, read: Callable, expected: Tensor) -> Finding | None:
        """The verdict on the logits that read() gives; None where the model has no such way."""
        try:
            got = read()
        except (NotOffered, NotImplementedError) as why:
            self.result.notes.append(f"not offered by this model: {way} ({first_line(why)})")
            return None
        except STOPS as error:
            words = f"it stops with {type(error).__name__}: {first_line(error)}"
            return Finding(way, "bug", words, math.inf)
        return self.judge(way, got, expected)

    # -------------------------------------------------------------- the ways

    def run(self) -> None:
        """All comparisons."""
        s, notes, pick = self.subject, self.result.notes, random.Random(self.seed)
        ways = {cache: plans(self.n, s.window, s.rewinds, pick) for cache in s.caches}
        found = [self._through(cache, *plan) for cache in ways for plan in ways[cache]]
        found += map(self._requests, s.caches)
        if not any(found):
            why = next(x for x in notes if x.startswith("not offered"))
            raise ValueError(f"{s.name} has no cache that can be used; {why}")
        self.result.findings += filter(None, [*found, *self._padding()])
        if not s.rewinds:
            notes.append("not offered by this model: tokens taken back")
        if s.window and s.window >= self.n:
            notes.append(f"these texts of {self.n} tokens do not leave its window of {s.window}")

    def _through(self, cache: str, way: str, rows: int, lengths: list) -> Finding | None:
        """Texts read in pieces of these lengths."""
        ids, (V, kept) = self.ids[:rows], (self.subject.vocab_size, total(lengths))
        read = partial(self.subject.cached, cut(ids, lengths, V), cache)
        found = self.read(f"{cache}, {way}", read, self.expected[:rows, :kept])
        copy = f".to({self.dtype})" if len(self.dtypes) > 1 else ""
        if found and found.verdict == "bug":
            found.code = (
                f"import torch\nfrom nanogpt.verify.subjects import cut, subject_of, text\n"
                f"m = subject_of({self.given}){copy}\n"
                f"ids = text(m, seed={self.seed})[:{rows}]\n"
                f"got = m.cached(cut(ids, {lengths}, m.vocab_size), {cache!r})\n"
                f"(got - m.plain(ids)[:, :{kept}]).abs().amax((0, 2))"
            )
        return found

    def _requests(self, cache: str) -> Finding | None:
        """One after the other: A, one that begins as A does, the beginning of A alone, B, A."""
        half, (a, b) = self.n // 2, self.ids[:2, None]
        shared = torch.cat([a[:, :half], b[:, half:]], dim=1)
        mixed = torch.cat([self.expected[:1, :half], self._plain(shared)[:, half:]], dim=1)
        asked = {"A": (a, self.expected[:1]), "one that begins as A does": (shared, mixed)}
        asked |= {"half of A": (a[:, :half], self.expected[:1, :half])}
        asked |= {"B": (b, self.expected[1:2]), "A again": (a, self.expected[:1])}
        way = f"{cache}, requests one after the other"
        for name, (ids, expected) in asked.items():
            lengths = [half - 3, 1, 1, 1] + [1, 1, 2, self.n - half - 4] * (name != "half of A")
            pieces = cut(ids, lengths, self.subject.vocab_size)
            found = self.read(way, partial(self.subject.cached, pieces, cache), expected)
            if found is None:
                return None
            if found.verdict == "bug":
                found.words += f"; wrong is {name}, of {', '.join(asked)}"
                return found
        return found

    def _padding(self) -> list[Finding | None]:
        """Shorter texts beside longer ones, padded on the left: without a cache, then with one.

        What one pass without a cache does with padding is no fault of the cache.
        """
        s, n = self.subject, self.n
        place = torch.arange(n) - torch.tensor([0, 5, n // 3])[:, None]  # in the own text; (B, T)
        mask, ids = (place >= 0).long(), self.ids.gather(1, place.clamp(min=0))
        real = (place >= 0)[..., None]

        def read(lengths: list | None) -> Tensor:
            return torch.where(real, s.padded(ids, mask, lengths), 0)

        own = place.clamp(min=0)[..., None].expand_as(self.expected)
        alone = torch.where(real, self.expected.gather(1, own), 0)
        way = "left padding in one pass, against each text alone"
        found = self.read(way, partial(read, None), alone)
        if found is None:
            return []
        self.result.padding.append(found)
        if found.size == math.inf:  # it stopped
            return []
        plain = read(None)
        real &= plain.isfinite().all(-1, keepdim=True)  # NaN in one pass is not the cache's
        way, plain = "left padding through the cache, against one pass", plain.where(real, 0)
        return [self.read(way, partial(read, [n // 2, 1, 1, 3, 1, n - n // 2 - 6]), plain)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _turn(got: Tensor, expected: Tensor, at: int) -> tuple[list, list, list]:
    """Finding.turn of the text that is wrong at token `at`.  (B, T, V) twice"""
    diffs = (got.double() - expected.double()).abs().amax(-1).nan_to_num(math.inf)  # (B, T)
    row = int(diffs[:, at].argmax())
    rows = [logits[row].nan_to_num(nan=0, posinf=0, neginf=0) for logits in (expected, got)]
    tokens = [torch.where(one.any(-1), one.argmax(-1), -1).tolist() for one in rows]
    return *tokens, diffs[row].tolist()
