"""The check of total_variation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import solutions
from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, form, numbers

BY_HAND = (
    [[0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.5, 0.25, 0.25, 0.0]],
    [[0.25, 0.5, 0.25, 0.0], [0.0, 0.0, 0.5, 0.5], [0.5, 0.25, 0.25, 0.0]],
)


def compare(answer: Answer, p: Tensor, q: Tensor) -> Pairs:
    """The distances of pairs of distributions. A wider dtype than p's is accepted."""
    given = Arguments(p=p, q=q)
    got = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the distances", form(got)
    yield "the distances", got.double() if got.is_floating_point() else got


def run_by_hand(answer: Answer) -> Pairs:
    """Three pairs of distributions over four tokens: close, disjoint, equal."""
    p, q = (torch.tensor(rows) for rows in BY_HAND)
    yield from compare(answer, p, q)


def run_pairs(
    answer: Answer, shape: tuple[int, ...], dtype: torch.dtype = torch.float64, factor: float = 1.0
) -> Pairs:
    """Pairs of random distributions over the last dimension."""
    p, q = ((factor * numbers(*shape, seed=seed)).softmax(-1).to(dtype) for seed in (1, 2))
    yield from compare(answer, p, q)


def distance_by(measure: Any) -> Answer:
    """total_variation by another function of the differences p - q."""
    return lambda p, q: measure(p - q)


def entropy_of(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.clamp(min=1e-12) / q.clamp(min=1e-12)).log()).sum(-1)


def from_p(p: Tensor, q: Tensor) -> Tensor:
    p -= q
    return p.abs_().sum(-1) / 2


def from_q(p: Tensor, q: Tensor) -> Tensor:
    q -= p
    return q.abs_().sum(-1) / 2


def hellinger(p: Tensor, q: Tensor) -> Tensor:
    return (1 - (p * q).sqrt().sum(-1)).clamp(min=0).sqrt()


TOTAL_VARIATION = Exercise(
    notebook="07",
    hints=(
        "If one distribution gives a token 0.1 more than the other does, it has 0.1 less "
        "elsewhere. How often does a sum of absolute differences count this 0.1?",
        "`(p - q).abs()`, then a sum over the last dimension.",
        "return (p - q).abs().sum(-1) / 2",
    ),
    right=solutions.total_variation,
    cases=[
        Case(run_by_hand, tolerance=1e-5),
        Case(run_pairs, shape=(4, 5)),
        Case(run_pairs, shape=(7,)),
        Case(run_pairs, shape=(2, 3, 5)),
        Case(run_pairs, shape=(1, 6)),
        Case(run_pairs, shape=(2, 1, 3, 4)),
        Case(run_pairs, shape=(9, 65), dtype=torch.float32, factor=4.0, tolerance=1e-5),
        Case(run_pairs, shape=(3, 3000), factor=3.0),
    ],
    mistakes={
        "what one token gains another loses, so each difference is counted twice: take half the "
        "sum.": distance_by(lambda d: d.abs().sum(-1)),
        "the sum is doubled: it already contains each difference twice, so divide by 2.": (
            distance_by(lambda d: 2 * d.abs().sum(-1))
        ),
        "both sum to 1, so signed differences cancel: take absolute values before "
        "summing.": distance_by(lambda d: d.sum(-1) / 2),
        "you take the absolute value of the sum, which is 0: take it of each difference.": (
            distance_by(lambda d: d.sum(-1).abs() / 2)
        ),
        "this is the largest difference: disjoint distributions are at distance 1, so add all "
        "of them up.": distance_by(lambda d: d.abs().amax(-1)),
        "this is half the largest difference: add them all up.": distance_by(
            lambda d: d.abs().amax(-1) / 2
        ),
        "a mean divides by the number of tokens: take half the sum.": distance_by(
            lambda d: d.abs().mean(-1)
        ),
        "half a mean divides by the number of tokens: leave the sum as it is, and halve "
        "it.": distance_by(lambda d: d.abs().mean(-1) / 2),
        "all pairs are added up: sum over the last dimension only, one distance per pair.": (
            distance_by(lambda d: d.abs().sum() / 2)
        ),
        "the sum runs over the pairs: the tokens are in the last dimension, -1.": distance_by(
            lambda d: d.abs().sum(0) / 2
        ),
        "dimension 1 is the last one only in two dimensions: -1 always is.": (
            distance_by(lambda d: d.abs().sum(1) / 2)
        ),
        "squares are added up: take absolute values.": distance_by(lambda d: d.square().sum(-1)),
        "half the sum of squares is taken: take absolute values.": distance_by(
            lambda d: d.square().sum(-1) / 2
        ),
        "this is the Euclidean distance: add up absolute values.": (
            distance_by(lambda d: d.norm(dim=-1))
        ),
        "this is half the Euclidean distance: add up absolute values instead.": distance_by(
            lambda d: d.norm(dim=-1) / 2
        ),
        "the part where p exceeds q is already half of the differences: do not "
        "halve it again.": distance_by(lambda d: d.clamp(min=0).sum(-1) / 2),
        "a last dimension of size 1 is left: the shape is (…), without keepdim.": distance_by(
            lambda d: d.abs().sum(-1, keepdim=True) / 2
        ),
        "a dimension of size 1 is squeezed away: keep all dimensions but the last.": distance_by(
            lambda d: (d.abs().sum(-1) / 2).squeeze()
        ),
        "the pairs are flattened into one row: keep all dimensions but the last.": distance_by(
            lambda d: d.abs().sum(-1).flatten() / 2
        ),
        "this is the overlap: the distance is 1 minus that.": (
            lambda p, q: torch.minimum(p, q).sum(-1)
        ),
        "a softmax is applied again: p and q are already probabilities.": (
            lambda p, q: (p.softmax(-1) - q.softmax(-1)).abs().sum(-1) / 2
        ),
        "this is the KL divergence, with logarithms: total variation adds up absolute "
        "differences.": entropy_of,
        "this is the Hellinger distance, with square roots: add up absolute differences of the "
        "probabilities themselves.": hellinger,
        "p and q are added: take their difference, p - q.": (
            lambda p, q: (p + q).abs().sum(-1) / 2
        ),
        "the differences are accumulated along the tokens, as for ordered values: tokens have "
        "no order.": distance_by(lambda d: d.cumsum(-1).abs().amax(-1)),
        "a list of Python numbers is returned: return the tensor of the distances.": distance_by(
            lambda d: (d.abs().sum(-1) / 2).tolist()
        ),
        "float32 loses float64's digits: compute in the input's dtype.": (
            lambda p, q: (p.float() - q.float()).abs().sum(-1) / 2
        ),
        "the pairs' distances are averaged into one: return one distance per pair.": (
            distance_by(lambda d: (d.abs().sum(-1) / 2).mean())
        ),
        "your code changes `p`, which belongs to the caller: p - q makes a new tensor.": from_p,
        "your code changes `q`, which belongs to the caller: q - p makes a new tensor.": from_q,
    },
    advice={
        "the shape of": (
            "One distance per pair: sum over the last dimension only, and keep the others."
        ),
        "the distances": "Half the sum of |p - q| over the last dimension.",
    },
    axes=[("pair",), ("text", "place")],
)
