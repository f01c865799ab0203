"""The verdict on logits, by the size of their differences: rounding, or a bug?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .report import Judgement, Verdict
from .yardstick import TIMES, ULPS, Yardstick, name_of, traced, turn_of


def sizes_of(yard: Yardstick, got: Sequence[Tensor], expected: Sequence[Tensor]) -> list[Tensor]:
    """How far each token's logits are off, for each text.  (T, V) twice -> (T,)"""
    return [yard.sizes(a[None], b[None])[0] for a, b in zip(got, expected, strict=True)]


def first_wrong(sizes: Sequence[Tensor], inside: float) -> list[int | None]:
    """The first token of each text that is off by more than `inside`."""
    found = []
    for one in sizes:
        wrong = (one > inside).nonzero()
        found.append(int(wrong[0]) if len(wrong) else None)
    return found


def judge(
    yard: Yardstick,
    name: str,
    got: Sequence[Tensor],
    expected: Sequence[Tensor],
    again: Callable[[], object] | None = None,
) -> Judgement:
    """Judge the logits of some texts.  (T, V) twice for each

    `again` computes them once more, if float64 rounding is too small to explain a difference.
    """
    # 1. As many logits as tokens?
    for a, b in zip(got, expected, strict=True):
        if a.shape != b.shape:
            words = f"logits {tuple(a.shape)}, where {tuple(b.shape)} are wanted"
            return Judgement(name, Verdict.BUG, words, math.inf)
    if not got:
        return Judgement(name, Verdict.EQUAL, "nothing was read")
    # 2. The largest difference, in words.
    sizes = sizes_of(yard, got, expected)
    size = max(float(one.max()) for one in sizes)
    words = f"{_size_in_words(size, got)} in {name_of(yard.dtype)}"
    inside = yard.inside
    # 3. It is explained; but is it by float32 inside of a float64 model?
    if size <= inside:
        verdict = Verdict.EQUAL if size <= ULPS * yard.ulp else Verdict.ROUNDING
        if size:
            words += f", where {yard.words}"
        if size > yard.limit and not yard.lossy and again is not None:
            seen = traced(again)
            if seen.seen and not seen.narrow:
                words += "; with no float32 inside, that is more than float64 explains"
                verdict = Verdict.UNDECIDED
            else:
                words += "; something computes in float32 even where the model is in float64, and "
                words += "hides a bug smaller than that"
        return Judgement(name, verdict, words, size)
    # 4. It is not: a bug, unless only a few tokens are off.
    starts = first_wrong(sizes, inside)
    index = next(i for i, at in enumerate(starts) if at is not None)
    at = starts[index]
    assert at is not None
    words += f" from token {at} on, where {yard.words}"
    if again is not None and _may_be_a_spike(yard, sizes):
        seen = traced(again)
        if seen.narrow or not seen.seen:
            words += "; only a few tokens are off, and float32 moves one of a plain pass by "
            words += f"{yard.most:.1e}"
            return Judgement(name, Verdict.UNDECIDED, words, size, at)
    turn = turn_of(got[index][None], expected[index][None], sizes[index][None], at)
    return Judgement(name, Verdict.BUG, words, size, at, turn=turn)


def _may_be_a_spike(yard: Yardstick, sizes: Sequence[Tensor]) -> bool:
    """Whether only a few tokens differ, and by no more than float32 inside may move them."""
    most = min(yard.most, yard.ceiling)
    every = torch.cat(list(sizes))
    if yard.other != torch.float32 or not float(every.max()) <= TIMES * most:
        return False
    return int((every > yard.inside).sum()) <= max(2, 0.02 * every.numel())


def _size_in_words(size: float, got: Sequence[Tensor]) -> str:
    if math.isinf(size):
        return "NaN" if any(one.isnan().any() for one in got) else "infinite"
    return f"off by {size:.1e}" if size else "bit-identical"
