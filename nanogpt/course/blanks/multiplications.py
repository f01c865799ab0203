"""Notebook 05, blank 1: multiplications, what a step costs with a cache and without."""

from ..drivers import calls
from ..page import Blank


def multiplications(T: int, W: int, L: int, C: int, cached: bool) -> int:
    """Multiplications of the step after T tokens, with W weights in matrices and L layers of width C."""
    n = 1 if cached else T
    return n * W + n * T * 2 * L * C


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="05.1",
    minutes=5,
    solution=multiplications,
    cases=calls(
        "T W L C cached",
        (10, 90, 5, 3, True),
        (10, 90, 5, 3, False),
        (37, 1000, 4, 7, True),
        (37, 1000, 4, 7, False),
    ),
    mistakes={
        "values are missing: attending to a token takes its key and its value, 2 · C multiplications.": [
            "T * 2 -> T"
        ],
        "only one layer's attention is counted: each of the L layers has its own.": ["2 * L -> 2"],
        "the cases with and without a cache are swapped.": ["if cached -> if not cached"],
        "half the square is counted: without a cache each of the T queries is multiplied with T keys, and what is masked later is computed too.": [
            "n * T * 2 -> n * (T + 1 if n > 1 else 2 * T)"
        ],
        "attention is one token too short or too long: the token that is read is one of the T, and also attends to itself.": (
            ["n * T -> n * (T - 1)"],
            ["n * T -> n * (T + cached)"],
        ),
        "these are FLOPs, two for each multiplication: count multiplications only.": [
            "n * W + n * T * 2 -> 2 * n * W + n * T * 4"
        ],
    },
    wrong=[
        "return -> T = min(T, 10)\n    return",
        "return -> return 1.001 *",
    ],
    right=[
        """
def multiplications(T, W, L, C, cached):
    return (W + 2 * L * C * T) * T ** (not cached)
""",
        """
def multiplications(tokens, weights, layers, width, with_cache):
    read = [tokens - 1] if with_cache else range(tokens)
    return sum(weights + sum(2 * width * tokens for _ in range(layers)) for _ in read)
""",
        """
def multiplications(T, W, L, C, cached):
    import numpy as np

    n = np.where(cached, 1, T)
    return n * (W + np.prod([2, L, C, T]))
""",
    ],
    hints=(
        "How many tokens does the step read with a cache, and how many without? And how many keys does each of them attend to?",
        "Let n be the number of tokens that the step reads: T, or 1. Write both parts in terms of n and T.",
        "n = 1 if cached else T, then return n * W + n * T * 2 * L * C",
    ),
    advice={
        "the number": "Each of the n tokens passes through W weights, and attends to T keys and values in L layers: 2 · L · C · T.",
    },
)
