"""Notebook 05, blank 1: multiplications."""

from ..page import Blank


def multiplications(T: int, W: int, L: int, C: int, cached: bool) -> int:
    """Multiplications of the step after T tokens, with W weights in matrices and L layers of width C."""
    n = 1 if cached else T
    return n * W + n * T * 2 * L * C


BLANK = Blank(
    number="05.1",
    solution=multiplications,
    cases=[],
    mistakes={},
    hints=(
        "How many tokens does the step read with a cache, and how many without? And how many keys does each of them attend to?",
        "Let n be the number of tokens that the step reads: T, or 1. Write both parts in terms of n and T.",
        "n = 1 if cached else T, then return n * W + n * T * 2 * L * C",
    ),
    advice={
        "the number": "Each of the n tokens passes through W weights, and attends to T keys and values in L layers: 2 · L · C · T."
    },
)
