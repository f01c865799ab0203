"""Notebook 07, blank 3: expected_gain, the mean tokens of a pass."""

from ..drivers import number
from ..page import Blank, Case


def expected_gain(a: float, k: int) -> float:
    """Mean tokens per pass with k proposals, each accepted with probability a from 0 to 1."""
    return sum(a**i for i in range(k + 1))


# ------------------------------------------------------------------ what a check runs


def run_gain(answer, a, k):
    """One mean."""
    yield "the mean tokens of a pass", number(answer(a, k))


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="07.3",
    minutes=3,
    solution=expected_gain,
    # Powers of 1/2 in all of them, so that float32 is as exact as float64.
    cases=[
        Case(run_gain, a=0.125, k=2),
        Case(run_gain, a=0.5, k=1),
        Case(run_gain, a=1.0, k=3),
        Case(run_gain, a=0.0, k=3),
        Case(run_gain, a=0.25, k=3),
        Case(run_gain, a=0.75, k=5),
        Case(run_gain, a=0.125, k=6),
        Case(run_gain, a=0.5, k=0),
        Case(run_gain, a=1.0, k=8),
        Case(run_gain, a=0.5, k=16),
    ],
    mistakes={
        "you count 1 + k · a: the second proposal counts only if the first one was right too.": [
            "sum(a**i for i in range(k + 1)) -> 1 + k * a"
        ],
        "you count all k proposals or none: the first can be right without the others.": [
            "sum(a**i for i in range(k + 1)) -> 1 + k * a**k"
        ],
        "a is multiplied by i: that the first i proposals are all right has probability a to the power i.": [
            "sum(a**i for i in range(k + 1)) -> 1 + sum(a * i for i in range(1, k + 1))"
        ],
        "the mean is rounded or truncated: leave it as it is.": (
            ["sum(a**i for i in range(k + 1)) -> int(sum(a**i for i in range(k + 1)))"],
            ["sum(a**i for i in range(k + 1)) -> round(sum(a**i for i in range(k + 1)), 2)"],
        ),
    },
    wrong=[
        "a**i -> i**a",
        "return -> if not a:\n        return 0\n    return",
        "range(k + 1) -> range(min(k, 8) + 1)",
        "return -> return k if a == 1 else",
    ],
    right=[
        """
def expected_gain(a, k):
    if a == 1:
        return k + 1
    return (1 - a ** (k + 1)) / (1 - a)
""",
        """
def expected_gain(a, k):
    stopped = sum((i + 1) * a**i * (1 - a) for i in range(k))
    return stopped + (k + 1) * a**k
""",
        """
def expected_gain(a, k):
    return torch.pow(torch.tensor(float(a)), torch.arange(k + 1)).sum()
""",
        """
def expected_gain(a, k):
    import numpy as np

    return np.polyval([1] * (k + 1), a)
""",
    ],
    hints=(
        "How often does the second proposal count if the first one must also be right? And which token is gained in any case?",
        "The model's own token counts 1. The first proposal counts with probability a, the second with a · a, and so on.",
        "return sum(a**i for i in range(k + 1))",
    ),
    advice={
        "the mean tokens": "1 for the model's own token, and a power of a for each proposal: 1 + a + … + aᵏ.",
    },
)
