"""Notebook 05, blank 3: paired_speedup, the median of the ratios within the pairs."""

from statistics import median

from ..drivers import number
from ..page import Blank, Case


def paired_speedup(a: list[float], b: list[float]) -> float:
    """The speedup of b over a: the median of the ratios within the pairs."""
    return median(x / y for x, y in zip(a, b))


# ------------------------------------------------------------------ what a check runs


def run_ratio(answer, a, b):
    """The speedup of two series of times."""
    yield "the speedup", number(answer([*a], [*b]))


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="05.3",
    minutes=5,
    solution=paired_speedup,
    # All ratios are exact in float32, so that it is as good as float64.
    cases=[
        Case(run_ratio, a=[7.0], b=[2.0]),
        Case(run_ratio, a=[2.0, 6.0, 40.0], b=[1.0, 2.0, 10.0]),
        Case(run_ratio, a=[2.0, 2.0, 90.0], b=[1.0, 1.0, 1.0]),
        Case(run_ratio, a=[1.0, 10.0, 100.0], b=[2.0, 1.0, 100.0]),
        Case(run_ratio, a=[5.0, 2.0, 1.0, 6.0, 4.0], b=[1.0, 1.0, 4.0, 1.0, 8.0]),
        Case(run_ratio, a=[8.0, 1.0, 6.0, 20.0], b=[2.0, 1.0, 1.0, 2.0]),
        Case(run_ratio, a=[129.0, 64.0, 256.0], b=[128.0, 128.0, 64.0]),
    ],
    mistakes={
        "this is b / a, which is below 1 if b is faster: the speedup is a / b.": ["x / y -> y / x"],
        "this is a mean, which one disturbed pair can move far: use the median.": [
            "median(x / y for x, y in zip(a, b)) -> sum(x / y for x, y in zip(a, b)) / len(a)"
        ],
        "this is the ratio of the medians: it divides runs that do not belong together.": [
            "median(x / y for x, y in zip(a, b)) -> median(a) / median(b)"
        ],
        "each of a is divided by each of b: only a[i] and b[i] belong together.": [
            "for x, y in zip(a, b) -> for x in a for y in b"
        ],
        "for an even number of ratios you return one of the two in the middle, as torch.median does: the median is half-way between them.": (
            [
                "median(x / y for x, y in zip(a, b)) -> sorted(x / y for x, y in zip(a, b))[len(a) // 2]"
            ],
            [
                "median(x / y for x, y in zip(a, b)) -> sorted(x / y for x, y in zip(a, b))[(len(a) - 1) // 2]"
            ],
        ),
        "the result is rounded: leave it as it is.": (
            [
                "median(x / y for x, y in zip(a, b)) -> float(round(median(x / y for x, y in zip(a, b))))"
            ],
            [
                "median(x / y for x, y in zip(a, b)) -> round(median(x / y for x, y in zip(a, b)), 1)"
            ],
            [
                "median(x / y for x, y in zip(a, b)) -> round(median(x / y for x, y in zip(a, b)), 2)"
            ],
        ),
    },
    wrong=[
        "median(x / y for x, y in zip(a, b)) -> max(x / y for x, y in zip(a, b))",
        "median(x / y for x, y in zip(a, b)) -> 1 / median(y / x for x, y in zip(a, b))",
        "zip(a, b) -> zip(a[1:] or a, b[1:] or b)",
    ],
    right=[
        """
def paired_speedup(slow, fast):
    ratios = sorted(map(lambda pair: pair[0] / pair[1], zip(slow, fast)))
    middle, odd = divmod(len(ratios), 2)
    return ratios[middle] if odd else 0.5 * (ratios[middle - 1] + ratios[middle])
""",
        """
def paired_speedup(a, b):
    import numpy as np

    return np.median(np.array(a) / np.array(b))
""",
        """
def paired_speedup(a, b):
    return (torch.tensor(a) / torch.tensor(b)).quantile(0.5)
""",
    ],
    hints=(
        "The machine slows down in the middle of the run, which affects both a and b of that turn. Which ratio is unaffected?",
        "First a list of ratios, one per pair, then the `median` of that list.",
        "return median(x / y for x, y in zip(a, b))",
    ),
    advice={
        "the speedup": "It is the median of the ratios a[i] / b[i] within the pairs.",
    },
)
