"""Notebook 07, blank 2: total_variation."""

import torch

from ..page import Blank


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Half the sum of the absolute differences.  (…, V), (…, V) -> (…)"""
    return (p - q).abs().sum(-1) / 2


BLANK = Blank(
    number="07.2",
    solution=total_variation,
    cases=[],
    mistakes={},
    hints=(
        "If one distribution gives a token 0.1 more than the other does, it has 0.1 less elsewhere. How often does a sum of absolute differences count this 0.1?",
        "`(p - q).abs()`, then a sum over the last dimension.",
        "return (p - q).abs().sum(-1) / 2",
    ),
    advice={
        "the shape of": "One distance per pair: sum over the last dimension only, and keep the others.",
        "the distances": "Half the sum of |p - q| over the last dimension.",
    },
    axes=[("pair",), ("text", "place")],
)
