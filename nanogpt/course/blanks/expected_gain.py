"""Notebook 07, blank 3: expected_gain."""

from ..page import Blank


def expected_gain(a: float, k: int) -> float:
    """Mean tokens per pass with k proposals, each accepted with probability a from 0 to 1."""
    return sum(a**i for i in range(k + 1))


BLANK = Blank(
    number="07.3",
    solution=expected_gain,
    cases=[],
    mistakes={},
    hints=(
        "How often does the second proposal count if the first one must also be right? And which token is gained in any case?",
        "The model's own token counts 1. The first proposal counts with probability a, the second with a · a, and so on.",
        "return sum(a**i for i in range(k + 1))",
    ),
    advice={
        "the mean tokens": "1 for the model's own token, and a power of a for each proposal: 1 + a + … + aᵏ.",
        "ZeroDivisionError": "At a = 1 all k proposals are right: k + 1 tokens.",
    },
)
