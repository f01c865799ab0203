"""The check of round_row."""

from __future__ import annotations

import math
from typing import Any

from .exercise import Answer, Case, Exercise, Pairs


def run_row(answer: Answer, row: list[float]) -> Pairs:
    """The codes and the scale of a row."""
    codes, scale = answer([*row])
    if any(row):
        yield "the scale", float(scale)
    yield "the codes", [int(code) for code in codes]


def round_row(
    row: list[float],
    largest: Any = lambda row: max(map(abs, row)),
    steps: float = 127,
    nearest: Any = round,
    zeros: bool = True,
) -> tuple[list[int], float]:
    """The right answer. A step can be exchanged."""
    scale = largest(row) / steps
    if scale == 0 and zeros:
        return [0] * len(row), 0.0
    return [nearest(number / scale) for number in row], scale


def row_by(**step: Any) -> Answer:
    """round_row with a step exchanged."""
    return lambda row: round_row(row, **step)


def upside_down(row: list[float]) -> tuple[list[int], float]:
    codes, scale = round_row(row)
    return codes, 1 / scale if scale else scale


def floor_of(row: list[float]) -> tuple[list[int], float]:
    _, scale = round_row(row)
    return [int(number // scale) if scale else 0 for number in row], scale


ROUND_ROW = Exercise(
    notebook="06",
    hints=(
        "The largest number of the row, with its sign away, becomes 127. How large is "
        "one step then? And if all are 0?",
        "`scale` is the size of one step: the largest absolute value divided by 127. "
        "Then count how many steps each number is.",
        "scale = max(abs(number) for number in row) / 127; the codes are round(number /"
        " scale), and zeros if scale is 0",
    ),
    right=round_row,
    cases=[
        Case(run_row, row=[1.1, -2.0, 0.5]),
        Case(run_row, row=[3.0, 1.0, -1.0, 0.2]),
        Case(run_row, row=[-0.5, -0.25, -0.01]),
        Case(run_row, row=[4.0]),
        Case(run_row, row=[-7.0, 6.9, 0.0, 1e-3, 2.2]),
        Case(run_row, row=[1e-7, -3e-8, 2e-9]),
        Case(run_row, row=[2e20, -1.0]),
        Case(run_row, row=[0.0, 0.0]),
    ],
    mistakes={
        "the largest number is taken with its sign: it counts without its sign.": row_by(
            largest=max
        ),
        "the smallest number is taken for the largest: it counts without its sign.": row_by(
            largest=lambda row: -min(row)
        ),
        "int() cuts off: round() takes the nearest step.": row_by(nearest=int),
        "a floor goes down: round() takes the nearest step.": row_by(nearest=math.floor),
        "// is a floor, which goes down: round() takes the nearest step.": floor_of,
        "half a step is added and int() cuts off, which is no rounding of negative numbers: "
        "round().": row_by(nearest=lambda x: int(x + 0.5)),
        "you divide by 128: by 127, so that both signs have the same steps.": row_by(steps=128),
        "you divide by 127.5, half of 255: by 127, so that codes are integers up to 127.": row_by(
            steps=127.5
        ),
        "a row of zeros has no largest number to divide by: it needs a case of its own.": row_by(
            zeros=False
        ),
        "the scale is upside down: code times scale gives the number back.": upside_down,
    },
    advice={
        "values to unpack": "Return two things, the codes and the scale.",
        "the codes": "Round each number to the nearest step of (largest without its sign) / 127.",
        "the scale": "A step is the largest number, without its sign, over 127, whatever it is.",
    },
)
