"""Notebook 13, blank 1: share_keys, the keys of grouped-query attention for every query head."""

import torch

from ..drivers import Arguments, form, gradient, numbers
from ..page import Blank, Case


def share_keys(k, n_head):
    """Keys for n_head heads; neighbouring heads share them.  (B, Hkv, S, hs) -> (B, n_head, S, hs)"""
    return k.repeat_interleave(n_head // k.shape[1], dim=1)


# ------------------------------------------------------------------ what a check runs


def run_keys(answer, heads, n_head, B=2, S=4, hs=5, dtype=torch.float64):
    """The keys of every query head."""
    k = numbers(B, S, heads, hs, dtype=dtype).transpose(1, 2)  # a view, as in a model
    given = Arguments(k=k)
    got = answer(k, n_head)
    yield from given.changes()
    yield f"the shape, from {form(k)}", form(got)
    yield "the dtype of the keys", str(got.dtype)
    yield "the KV head that each query head gets", [source(got[:, h], k) for h in range(n_head)]
    yield "the keys", got


def source(keys, k):
    """The KV head in k that has these keys; None if there is none."""
    return next((g for g in range(k.shape[1]) if torch.equal(keys, k[:, g])), None)


def run_gradient(answer):
    """The keys' gradients from all query heads that read them."""
    k = numbers(2, 2, 3, 4).requires_grad_()
    shared = answer(k, 6)
    yield (
        "no gradient flows through your keys, so a model would not learn",
        not shared.requires_grad,
    )
    total = (shared * numbers(2, 6, 3, 4, seed=1)).sum()
    yield "the gradient of k", gradient(total, {"k": k})["k"]


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="13.1",
    minutes=6,
    solution=share_keys,
    cases=[
        Case(run_keys, heads=3, n_head=9),
        Case(run_keys, heads=2, n_head=4),
        Case(run_keys, heads=1, n_head=4),
        Case(run_keys, heads=2, n_head=2),
        Case(run_keys, heads=2, n_head=6, B=1, S=1),
        Case(run_keys, heads=4, n_head=8, B=4, S=4, hs=4),
        Case(run_keys, heads=2, n_head=10, B=3, S=7, hs=2, dtype=torch.bfloat16),
        Case(run_gradient),
    ],
    mistakes={
        "the keys are dealt out like cards: neighbours share, so the first query heads all get the first keys.": [
            "k.repeat_interleave(n_head // k.shape[1], dim=1) -> k.repeat(1, n_head // k.shape[1], 1, 1)"
        ],
        "the KV heads are in reverse order: query head 0 gets the first.": [
            "dim=1) -> dim=1).flip(1)"
        ],
        "the keys are detached, so a model would not learn: leave detach() and no_grad() out.": [
            "k.repeat -> k.detach().repeat"
        ],
    },
    wrong=[
        "k.repeat_interleave(n_head // k.shape[1], dim=1) -> k.expand(-1, n_head, -1, -1)",
        "dim=1) -> dim=1).float()",
        "return -> k = k / 2\n    return",
        "k.repeat_interleave(n_head // k.shape[1], dim=1) -> k",
        "n_head // k.shape[1] -> k.shape[1]",
    ],
    right=[
        """
def share_keys(k, n_head):
    B, H, S, hs = k.shape
    return k[:, :, None].expand(B, H, n_head // H, S, hs).reshape(B, n_head, S, hs)
""",
        """
def share_keys(k, n_head):
    group = n_head // k.size(1)
    return torch.stack([k[:, h // group] for h in range(n_head)], dim=1)
""",
        """
def share_keys(k, n_head):
    heads = torch.arange(n_head) * k.shape[1] // n_head
    return k[:, heads]
""",
    ],
    hints=(
        "With 3 KV heads and 9 query heads, in which order must the keys be: 0 1 2 0 1 2 0 1 2, or 0 0 0 1 1 1 2 2 2?",
        "Each KV head serves `n_head // k.shape[1]` query heads. `torch.repeat_interleave` repeats each entry of a dimension before moving on to the next.",
        "return k.repeat_interleave(n_head // k.shape[1], dim=1)",
    ),
    advice={
        "the shape": "(B, n_head, S, hs): each KV head n_head // k.shape[1] times, along dimension 1.",
        "the KV head": "Neighbours share: query head h gets KV head h // group, where group is n_head // k.shape[1].",
    },
    axes=[("text", "position", "number"), ("text", "head", "position", "number")],
)
