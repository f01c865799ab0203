"""The logits that a model should have: its plain passes, what moves them, and the verdict.

A model is run in float64 if possible. What may move a plain pass is measured first: a batch, later
tokens, repetition, fewer bits. yardstick.py learns from each.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .door import subject_of
from .offers import MODEL_ERRORS, Offered, Offers, ask
from .report import Judgement, PlainRun, Reach, Report, Scenario, Unsupported, Verdict
from .subjects import NotOffered, Subject, first_line
from .texts import text
from .yardstick import NARROW, TIMES, ULPS, Yardstick, jitter, name_of, narrowed, thinned, turn_of

_DTYPES = (torch.float64, torch.float32, torch.bfloat16)
PLAIN_PASS = Scenario("the plain pass")
_PASSES = 30  # plain passes of a short text before the first comparison; fewer if they are slow
SHARE = 0.25  # of the time that they may take


class NoReference(Exception):
    """A plain pass that cannot serve as a reference; `finding` says why."""

    def __init__(self, finding: Judgement):
        super().__init__(str(finding))
        self.finding = finding


class Reference:
    """One model: its finest dtype, its yardstick, and the logits that it should have."""

    def __init__(
        self, subject: Subject, seed: int, result: Report, expects: float | None, end: float
    ):
        self.seed = seed
        self.result = result
        self.end = end  # time.monotonic() after which nothing new starts
        self.refusals: list[Unsupported] = []
        asked = Offered(subject, Offers(), end, Reach())  # for anything, until the time is up
        self.offers = ask(asked)
        self.refusals += self.offers.refusals
        native = asked.plain(text(subject, 1, length=self.offers.shortest + 1)).dtype
        self.dtypes = self._dtypes(subject, asked) or {native: self._offered(subject)}
        self.as_given = self._as_given(subject, native)  # its cache may use another dtype there
        (self.dtype, self.subject), *coarser = self.dtypes.items()
        self.other: torch.dtype | None = None
        self.coarse: Subject | None = None
        if coarser:
            self.other, self.coarse = coarser[0]
        lossy = self.subject.expects if expects is None else expects
        self.yard = Yardstick(self.dtype, self.other, lossy)
        if self.other is None:
            note = f"only in {name_of(self.dtype)}: rounding is recognised by its size alone"
            result.notes.append(note)

    def _offered(self, subject: Subject) -> Offered:
        return Offered(subject, self.offers, self.end, self.result.reach)

    def _dtypes(self, subject: Subject, asked: Offered) -> dict[torch.dtype, Subject]:
        """The model in each dtype that it runs in, finest first.

        A dtype in which its cache fails is left out: the cache differs from the weights in dtype.
        """
        n = self.offers.shortest
        ids = text(subject, 1, length=n + 2)
        pieces = [ids[:, :n], ids[:, n : n + 1]]
        try:
            asked.cached(pieces)
            cached = True
        except (NotOffered, MemoryError, *MODEL_ERRORS):
            cached = False
        copies: dict[torch.dtype, Subject] = {}
        passes: list[Tensor] = []
        for dtype in _DTYPES:
            if len(copies) == 2:
                break  # the two finest are enough to measure rounding
            try:
                other = self._offered(subject_of(_converted(subject, dtype)))
                plain = other.plain(ids)
                if cached:
                    other.cached(pieces)
                passes.append(plain.double())
                copies[dtype] = other
            except (NotOffered, MemoryError, *MODEL_ERRORS) as error:
                self.result.notes.append(f"not in {name_of(dtype)}: {first_line(error)}")
        if len(copies) == 2 and torch.equal(*passes):
            fine, coarse = copies
            words = f"a copy's logits are bit-identical to those in {name_of(coarse)}"
            self.result.notes.append(f"not in {name_of(fine)}: {words}")
            del copies[fine]
        return copies

    def _as_given(self, subject: Subject, native: torch.dtype) -> Subject:
        """The model in its own dtype, as a copy on the CPU like the others if it can be copied."""
        if native in self.dtypes:
            return self.dtypes[native]
        try:
            return self._offered(subject_of(_converted(subject, native)))
        except (NotOffered, MemoryError, *MODEL_ERRORS):
            return self._offered(subject)

    # -------------------------------------------------------------- the plain pass

    def plain(self, ids: Tensor, subject: Subject | None = None) -> Tensor:
        """The logits of one pass.  (B, T) -> (B, T, V). Raises NoReference.

        If a pass returns only its last token's logits, those of passes that end at each token.
        """
        subject = subject or self.subject
        if self.offers.last_only:
            return self._prefixes(ids, subject)
        return self._pass(ids, subject)

    def _pass(self, ids: Tensor, subject: Subject) -> Tensor:
        try:
            return thinned(subject.plain(ids))
        except MODEL_ERRORS as error:
            words = (
                f"it stops at {len(ids)} texts of {ids.shape[1]} tokens, after others: "
                f"too long, or it keeps an earlier text ({first_line(error)})"
            )
            raise NoReference(Judgement(PLAIN_PASS, Verdict.BUG, words, math.inf)) from None

    def _prefixes(self, ids: Tensor, subject: Subject) -> Tensor:
        """The last logits of plain passes that end at each token, +inf before the shortest."""
        first = self.offers.shortest
        ends = range(first, ids.shape[1] + 1)
        logits = [self._pass(ids[:, :end], subject)[:, -1:] for end in ends]
        before = torch.full_like(logits[0], math.inf).expand(-1, first - 1, -1)
        return torch.cat([before, *logits], dim=1)

    def alone(self, ids: Tensor, subject: Subject | None = None) -> Tensor:
        """The plain pass of each text alone.  (B, T) -> (B, T, V)"""
        return torch.cat([self.plain(row[None], subject) for row in ids])

    def slow(self, n: int) -> bool:
        """Whether the plain passes before the first comparison would take too much of the time."""
        ids = text(self.subject, 1, self.seed, n)
        start = time.monotonic()
        self.plain(ids)
        return _PASSES * (time.monotonic() - start) > SHARE * (self.end - start)

    def first(self, n: int) -> tuple[Tensor, Tensor]:
        """Short texts and their expected logits; measures everything that moves a plain pass."""
        ids = text(self.subject, seed=self.seed, length=n)
        alone = self.alone(ids)
        self.yard.add(alone)
        self._repeated(ids, alone)
        self.measure(ids, alone)
        if self.yard.another_model:
            words = (
                f"the {name_of(self.dtype)} copy is another model: float32 moves logits by "
                f"{self.yard.moved:.1e}, out of a spread of {self.yard.spread:.1e}; does "
                f"to(dtype) keep the weights?"
            )
            comparison = Scenario(f"float32 against {name_of(self.dtype)}")
            finding = Judgement(comparison, Verdict.UNDECIDED, words, self.yard.moved)
            self.result.findings.append(finding)
        if self.offers.max_batch is None:
            whole = Scenario("the plain pass of a batch, against each text alone")
            batch = self.sample(whole, self.plain(ids), alone)
            if batch.verdict is Verdict.BUG:
                self.result.findings.append(batch)
        return ids, self._causal(ids, alone)

    def measure(self, ids: Tensor, alone: Tensor) -> None:
        """Tell the yardstick how far rounding moves the logits of these texts."""
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
        """Repeat the plain pass and measure the model's own noise, which is not a cache's fault."""
        if alone.isnan().any():
            words = "its logits are NaN: no cache can be judged"
            raise NoReference(Judgement(PLAIN_PASS, Verdict.BUG, words, math.nan))
        second = self.plain(ids[:1])
        off_second = self._apart(second, alone[:1])
        third = self.plain(ids[:1]) if off_second else second
        off_third = self._apart(third, alone[:1])
        if max(off_second, off_third) <= max(self.yard.limit, self.yard.base):
            return
        between = self._apart(second, third)
        again = Scenario("the plain pass, a second time")
        if between <= self.yard.base:
            words = f"off by {off_second:.1e}, then the same: it keeps something of an earlier text"
            raise NoReference(Judgement(again, Verdict.BUG, words, off_second))
        self.yard.noise = max(off_second, off_third, between)
        words = f"off by {self.yard.noise:.1e}: it varies by itself"
        if self.yard.noise > 0.03 * self.yard.spread:
            words += "; dropout is on (call eval()), or it draws in another way"
            turn = turn_of(second, alone[:1], self.yard.sizes(second, alone[:1]), 0)
            raise NoReference(Judgement(again, Verdict.BUG, words, self.yard.noise, 0, turn=turn))
        self.result.notes.append(f"{again}: {words}; less than six times that is not a finding")

    def _apart(self, a: Tensor, b: Tensor) -> float:
        """The largest difference between two passes; infinite if one of them has NaN."""
        return float(self.yard.sizes(a, b).max())

    def _causal(self, ids: Tensor, alone: Tensor) -> Tensor:
        """The logits that a cache must reproduce.  (B, T, V)

        If the plain pass looks ahead, those of plain passes that end at each token.
        """
        if self.offers.last_only:
            return alone  # already from such passes
        n = ids.shape[1]
        ends = {t for t in (1, 2, n // 3, n // 2, n - 1) if t >= self.offers.shortest}
        for t in sorted(ends):
            causal = Scenario("the plain pass, with later tokens and without them")
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
                return self._prefixes(ids, self.subject)
        return alone

    def texts(self, n: int, stage: int) -> tuple[Tensor, Tensor]:
        """Three texts of n tokens, and their logits.  (3, n), (3, n, V)"""
        if not stage:
            return self.first(n)
        ids = text(self.subject, seed=self.seed + stage, length=n)
        alone = self.alone(ids)
        self.measure(ids, alone)
        if self.offers.last_only:
            return ids, alone
        causal = Scenario(f"the plain pass of {n} tokens, with later ones and without them")
        # Without a coarser dtype only these samples measure rounding, so there are more of them.
        ends = (n // 2, n // 3, n - 1) if self.other is None else (n // 2,)
        for end in ends:
            ahead = self.sample(causal, self.plain(ids[:1, :end]), alone[:1, :end])
            if ahead.verdict is Verdict.BUG:
                ahead.words += ": it looks ahead, or depends on the length"
                self.result.findings.append(ahead)
                return ids, self._prefixes(ids, self.subject)
        return ids, alone

    # -------------------------------------------------------------- a verdict

    def judge(
        self,
        comparison: Scenario,
        got: Tensor,
        expected: Tensor,
        again: Callable[[], Tensor] | None = None,
        inside: float | None = None,
    ) -> Judgement:
        """Judge these logits by the size of their differences.  (B, T, V) twice

        `again` recomputes them, if float64 rounding is too small to explain the difference.
        `inside` is the difference that rounding explains in a dtype other than the finest.
        """
        if not isinstance(got, Tensor):
            kind = type(got).__name__
            raise ValueError(f"{comparison}: logits must be a tensor, (B, T, V), not {kind}")
        if got.shape != expected.shape:
            words = f"logits {tuple(got.shape)}, where {tuple(expected.shape)} are wanted"
            return Judgement(comparison, Verdict.BUG, words, math.inf)
        sizes = self.yard.sizes(got, expected)  # (B, T)
        diffs = sizes.amax(0)  # (T,)
        size = float(diffs.max())
        dtype = got.dtype if inside else self.dtype
        words = f"{_size_in_words(size, got)} in {name_of(dtype)}"
        yard = self.yard
        finest = inside is None
        inside = inside or yard.inside
        if size <= inside:
            verdict = Verdict.EQUAL if size <= ULPS * yard.ulp else Verdict.ROUNDING
            if finest and size > yard.limit and not yard.lossy and again is not None:
                verdict = self._float32_inside(again, size)
            explanation = f", where {yard.words}" if size else ""
            return Judgement(comparison, verdict, words + explanation, size)
        at = int((diffs > inside).nonzero()[0])
        words += f" from token {at} on, where {yard.words}"
        few = self._may_be_a_spike(sizes)
        if again is not None and few and narrowed(again) != 0:
            words += (
                f"; only a few tokens are off, and float32 moves one of a plain pass by "
                f"{yard.most:.1e}"
            )
            return Judgement(comparison, Verdict.UNDECIDED, words, size, at)
        if self._may_be_a_tie(got, sizes, at):
            words += "; only a few tokens are off, so a router's near tie may be the cause"
            return Judgement(comparison, Verdict.UNDECIDED, words, size, at)
        turn = turn_of(got, expected, sizes, at)
        return Judgement(comparison, Verdict.BUG, words, size, at, turn=turn)

    def sample(self, comparison: Scenario, got: Tensor, expected: Tensor) -> Judgement:
        """Judge a plain pass of another shape, and tell the yardstick its rounding."""
        finding = self.judge(comparison, got, expected)
        if finding.verdict is not Verdict.BUG:
            self.yard.shapes = max(self.yard.shapes, finding.size)
        return finding

    def _float32_inside(self, again: Callable[[], Tensor], size: float) -> Verdict:
        """Judge a size that float32 explains but float64 does not: is float32 used inside?"""
        found = narrowed(again)
        if found is None:  # the operations cannot be traced: are there float32 buffers?
            found = sum(b.dtype in NARROW for b in self._buffers())
        if found:
            words = "something computes in float32 even where the model is in float64: a bug"
            self.result.notes.append(f"{words} below {self.yard.inside:.1e} cannot be excluded")
            return Verdict.ROUNDING
        words = f"off by {size:.1e} with no float32 inside: more than float64 explains"
        self.result.notes.append(words)
        return Verdict.UNDECIDED

    def _buffers(self) -> list[Tensor]:
        """The model's buffers, which include its tables and caches."""
        module = getattr(self.subject, "model", None)
        return list(module.buffers()) if isinstance(module, nn.Module) else []

    def _may_be_a_spike(self, sizes: Tensor) -> bool:
        """Whether only a few tokens differ, and by no more than float32 inside may move them.

        (B, T)
        """
        most = min(self.yard.most, self.yard.ceiling)
        if self.other != torch.float32 or not float(sizes.max()) <= TIMES * most:
            return False
        return int((sizes > self.yard.inside).sum()) <= max(2, 0.02 * sizes.numel())

    def _may_be_a_tie(self, got: Tensor, sizes: Tensor, at: int) -> bool:
        """Whether a 16-bit model's logits differ at so few tokens that a tie may be the cause.

        (B, T, V), (B, T)
        """
        if self.other is not None or self.yard.eps < 1e-4 or got.isnan().any():
            return False
        return float((sizes[:, at:] > self.yard.inside).float().mean()) < 0.5


def _converted(subject: Subject, dtype: torch.dtype) -> Any:
    """The model in this dtype. Raises NotOffered, and whatever its own code raises.

    Your object is copied before it is converted, because its `to` may work in place.
    """
    if subject.copies:
        return subject.to(dtype)
    try:
        return copy.deepcopy(subject).to(dtype)
    except (TypeError, RuntimeError):  # it cannot be copied
        return subject.to(dtype)


def _size_in_words(size: float, got: Tensor) -> str:
    if math.isinf(size):
        return "NaN" if got.isnan().any() else "infinite"
    return f"off by {size:.1e}" if size else "bit-identical"
