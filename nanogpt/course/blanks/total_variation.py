"""Notebook 07, blank 2: total_variation, how far apart two distributions are."""

import torch

from ..drivers import Arguments, form, numbers
from ..page import Blank, Case


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Half the sum of the absolute differences.  (…, V), (…, V) -> (…)"""
    return (p - q).abs().sum(-1) / 2


# ------------------------------------------------------------------ what a check runs

BY_HAND = (
    [[0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.5, 0.25, 0.25, 0.0]],
    [[0.25, 0.5, 0.25, 0.0], [0.0, 0.0, 0.5, 0.5], [0.5, 0.25, 0.25, 0.0]],
)


def run_by_hand(answer):
    """Three pairs of distributions over four tokens: close, disjoint, equal."""
    p, q = (torch.tensor(rows) for rows in BY_HAND)
    yield from compare(answer, p, q)


def run_pairs(answer, shape, dtype=torch.float64, factor=1.0):
    """Pairs of random distributions over the last dimension."""
    p, q = ((factor * numbers(*shape, seed=seed)).softmax(-1).to(dtype) for seed in (1, 2))
    yield from compare(answer, p, q)


def compare(answer, p, q):
    """The distances of pairs of distributions; a wider dtype than p's is accepted."""
    given = Arguments(p=p, q=q)
    got = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the distances", form(got)
    yield "the distances", got.double() if got.is_floating_point() else got


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="07.2",
    minutes=3,
    solution=total_variation,
    cases=[
        Case(run_by_hand, tolerance=1e-5),
        Case(run_pairs, shape=(4, 5)),
        Case(run_pairs, shape=(7,)),
        Case(run_pairs, shape=(2, 3, 5)),
        Case(run_pairs, shape=(1, 6)),
        Case(run_pairs, shape=(9, 65), dtype=torch.float32, factor=4.0, tolerance=1e-5),
        Case(run_pairs, shape=(3, 3000), factor=3.0),
    ],
    mistakes={
        "what one token gains another loses, so each difference is counted twice: take half the sum.": [
            " / 2 -> "
        ],
        "this is the largest difference, or half of it: disjoint distributions are at distance 1, so add all of them up.": [
            "sum(-1) / 2 -> amax(-1)"
        ],
        "a mean divides by the number of tokens: take half the sum.": (
            ["sum(-1) / 2 -> mean(-1)"],
            ["sum(-1) -> mean(-1)"],
        ),
        "dimension 1 is the last one only in two dimensions: -1 always is.": ["-1 -> 1"],
        "the part where p exceeds q is already half of the differences: do not halve it again.": [
            "abs() -> clamp(min=0)"
        ],
    },
    wrong=[
        "(p - q) -> p.sub_(q)",
        "return (p - q).abs().sum(-1) / 2 -> return ((p - q).abs().sum(-1) / 2).tolist()",
        "return (p - q).abs().sum(-1) / 2 -> return torch.minimum(p, q).sum(-1)",
        "p - q -> (p - q).round(decimals=4)",
    ],
    right=[
        """
def total_variation(p, q):
    return 1 - torch.minimum(p, q).sum(-1)
""",
        """
def total_variation(p, q):
    return F.l1_loss(p.double(), q.double(), reduction="none").sum(-1) / 2
""",
        """
def total_variation(p, q):
    return torch.where(p > q, p - q, torch.zeros_like(p)).sum(p.ndim - 1)
""",
        """
def total_variation(p, q):
    from torch.linalg import vector_norm

    return 0.5 * vector_norm(p - q, ord=1, dim=-1)
""",
    ],
    hints=(
        "If one distribution gives a token 0.1 more than the other does, it has 0.1 less elsewhere. How often does a sum of absolute differences count this 0.1?",
        "`(p - q).abs()`, then a sum over the last dimension.",
        "return (p - q).abs().sum(-1) / 2",
    ),
    advice={
        "the shape of": "One distance per pair, in a tensor: sum over the last dimension only, and keep the others.",
        "the distances": "Half the sum of |p - q| over the last dimension.",
    },
    axes=[("pair",), ("text", "place")],
)
