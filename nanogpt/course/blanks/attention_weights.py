"""Notebook 01, blank 1: attention_weights, the masked and scaled softmax of attention."""

import torch

from ..drivers import Arguments, form, gradient, numbers
from ..page import Blank, Case


def attention_weights(q, k, mask):
    """The weight of each value for each query.  (…, T, hs), (…, S, hs), (T, S) -> (…, T, S)"""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # divided by √hs
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


# ------------------------------------------------------------------ what a check runs


def run_weights(answer, lead, T, S, hs, factor=1.0, low=False, dtype=torch.float64):
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


def run_gradients(answer, T, S, hs):
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


def some_mask(T, S, seed=0):
    """A mask that is not a triangle, with at least one key for each query.  -> (T, S)"""
    mask = numbers(T, S, seed=30 + seed) > 0
    mask[torch.arange(T), torch.arange(T) % S] = True
    return mask


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="01.1",
    minutes=6,
    solution=attention_weights,
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
    mistakes={
        "the scores are not divided by √hs.": [" * q.shape[-1] ** -0.5 -> "],
        "cosines are compared: a score is the product of query and key, divided by √hs.": [
            "scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 -> "
            "scores = (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).mT"
        ],
        "where the mask is True a query may attend, but you hide it there.": ["~mask -> mask"],
        "a hidden score of 0, or one that is only a little lower, still gets weight: exp(0) is 1. "
        "Set it to -inf.": (
            ['float("-inf") -> 0.0'],
            ['scores.masked_fill(~mask, float("-inf")) -> (scores + mask.to(scores.dtype))'],
        ),
        "the rows no longer sum to 1: mask and scale the scores before the softmax, not the weights "
        "after it.": (
            ['masked_fill(~mask, float("-inf")).softmax(-1) -> softmax(-1) * mask'],
            [" * q.shape[-1] ** -0.5 -> ", ".softmax(-1) -> .softmax(-1) * q.shape[-1] ** -0.5"],
        ),
        "the softmax runs along another dimension: each row, a query's keys, must sum to 1, so it is "
        "softmax(-1).": (
            ["softmax(-1) -> softmax(-2)"],
            ["softmax(-1) -> softmax(0)"],
        ),
        "you make your own triangular mask: use the one passed in.": [
            "~mask -> torch.ones_like(mask).triu(1)"
        ],
    },
    wrong=[
        'float("-inf") -> -20',
        "scores.masked -> scores.clamp(-50, 50).masked",
        "~mask -> ~mask[-1]",
        ".softmax(-1) -> .softmax(-1)[:1].expand_as(scores)",
        "softmax(-1) -> softmax(-1).to(torch.bfloat16).to(q.dtype)",
    ],
    right=[
        """
def attention_weights(q, k, mask):
    if q.ndim > 2:
        return torch.stack([attention_weights(a, b, mask) for a, b in zip(q, k)])
    rows = []
    for i in range(len(q)):
        row = torch.zeros(len(k), dtype=q.dtype)
        here = mask[i].nonzero()[:, 0]
        row = row.index_add(0, here, (k[here] @ q[i] / len(q[i]) ** 0.5).softmax(0))
        rows.append(row)
    return torch.stack(rows)
""",
        """
def attention_weights(q, k, mask):
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, -1e9).softmax(-1).to(q.dtype)
""",
        """
def attention_weights(q, k, mask):
    eye = torch.eye(k.shape[-2], dtype=q.dtype).expand(*k.shape[:-1], k.shape[-2])
    return F.scaled_dot_product_attention(q, k, eye, attn_mask=mask)
""",
        """
def attention_weights(q, k, mask):
    scores = q.matmul(k.swapaxes(-1, -2)).mul_(q.size(-1) ** -0.5)
    scores[..., ~mask] = float("-inf")
    return scores.softmax(-1)
""",
    ],
    hints=(
        "For one query, which numbers measure how well each key matches, and what turns them into weights that sum to 1?",
        "`k.transpose(-2, -1)` is `k.T` for tensors with batch dimensions. `masked_fill(~mask, value)` writes a value where the mask is False. hs is `q.shape[-1]`.",
        'scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, then scores.masked_fill(~mask, float("-inf")).softmax(-1)',
    ),
    advice={
        "in a second call": "The first call is right: keep nothing from one call to the next.",
        "the mask hides": "Before the softmax, hide it with -inf.",
        "Expected size for first two dimensions": "k.transpose(-2, -1) swaps the last two dimensions of the keys.",
        "must match the size": "k.transpose(-2, -1) swaps the last two dimensions of the keys.",
        "the shape of": "One row per query, one number per key: the weights alone, not yet applied to values.",
        "Dimension out of range": "There may be any number of leading dimensions, or none: count from the end, k.transpose(-2, -1).",
        "a gradient flows": "Queries and keys would never learn: use no detach(), no_grad() or new torch.tensor(…) on the way.",
    },
    axes=[("text", "query", "key"), ("text", "head", "query", "key"), ("query", "key")],
)
