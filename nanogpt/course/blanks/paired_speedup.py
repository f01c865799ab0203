"""Notebook 05, blank 3: paired_speedup."""

from statistics import median

from ..page import Blank


def paired_speedup(a: list[float], b: list[float]) -> float:
    """The speedup of b over a: the median of the ratios within the pairs."""
    return median(x / y for x, y in zip(a, b))


BLANK = Blank(
    number="05.3",
    solution=paired_speedup,
    cases=[],
    mistakes={},
    hints=(
        "The machine slows down in the middle of the run, which affects both a and b of that turn. Which ratio is unaffected?",
        "First a list of ratios, one per pair, then the `median` of that list.",
        "return median(x / y for x, y in zip(a, b))",
    ),
    advice={"the speedup": "It is the median of the ratios a / b within the pairs."},
)
