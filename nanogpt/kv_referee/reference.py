"""The logits that a model should have: its plain passes, and what moves them.

A model is run in float64 if possible. What may move a plain pass is measured first: a batch, later
tokens, repetition, fewer bits. yardstick.py learns from each.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .contract import Model
from .errors import ERRORS, NoLogits, OutOfTime, first_line
from .judging import judge
from .limits import find_limits
from .report import Judgement, Report, Verdict
from .scripts import plain_script
from .texts import BRIEF, LEAST
from .yardstick import Yardstick, name_of, traced, turn_of

_DTYPES = (torch.float64, torch.float32, torch.bfloat16)
_KEPT = 200  # texts whose logits are remembered
PLAIN_PASS = "the plain pass"


class NoReference(Exception):
    """A plain pass that cannot serve as a reference; `finding` says why."""

    def __init__(self, finding: Judgement):
        super().__init__(str(finding))
        self.finding = finding


class Reference:
    """One model: its finest dtype, its yardstick, and the logits that its texts should have."""

    def __init__(self, model: Model, seed: int, result: Report, expects: float | None):
        self.seed = seed
        self.result = result
        find_limits(model)
        self.limits = model.limits
        self._avoid_ties(model)
        native = model.plain(self._short(model)).dtype
        self.dtypes = self._dtypes(model) or {native: model}
        (self.dtype, self.model), *coarser = self.dtypes.items()
        self.given = model  # as it was given
        self.other: torch.dtype | None = None
        self.coarse: Model | None = None
        if coarser:
            self.other, self.coarse = coarser[0]
        self.yard = Yardstick(self.dtype, self.other, model.expects if expects is None else expects)
        if self.other is None:
            note = f"only in {name_of(self.dtype)}: rounding is recognised by its size alone"
            result.notes.append(note)
        self.plain_starts = self._plain_starts()  # whether a plain pass is a new session's first
        if self.plain_starts:
            words = "its plain pass starts a session: a mistake that both share does not show"
            result.notes.append(words)
        self.causal = True  # whether the logits of a token do not depend on later ones
        self._known: dict[tuple[int, ...], Tensor] = {}  # the logits of texts, (T, V)

    def _avoid_ties(self, model: Model) -> None:
        """Read texts without repeated tokens if topk would choose among equal numbers in others.

        It then chooses by the place in memory, which a cache may change.
        """
        n = min(BRIEF, self.limits.longest or BRIEF)
        most = model.vocab_size // 2  # each column has two tokens of its own
        if most < LEAST or not traced(lambda: model.plain(model.text(1, 0, n))).ties:
            return
        self.limits.distinct = True
        self.limits.longest = min(self.limits.longest or most, most)
        self.result.notes.append(
            "topk chooses among equal numbers if a text repeats a token, so no text does"
        )

    def _short(self, model: Model) -> Tensor:
        return model.text(1, 0, self.limits.shortest + 1)

    def _dtypes(self, model: Model) -> dict[torch.dtype, Model]:
        """The model in each dtype that it runs in, finest first.

        A dtype in which its cache fails is left out: the cache differs from the weights in dtype.
        """
        ids = model.text(1, 0, self.limits.shortest + 2)

        def read(one: Model) -> None:
            session = one.start(one.caches[0], 1, ids.shape[1])
            session.read(ids[:, : self.limits.shortest])
            session.read(ids[:, self.limits.shortest : -1])

        cached = works(lambda: read(model))
        copies: dict[torch.dtype, Model] = {}
        passes: list[Tensor] = []
        for dtype in _DTYPES:
            if len(copies) == 2:
                break  # the two finest are enough to measure rounding
            try:
                other = model.to(dtype)
                plain = other.plain(ids)
                if cached:
                    read(other)
                passes.append(plain.double())
                copies[dtype] = other
            except OutOfTime:
                raise
            except ERRORS as error:
                self.result.notes.append(f"not in {name_of(dtype)}: {first_line(error)}")
        if len(copies) == 2 and torch.equal(*passes):
            fine, coarse = copies
            words = f"a copy's logits are bit-identical to those in {name_of(coarse)}"
            self.result.notes.append(f"not in {name_of(fine)}: {words}")
            del copies[fine]
        return copies

    def _plain_starts(self) -> bool:
        """Whether plain(ids) calls start(rows): models such as gpt-fast's have no other pass."""
        method = getattr(type(self.model.given), "start", None)
        code = getattr(method, "__code__", None)
        called = []

        def profile(frame: Any, event: str, argument: Any) -> None:
            if event == "call" and frame.f_code is code:
                called.append(True)

        if sys.getprofile() is not None:  # a profiler, which is left alone
            return False
        sys.setprofile(profile)
        try:
            self.model.plain(self._short(self.model))
        finally:
            sys.setprofile(None)
        return bool(called)

    # -------------------------------------------------------------- the plain pass

    def plain(self, ids: Tensor, model: Model | None = None) -> Tensor:
        """The logits of one pass of these texts.  (B, T) -> (B, T, V). Raises NoReference.

        If a pass returns only its last token's logits, those of passes that end at each token.
        """
        model = model or self.model
        if self.limits.last_only:
            return self._prefixes(ids, model)
        return self._pass(ids, model)

    def _pass(self, ids: Tensor, model: Model) -> Tensor:
        try:
            return model.plain(ids)
        except (OutOfTime, NoLogits):
            raise
        except ERRORS as error:
            words = (
                f"it stops at {len(ids)} texts of {ids.shape[1]} tokens, after others: "
                f"too long, or it keeps an earlier text ({first_line(error)})"
            )
            raise NoReference(Judgement(PLAIN_PASS, Verdict.BUG, words, math.inf)) from None

    def _prefixes(self, ids: Tensor, model: Model) -> Tensor:
        """The last logits of plain passes that end at each token, +inf before the shortest."""
        first = min(self.limits.shortest, ids.shape[1])
        ends = range(first, ids.shape[1] + 1)
        logits = [self._pass(ids[:, :end], model)[:, -1:] for end in ends]
        before = torch.full_like(logits[0], math.inf).expand(-1, first - 1, -1)
        return torch.cat([before, *logits], dim=1)

    def alone(self, ids: Tensor, model: Model | None = None) -> Tensor:
        """The plain pass of each text alone.  (B, T) -> (B, T, V)"""
        return torch.cat([self.plain(row[None], model) for row in ids])

    def expected(self, texts: list[Tensor]) -> list[Tensor]:
        """The logits that each text must have, whoever reads it.  (T,) -> (T, V)

        A text that begins another one has the logits of that beginning: one pass serves both.
        """
        found: dict[int, Tensor] = {}
        for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
            key = tuple(texts[i].tolist())
            longer = (k for k in self._known if k[: len(key)] == key)
            whole = next(longer, None)
            if whole is None:
                ids = texts[i][None]
                read = self.plain if self.causal else self._ending
                self._remember(key, read(ids)[0])
                whole = key
            found[i] = self._known[whole][: len(key)]
        return [found[i] for i in range(len(texts))]

    def _ending(self, ids: Tensor) -> Tensor:
        return self._prefixes(ids, self.model)

    def _remember(self, key: tuple[int, ...], logits: Tensor) -> None:
        """Keep the logits of a text; the oldest of too many are dropped.  (T, V)"""
        self._known[key] = logits
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Drop the logits of earlier texts: the next ones have another length."""
        self._known.clear()

    # -------------------------------------------------------------- what moves it

    def first(self, n: int) -> None:
        """Measure everything that moves a plain pass, on short texts."""
        ids = self.model.text(3, self.seed, n)
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
            name = f"float32 against {name_of(self.dtype)}"
            self.result.findings.append(Judgement(name, Verdict.UNDECIDED, words, self.yard.moved))
        if self.limits.max_batch is None:
            name = "the plain pass of a batch, against each text alone"
            batch = self.sample(name, self.plain(ids), alone)
            if batch.verdict is Verdict.BUG:
                self.result.findings.append(batch)
        self._check_causal(ids, alone, [1, n // 2, n - 1])

    def longer(self, n: int) -> None:
        """Measure the same on longer texts."""
        ids = self.model.text(3, self.seed + n, n)
        alone = self.alone(ids)
        self.measure(ids, alone)
        for row, logits in zip(ids.tolist(), alone, strict=True):
            self._remember(tuple(row), logits)
        # Without a coarser dtype only these samples measure rounding, so there are more of them.
        self._check_causal(ids, alone, [n // 3, n // 2, n - 1] if self.other is None else [n // 2])

    def measure(self, ids: Tensor, alone: Tensor) -> None:
        """Tell the yardstick how far rounding moves the logits of these texts."""
        self.yard.add(alone)
        if self.coarse is not None:
            self.yard.add(alone, self.alone(ids, self.coarse))

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
        again = "the plain pass, a second time"
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

    def _check_causal(self, ids: Tensor, alone: Tensor, ends: list[int]) -> None:
        """Note whether the plain pass looks ahead: then passes that end at each token count."""
        if self.limits.last_only or not self.causal:
            return  # already from such passes
        name = "the plain pass, with later tokens and without them"
        found: Judgement | None = None
        sizes: list[Tensor] = []
        for end in (end for end in ends if end >= self.limits.shortest):
            again = partial(self.plain, ids[:1, :end])
            got = again()
            ahead = self.sample(name, got, alone[:1, :end], again)
            if ahead.verdict is not Verdict.BUG:
                continue
            if self.model.bidirectional:
                raise ValueError(
                    f"{self.model.name} is bidirectional: "
                    f"an encoder has a cache where it is built with is_decoder=True"
                )
            sizes.append(self.yard.sizes(got, alone[:1, :end])[0])
            if found is None:
                found = ahead
                found.code = plain_script(self.model, found, ids[:1], end)
        if found is None:
            return
        found.words += (
            ": it looks ahead, or depends on the length; instead of it the cache is compared "
            "with plain passes that end at each token"
        )
        # Without a mask all tokens move. Experts that drop tokens beyond their capacity move a few.
        if float((torch.cat(sizes) > self.yard.inside).float().mean()) < 0.5:
            found.verdict = Verdict.UNDECIDED
            found.words += "; only some tokens move, as with experts that drop tokens"
        self.result.findings.append(found)
        self.causal = False
        self.forget()

    def sample(
        self,
        name: str,
        got: Tensor,
        expected: Tensor,
        again: Callable[[], Tensor] | None = None,
    ) -> Judgement:
        """Judge a plain pass of another shape, and tell the yardstick its rounding."""
        finding = judge(self.yard, name, list(got), list(expected), again)
        if finding.verdict is not Verdict.BUG:
            self.yard.shapes = max(self.yard.shapes, finding.size)
        return finding


def works(ask: Callable[[], object]) -> bool:
    """Whether this raises nothing."""
    try:
        ask()
    except OutOfTime:
        raise
    except ERRORS:
        return False
    return True
