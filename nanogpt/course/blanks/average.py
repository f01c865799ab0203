"""Notebook 10, blank 3: average."""

from torch import Tensor

from ..page import Blank


def average(gradients: list[Tensor], rows: list[int]) -> Tensor:
    """The gradient of the mean over all rows; process i has the mean over its own rows[i]."""
    return sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)


BLANK = Blank(
    number="10.3",
    solution=average,
    cases=[],
    mistakes={},
    hints=(
        "One process has the mean over 6 rows, another the mean over 2. What were the sums, and how many rows do they cover?",
        "A mean times its number of rows is a sum. Sums over different rows can be added. Divide once, by the total number of rows.",
        "return sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
    ),
    advice={
        "the shape of the average": "It has the shape of a gradient, a tensor.",
        "the average": "Each gradient, a mean over its rows, is weighted by its number of rows: divide the weighted sum by the total number of rows.",
        "`rows`": "Leave them as they are.",
    },
    axes=[("weight",)],
)
