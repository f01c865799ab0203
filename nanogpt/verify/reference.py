"""What the logits of a model should be: its plain passes, all that moves them, and the verdict.

A model is run in float64 where it can be. What moves a plain pass is measured first: a batch, later
tokens, the same pass again, fewer bits. yardstick.py learns from each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..console import first_line
from .door import subject_of
from .report import Finding, Report
from .subjects import NotOffered, Subject
from .texts import text
from .yardstick import ULPS, Yardstick, jitter, name_of, narrowed, thinned, turn_of

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
STOPS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError)
STOPS += (SystemExit, TypeError, ValueError)


class Stopped(Exception):
    """A plain pass with which nothing can be compared; it holds the Finding."""


class Reference:
    """One model: its finest dtype, its yardstick, and what its logits should be."""

    def __init__(self, subject: Subject, seed: int, result: Report, expects: float | None):
        self.seed, self.result = seed, result
        self.dtypes = self._dtypes(subject)
        self.as_given = self._as_given(subject)  # its cache may have another dtype there
        (self.dtype, self.subject), *coarser = self.dtypes.items()
        self.other, self.coarse = coarser[0] if coarser else (None, None)
        lossy = self.subject.expects if expects is None else expects
        self.yard = Yardstick(self.dtype, self.other, lossy)
        if self.other is None:
            only = f"only in {name_of(self.dtype)}: rounding is told by its size alone"
            result.notes.append(only)

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

    def _as_given(self, subject: Subject) -> Subject:
        """The model in its own dtype, and like the others on the CPU, where it can be copied."""
        own = subject.plain(text(subject, 1)[:, :2]).dtype
        if own in self.dtypes:
            return self.dtypes[own]
        try:
            return subject_of(subject.to(own))
        except (NotOffered, MemoryError, *STOPS):
            return subject

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
        batch = self.sample("the plain pass of a batch, against each text alone", together, alone)
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
            turn = turn_of(again[0], alone[:1], 0)
            raise Stopped(Finding(way, "bug", words, self.yard.noise, 0, turn=turn))
        self.result.notes.append(f"{way}: {words}; less than six times that is no finding")

    def _causal(self, ids: Tensor, alone: Tensor) -> Tensor:
        """What the logits must be.  (B, T, V)

        Where the plain pass looks ahead, those of plain passes that end at each token.
        """
        n = ids.shape[1]
        for t in (1, 2, n // 3, n // 2, n - 1):
            way = "the plain pass, with later tokens and without them"
            ahead = self.sample(way, self.plain(ids[:1, :t]), alone[:1, :t])
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

    def texts(self, n: int, stage: int) -> tuple[Tensor, Tensor]:
        """Three texts of n tokens, and their logits.  (3, n), (3, n, V)"""
        if not stage:
            return self.first(n)
        ids = text(self.subject, seed=self.seed + stage, length=n)
        alone = self.alone(ids)
        self.measure(ids, alone)
        way = f"the plain pass of {n} tokens, with later ones and without them"
        for part in (n // 2, n // 3, n - 1) if self.other is None else (n // 2,):
            ahead = self.sample(way, self.plain(ids[:1, :part]), alone[:1, :part])
            if ahead.verdict == "bug":
                break
        else:
            return ids, alone
        ahead.words += ": it looks ahead, or depends on the length"
        self.result.findings.append(ahead)
        ends = range(1, n + 1)
        return ids, torch.cat([self.plain(ids[:, :t])[:, -1:] for t in ends], dim=1)

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
        return Finding(way, "bug", words, size, at, turn=turn_of(got, expected, at))

    def sample(self, way: str, got: Tensor, expected: Tensor) -> Finding:
        """The verdict on a plain pass of another shape; the yardstick learns its rounding."""
        found = self.judge(way, got, expected)
        if found.verdict != "bug":
            self.yard.shapes = max(self.yard.shapes, found.size)
        return found

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
