"""The logits that a model should have: its plain passes, all that moves them, and the verdict.

A model is run in float64 where it can be. The influences on a plain pass are measured first: a
batch, later tokens, the same pass again, fewer bits. yardstick.py learns from each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..console import first_line
from .door import subject_of
from .report import Comparison, Finding, PlainRun, Report, Verdict
from .subjects import NotOffered, Subject
from .texts import text
from .yardstick import TIMES, ULPS, Yardstick, jitter, name_of, narrowed, thinned, turn_of

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
# What may end a pass of a model: its bugs, and its refusals.
STOPS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError),
    *(SystemExit, TypeError, ValueError),
)
PLAIN_PASS = Comparison("the plain pass")


class Stopped(Exception):
    """A plain pass with which nothing can be compared; `finding` says why."""

    def __init__(self, finding: Finding):
        super().__init__(str(finding))
        self.finding = finding


class Reference:
    """One model: its finest dtype, its yardstick, and the logits that it should have."""

    def __init__(self, subject: Subject, seed: int, result: Report, expects: float | None):
        self.seed = seed
        self.result = result
        self.dtypes = self._dtypes(subject)
        self.as_given = self._as_given(subject)  # its cache may have another dtype there
        (self.dtype, self.subject), *coarser = self.dtypes.items()
        self.other: torch.dtype | None = None
        self.coarse: Subject | None = None
        if coarser:
            self.other, self.coarse = coarser[0]
        lossy = self.subject.expects if expects is None else expects
        self.yard = Yardstick(self.dtype, self.other, lossy)
        if self.other is None:
            note = f"only in {name_of(self.dtype)}: rounding is told by its size alone"
            result.notes.append(note)

    def _dtypes(self, subject: Subject) -> dict[torch.dtype, Subject]:
        """The model in every dtype in which it runs, the finest first.

        Raises ValueError for one that does not run at all: there is nothing to compare with.
        """
        ids = text(subject, 1)[:, :2]
        try:
            native = subject.plain(ids).dtype
            torch.finfo(native)  # a TypeError unless these are floats
        except STOPS as error:
            raise ValueError(
                f"{subject.name} reads no text without a cache "
                f"({type(error).__name__}: {first_line(error)})"
            ) from None
        copies: dict[torch.dtype, Subject] = {}
        for dtype in DTYPES:
            if len(copies) == 2:
                break  # the two finest measure the rounding
            try:
                copy = subject_of(subject.to(dtype))
                copy.plain(ids)
                copies[dtype] = copy
            except (NotOffered, MemoryError, *STOPS) as error:
                self.result.notes.append(f"not in {name_of(dtype)}: {first_line(error)}")
        return copies or {native: subject}

    def _as_given(self, subject: Subject) -> Subject:
        """The model in its own dtype, and like the others on the CPU, where it can be copied."""
        native = subject.plain(text(subject, 1)[:, :2]).dtype
        if native in self.dtypes:
            return self.dtypes[native]
        try:
            return subject_of(subject.to(native))
        except (NotOffered, MemoryError, *STOPS):
            return subject

    # -------------------------------------------------------------- the plain pass

    def plain(self, ids: Tensor, subject: Subject | None = None) -> Tensor:
        """The logits of one pass.  (B, T) -> (B, T, V). Raises Stopped."""
        try:
            return thinned((subject or self.subject).plain(ids))
        except STOPS as error:
            words = (
                f"it stops at {len(ids)} texts of {ids.shape[1]} tokens, after others: "
                f"too long, or it keeps an earlier text ({first_line(error)})"
            )
            raise Stopped(Finding(PLAIN_PASS, Verdict.BUG, words, math.inf)) from None

    def alone(self, ids: Tensor, subject: Subject | None = None) -> Tensor:
        """The plain pass of each text alone.  (B, T) -> (B, T, V)"""
        return torch.cat([self.plain(row[None], subject) for row in ids])

    def first(self, n: int) -> tuple[Tensor, Tensor]:
        """Short texts and their right logits; measures all that moves a plain pass."""
        ids = text(self.subject, seed=self.seed, length=n)
        together = self.plain(ids)
        alone = self.alone(ids)
        self.yard.add(alone)
        self._repeated(ids, alone)
        self.measure(ids, alone)
        whole = Comparison("the plain pass of a batch, against each text alone")
        batch = self.sample(whole, together, alone)
        if batch.verdict is Verdict.BUG:
            self.result.findings.append(batch)
        return ids, self._causal(ids, alone)

    def measure(self, ids: Tensor, alone: Tensor) -> None:
        """Let the yardstick learn how far rounding moves the logits of these texts."""
        self.yard.add(alone)
        if self.coarse is not None:
            self.yard.add(alone, self.alone(ids, self.coarse))
            return
        module = getattr(self.subject, "model", None)
        if not isinstance(module, nn.Module):
            return
        for seed in range(3):
            with jitter(module, self.yard.eps, seed):
                self.yard.add(alone, jittered=self.alone(ids))

    def _repeated(self, ids: Tensor, alone: Tensor) -> None:
        """The same plain pass again: noise of the model is no cache's fault, and is measured."""
        if alone.isnan().any():
            raise Stopped(
                Finding(
                    PLAIN_PASS,
                    Verdict.BUG,
                    "its logits are NaN: no cache can be judged",
                    math.nan,
                )
            )
        second = self.plain(ids[:1])
        third = self.plain(ids[:1])
        off_second = _largest_difference(second, alone[:1])
        off_third = _largest_difference(third, alone[:1])
        if max(off_second, off_third) <= max(self.yard.limit, self.yard.base):
            return
        between = _largest_difference(second, third)
        again = Comparison("the plain pass, a second time")
        if between <= self.yard.base:
            raise Stopped(
                Finding(
                    again,
                    Verdict.BUG,
                    f"off by {off_second:.1e}, then the same: something of an earlier text is kept",
                    off_second,
                )
            )
        spread = float(alone.double().std())
        self.yard.noise = max(off_second, off_third, between)
        words = f"off by {self.yard.noise:.1e}: it varies by itself"
        if self.yard.noise > 0.1 * spread:
            words += "; dropout is on (call eval()), or it draws in another way"
            turn = turn_of(second, alone[:1], 0)
            raise Stopped(Finding(again, Verdict.BUG, words, self.yard.noise, 0, turn=turn))
        self.result.notes.append(f"{again}: {words}; less than six times that is no finding")

    def _causal(self, ids: Tensor, alone: Tensor) -> Tensor:
        """The logits that a cache must give.  (B, T, V)

        Where the plain pass looks ahead, those of plain passes that end at each token.
        """
        n = ids.shape[1]
        for t in (1, 2, n // 3, n // 2, n - 1):
            causal = Comparison("the plain pass, with later tokens and without them")
            ahead = self.sample(causal, self.plain(ids[:1, :t]), alone[:1, :t])
            if ahead.verdict is Verdict.BUG:
                if getattr(self.subject, "bidirectional", False):
                    raise ValueError(
                        f"{self.subject.name} is bidirectional: "
                        f"an encoder has a cache where it is built with is_decoder=True"
                    )
                ahead.words += ": it looks ahead, or depends on the length; instead of it the "
                ahead.words += "cache is compared with plain passes that end at each token"
                ahead.how = PlainRun(self.seed, n, t)
                self.result.findings.append(ahead)
                return self._prefixes(ids)
        return alone

    def _prefixes(self, ids: Tensor) -> Tensor:
        """The last logits of plain passes that end at each token.  (B, T) -> (B, T, V)"""
        ends = range(1, ids.shape[1] + 1)
        return torch.cat([self.plain(ids[:, :end])[:, -1:] for end in ends], dim=1)

    def texts(self, n: int, stage: int) -> tuple[Tensor, Tensor]:
        """Three texts of n tokens, and their logits.  (3, n), (3, n, V)"""
        if not stage:
            return self.first(n)
        ids = text(self.subject, seed=self.seed + stage, length=n)
        alone = self.alone(ids)
        self.measure(ids, alone)
        causal = Comparison(f"the plain pass of {n} tokens, with later ones and without them")
        # Without a coarser dtype these samples are all that measures the rounding: more of them.
        ends = (n // 2, n // 3, n - 1) if self.other is None else (n // 2,)
        for end in ends:
            ahead = self.sample(causal, self.plain(ids[:1, :end]), alone[:1, :end])
            if ahead.verdict is Verdict.BUG:
                ahead.words += ": it looks ahead, or depends on the length"
                self.result.findings.append(ahead)
                return ids, self._prefixes(ids)
        return ids, alone

    # -------------------------------------------------------------- a verdict

    def judge(
        self,
        comparison: Comparison,
        got: Tensor,
        expected: Tensor,
        again: Callable[[], Tensor] | None = None,
        inside: float | None = None,
    ) -> Finding:
        """The Finding on these logits, by the size of their differences.  (B, T, V) twice

        `again` computes them once more: where rounding of float64 is too little to explain them.
        `inside` is the difference that rounding explains in another dtype than the finest.
        """
        if not isinstance(got, Tensor):
            kind = type(got).__name__
            raise ValueError(f"{comparison}: logits must be a tensor, (B, T, V), not {kind}")
        if got.shape != expected.shape:
            words = f"logits {tuple(got.shape)}, where {tuple(expected.shape)} are wanted"
            return Finding(comparison, Verdict.BUG, words, math.inf)
        diffs = (got.double() - expected.double()).abs().amax((0, 2))  # (T,)
        size = float(diffs.max())
        dtype = got.dtype if inside else self.dtype
        words = f"{_size_in_words(size)} in {name_of(dtype)}"
        yard = self.yard
        inside = inside or yard.inside
        if size <= inside:
            verdict = Verdict.EQUAL if size <= ULPS * yard.ulp else Verdict.ROUNDING
            if size > yard.limit and not yard.lossy and again is not None:
                verdict = self._float32_inside(again, size)
            explanation = f", where {yard.words}" if size else ""
            return Finding(comparison, verdict, words + explanation, size)
        wrong = ~(diffs <= inside)
        at = int(wrong.nonzero()[0])
        words += f" from token {at} on, where {yard.words}"
        if again is not None and self._may_be_a_spike(got, expected, size) and narrowed(again):
            words += f"; few are, and float32 moves a token of a plain pass by {yard.most:.1e}"
            return Finding(comparison, Verdict.UNDECIDED, words, size, at)
        if self._may_be_a_tie(got, expected, at):
            words += "; few tokens are, so a router's near tie may part them"
            return Finding(comparison, Verdict.UNDECIDED, words, size, at)
        return Finding(comparison, Verdict.BUG, words, size, at, turn=turn_of(got, expected, at))

    def sample(self, comparison: Comparison, got: Tensor, expected: Tensor) -> Finding:
        """The verdict on a plain pass of another shape; the yardstick learns its rounding."""
        finding = self.judge(comparison, got, expected)
        if finding.verdict is not Verdict.BUG:
            self.yard.shapes = max(self.yard.shapes, finding.size)
        return finding

    def _float32_inside(self, again: Callable[[], Tensor], size: float) -> Verdict:
        """The verdict on a size that float32 explains, not float64: does float32 compute here?"""
        if narrowed(again):
            words = "something computes in float32 even where the model is in float64: a bug"
            self.result.notes.append(f"{words} below {self.yard.inside:.1e} cannot be excluded")
            return Verdict.ROUNDING
        words = f"off by {size:.1e} with no float32 inside: more than float64 explains"
        self.result.notes.append(words)
        return Verdict.UNDECIDED

    def _may_be_a_spike(self, got: Tensor, expected: Tensor, size: float) -> bool:
        """Whether so few tokens differ, by no more than a float32 inside may move such ones."""
        if self.other != torch.float32 or not size <= TIMES * self.yard.most:
            return False
        diffs = (got.double() - expected.double()).abs().amax(-1)  # (B, T)
        return int((diffs > self.yard.inside).sum()) <= max(2, 0.02 * diffs.numel())

    def _may_be_a_tie(self, got: Tensor, expected: Tensor, at: int) -> bool:
        """Whether so few logits of a model in 16 bits differ that a tie may be the cause."""
        if self.other is not None or self.yard.eps < 1e-4 or got.isnan().any():
            return False
        diffs = (got.double() - expected.double()).abs().amax(-1)[:, at:]  # (B, T - at)
        return float((diffs > self.yard.inside).float().mean()) < 0.5


def _largest_difference(a: Tensor, b: Tensor) -> float:
    """Infinite where one of both is NaN."""
    return float((a - b).abs().nan_to_num(math.inf).max())


def _size_in_words(size: float) -> str:
    if math.isnan(size):
        return "NaN"
    return f"off by {size:.1e}" if size else "to the bit"
