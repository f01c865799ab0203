"""Notebook 10, blank 3: average, the gradient of several processes with different numbers of rows."""

import torch
from torch import Tensor

from ..drivers import Arguments, form, numbers
from ..page import Blank, Case


def average(gradients: list[Tensor], rows: list[int]) -> Tensor:
    """The gradient of the mean over all rows; process i has the mean over its own rows[i]."""
    return sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)


# ------------------------------------------------------------------ what a check runs


NEAR = 1e-6  # the weights may be rounded to float32, for gradients of any dtype


def run_average(answer, rows, size, dtype=torch.float32):
    """The average over each process's gradient."""
    parts = {f"gradients[{i}]": numbers(size, seed=i).to(dtype) for i in range(len(rows))}
    given = Arguments(**parts)
    counts = [*rows]
    found = answer([*given.tensors.values()], counts)
    yield from given.changes()
    yield "your code changes `rows`, which belong to the caller", counts != rows
    yield "the shape of the average", form(found)
    yield "the average", found


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="10.3",
    minutes=5,
    solution=average,
    cases=[
        Case(run_average, NEAR, rows=[6, 2, 1], size=3),
        Case(run_average, NEAR, rows=[1, 2, 5], size=4),
        Case(run_average, NEAR, rows=[3, 3, 3], size=4),
        Case(run_average, NEAR, rows=[7], size=3),
        Case(run_average, NEAR, rows=[1, 1000], size=5, dtype=torch.float64),
        Case(run_average, NEAR, rows=[8, 8, 8, 5], size=50, dtype=torch.float64),
    ],
    mistakes={
        "that is the plain mean: with 6 rows and 2, each of the 2 would count three times as much as each of the 6. Weight each gradient by its rows.": [
            "n * gradient -> gradient",
            "sum(rows) -> len(rows)",
        ],
        "the weighted sum is divided by the number of processes: divide by the total number of rows.": [
            "sum(rows) -> len(rows)"
        ],
        "a gradient is divided by its rows, so the fewest rows count most: it is already a mean, so multiply it by them.": (
            ["n * gradient -> gradient / n", " / sum(rows) -> "],
            ["n * gradient -> gradient / n", "sum(rows) -> sum(1 / n for n in rows)"],
        ),
        "the weights are squared: weight each gradient by its rows, once.": (
            ["n * gradient -> n * n * gradient"],
            ["n * gradient -> n * n * gradient", "sum(rows) -> sum(n * n for n in rows)"],
        ),
        "only the process with the most rows counts: all rows do.": [
            "sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows) -> gradients[rows.index(max(rows))].clone()"
        ],
        "gradients are changed in place, with *= or +=, which other processes still need: n * gradient is a new tensor.": [
            """
def average(gradients, rows):
    for n, gradient in zip(rows, gradients):
        gradient *= n
    return sum(gradients) / sum(rows)
"""
        ],
    },
    wrong=[
        "zip(rows, gradients)) -> zip(rows[:-1] or rows, gradients))",
        "return -> rows += [rows.pop(0)]\n    return",
        "n * gradient for -> n * gradient.float() for",
    ],
    right=[
        """
def average(gradients, rows):
    weights = torch.tensor(rows) / sum(rows)
    return (torch.stack(gradients) * weights[:, None]).sum(0)
""",
        """
def average(gradients, rows):
    every = [g for g, n in zip(gradients, rows) for _ in range(n)]
    return torch.stack(every).mean(0)
""",
        """
def average(gradients, rows):
    mean, seen = gradients[0], rows[0]
    for g, n in zip(gradients[1:], rows[1:]):
        seen += n
        mean = mean + (g - mean) * n / seen
    return mean
""",
    ],
    hints=(
        "One process has the mean over 6 rows, another the mean over 2. What were the sums, and how many rows do they cover?",
        "A mean times its number of rows is a sum. Sums over different rows can be added. Divide once, by the total number of rows.",
        "return sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
    ),
    advice={
        "the shape of the average": "It has the shape of a gradient, a tensor.",
        "the average": "Each gradient, a mean over its rows, is weighted by its number of rows: divide the weighted sum by the total number of rows.",
    },
    axes=[("weight",)],
)
