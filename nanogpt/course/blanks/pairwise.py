"""Notebook 12, blank 1: pairwise."""

from ..page import Blank


def pairwise(x):
    """The sum of x, neighbours first: (a + b) + (c + d) for four.  (2**k,) -> ()"""
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return x[0]


BLANK = Blank(
    number="12.1",
    solution=pairwise,
    cases=[],
    mistakes={},
    hints=(
        "Eight numbers: how many sums of two neighbours do they make, and how many are left when those are added in pairs again?",
        "`x[0::2]` are the left neighbours, `x[1::2]` the right ones. Their sum is half as long. Repeat until one number is left.",
        "while len(x) > 1: x = x[0::2] + x[1::2]; then return x[0]",
    ),
    advice={
        "the shape of the sum": "A sum is a single number, of shape (): return x[0] of the last tensor.",
        "the dtype of the sum": "Stay in x's dtype.",
        "the sum": "It must be bit-identical to adding neighbours first: (a + b) + (c + d), in x's dtype.",
        "no len()": "Stay with tensors: x[0] of the last one is a tensor too.",
        "IndexError": "A single number is its own sum.",
        "RecursionError": "A single number is its own sum.",
    },
)
