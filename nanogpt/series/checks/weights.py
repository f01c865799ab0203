"""The check of attention_weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, form, gradient, numbers

HIDDEN = float("-inf")
LATE = "you mask after the softmax, so the rows no longer sum to 1: mask the scores before it."
DETACHED = (
    "no gradient flows through your weights, so queries and keys would never learn: use no "
    "detach(), no_grad() or new torch.tensor(…) on the way."
)


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor, scale: Any = None, hide: Any = None, share: Any = None
) -> Tensor:
    """The reference solution. Each step can be replaced, which is how mistakes are made."""
    factor = scale(q, k) if scale else q.shape[-1] ** -0.5
    scores = q @ k.mT * factor
    scores = hide(scores, mask) if hide else scores.masked_fill(~mask, HIDDEN)
    weights: Tensor = share(scores) if share else scores.softmax(-1)
    return weights


# ------------------------------------------------------------------ driver


def run_weights(
    answer: Answer,
    lead: tuple[int, ...],
    T: int,
    S: int,
    hs: int,
    factor: float = 1.0,
    low: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Pairs:
    """Two calls of the same shapes. low: the lowest scores are the visible ones."""
    for call, turn in enumerate(("", "in a second call of the same shapes, ")):
        q = factor * numbers(*lead, T, hs, seed=2 * call + 1, dtype=dtype)
        k = numbers(*lead, S, hs, seed=2 * call + 2, dtype=dtype)
        mask = some_mask(T, S, seed=call)
        if low:
            scores = (q @ k.mT).flatten(0, -3)[0]
            mask = scores <= scores.median(-1, keepdim=True).values
        given = Arguments(q=q, k=k, mask=mask)
        hidden = ~mask
        weights = answer(q, k, mask)
        yield from given.changes()
        yield f"{turn}the shape of the weights", form(weights)
        if form(weights) == str((*lead, T, S)):
            leaked = (weights * hidden) > 0
            yield f"{turn}a key that the mask hides gets some weight", bool(leaked.any())
        yield f"{turn}the weights", weights


def run_gradients(answer: Answer, T: int, S: int, hs: int) -> Pairs:
    """The gradients of queries and keys."""
    inputs = {"q": numbers(2, T, hs, seed=4), "k": numbers(2, S, hs, seed=5)}
    for tensor in inputs.values():
        tensor.requires_grad_()
    weights = answer(*inputs.values(), some_mask(T, S))
    asked = all(tensor.requires_grad for tensor in inputs.values())
    yield "you turn off the gradients of the inputs", not asked
    yield "a gradient flows through the weights", weights.requires_grad
    yield "the weights", weights
    total = (weights * numbers(2, T, S, seed=6)).sum()
    for name, found in gradient(total, inputs).items():
        yield f"the gradient of {name}", found


def some_mask(T: int, S: int, seed: int = 0) -> Tensor:
    """A mask that is not a triangle, with at least one key for each query.  -> (T, S)"""
    mask = numbers(T, S, seed=30 + seed) > 0
    mask[torch.arange(T), torch.arange(T) % S] = True
    return mask


# ------------------------------------------------------------------ mistakes


def weights_by(**step: Any) -> Answer:
    """attention_weights with one step replaced."""
    return partial(attention_weights, **step)


def without_maximum(scores: Tensor) -> Any:
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def maximum_of_all(scores: Tensor) -> Any:
    powers = (scores - scores.max()).exp()
    return powers / powers.sum(-1, keepdim=True)


def maximum_before_mask(q: Tensor, k: Tensor, mask: Tensor) -> Any:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    powers = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    return powers / powers.sum(-1, keepdim=True)


def hide_late(q: Tensor, k: Tensor, mask: Tensor) -> Any:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) * mask


def detached(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return attention_weights(q, k, mask).detach()


def detached_input(place: int) -> Answer:
    def weights(*given: Tensor) -> Tensor:
        parts = [*given]
        parts[place] = parts[place].detach()
        return attention_weights(*parts)

    return weights


def triangle(q: Tensor, k: Tensor, mask: Tensor, right: bool = False) -> Tensor:
    diagonal = k.shape[-2] - q.shape[-2] if right else 0
    return attention_weights(q, k, torch.ones_like(mask).tril(diagonal))


# Mistakes that a Head can also make.
STEP_MISTAKES: dict[str, Answer] = {
    "the scores are not divided by √hs.": weights_by(scale=lambda q, k: 1),
    "the scores are divided by hs, not by its square root √hs.": weights_by(
        scale=lambda q, k: 1 / q.shape[-1]
    ),
    "the scores are multiplied by √hs: divide.": weights_by(scale=lambda q, k: q.shape[-1] ** 0.5),
    "the scores are divided by √T, the number of queries: hs is q.shape[-1].": weights_by(
        scale=lambda q, k: q.shape[-2] ** -0.5
    ),
    "the scores are divided by √S, the number of keys: hs is q.shape[-1].": weights_by(
        scale=lambda q, k: k.shape[-2] ** -0.5
    ),
    "the scores are divided by √B, the batch size: hs is q.shape[-1].": weights_by(
        scale=lambda q, k: q.shape[0] ** -0.5
    ),
    "the scores are halved: √hs is 2 only for hs = 4; hs is q.shape[-1].": weights_by(
        scale=lambda q, k: 0.5
    ),
    "√hs is truncated to an integer: divide by the root itself.": weights_by(
        scale=lambda q, k: 1 / int(q.shape[-1] ** 0.5)
    ),
    "the mask is not used, so a query sees the future.": weights_by(hide=lambda s, m: s),
    "where the mask is True a query may attend, but you hide it there.": weights_by(
        hide=lambda s, m: s.masked_fill(m, HIDDEN)
    ),
    "a score of 0 still gets weight, because exp(0) is 1: hide with -inf.": weights_by(
        hide=lambda s, m: s.masked_fill(~m, 0.0)
    ),
    "0 times infinity is NaN: hide with masked_fill.": weights_by(
        hide=lambda s, m: s + (1 - m.to(s.dtype)) * HIDDEN
    ),
    "every query gets the last one's mask: each has its own row.": weights_by(
        hide=lambda s, m: s.masked_fill(~m[-1], HIDDEN)
    ),
    "the softmax runs down the columns: each row, a query, must sum to 1.": weights_by(
        share=lambda s: s.softmax(-2)
    ),
    "the softmax runs over the batch: its dimension is the last, -1.": weights_by(
        share=lambda s: s.softmax(0)
    ),
    "these are log-weights: use softmax, not log_softmax.": weights_by(
        share=lambda s: s.log_softmax(-1)
    ),
    "these are the scores; the softmax is missing.": weights_by(share=lambda s: s),
    "a sigmoid sees one score at a time: softmax distributes 1 over the keys.": weights_by(
        share=torch.sigmoid
    ),
    "exp() of a large score overflows: subtract the maximum of each row's own visible scores "
    "first, or use softmax, which does.": weights_by(share=without_maximum),
    "the maximum of all rows is subtracted, which leaves 0 / 0 in a low row: subtract each "
    "row's own, or use softmax, which does.": weights_by(share=maximum_of_all),
    "the maximum is taken before masking, so it may be a hidden score: take that of the visible "
    "scores, or use softmax.": maximum_before_mask,
    "every text in the batch gets the first one's weights: each has its own.": weights_by(
        share=lambda s: s.softmax(-1)[:1].expand_as(s)
    ),
    LATE: hide_late,
    DETACHED: detached,
}

ATTENTION_WEIGHTS = Exercise(
    notebook="01",
    hints=(
        "For one query, which numbers measure how well each key matches, and what turns them "
        "into weights that sum to 1?",
        "`k.transpose(-2, -1)` is `k.T` for tensors with batch dimensions. `masked_fill(~mask, "
        "value)` writes a value where the mask is False. hs is `q.shape[-1]`.",
        "scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, then "
        'scores.masked_fill(~mask, float("-inf")).softmax(-1)',
    ),
    right=attention_weights,
    cases=[
        Case(run_weights, lead=(3,), T=4, S=7, hs=5, dtype=torch.float32),
        Case(run_weights, lead=(), T=5, S=6, hs=3),
        Case(run_weights, lead=(2, 3), T=4, S=7, hs=5),
        Case(run_weights, lead=(9,), T=7, S=4, hs=6),  # fewer keys than queries
        Case(run_weights, lead=(2,), T=1, S=11, hs=17),
        Case(run_gradients, T=4, S=7, hs=5),
        Case(run_weights, lead=(2,), T=5, S=8, hs=6, factor=300.0, low=True),
        Case(run_weights, lead=(2,), T=5, S=8, hs=6, factor=1000.0),  # exp() overflows
        Case(run_weights, lead=(2,), T=3, S=1200, hs=8),
    ],
    mistakes=STEP_MISTAKES
    | {
        "queries and keys are swapped: q @ k.transpose(-2, -1).": (
            lambda q, k, mask: attention_weights(k, q, mask)
        ),
        "the keys are summed over the batch: each text has its own.": (
            lambda q, k, mask: attention_weights(q, k.sum(0) if k.ndim > 2 else k, mask)
        ),
        "you make your own triangular mask, aligned top left: use the one passed in.": triangle,
        "you make your own triangular mask, aligned bottom right: use the one passed in.": (
            partial(triangle, right=True)
        ),
        "the queries are detached, so the gradient of q is 0: nothing would be learned.": (
            detached_input(0)
        ),
        "the keys are detached, so the gradient of k is 0: nothing would be learned.": (
            detached_input(1)
        ),
    },
    advice={
        "in a second call": "The first call is right: keep nothing from one call to the next.",
        "the mask hides": "Before the softmax, hide it with -inf.",
        "must match the size": "k.transpose(-2, -1) swaps the last two dimensions of the keys.",
        "the shape of": "One row per query, one number per key: k.transpose(-2, -1).",
        "a gradient flows": DETACHED,
        "the gradient of": "The weights are right: something on the way is detached.",
    },
    axes=[("text", "query", "key"), ("text", "head", "query", "key"), ("query", "key")],
)
