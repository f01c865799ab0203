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
    """The reference solution. Each step can be replaced."""
    scale = largest(row) / steps
    if scale == 0 and zeros:
        return [0] * len(row), 0.0
    return [nearest(number / scale) for number in row], scale


def row_by(**step: Any) -> Answer:
    """round_row with one step replaced."""
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
        "The row's largest absolute value becomes 127. How large is one step then? And if all "
        "numbers are 0?",
        "`scale` is the size of one step: the largest absolute value divided by 127. Then "
        "express each number in steps.",
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
        "the largest number is used with its sign: take absolute values first.": row_by(
            largest=max
        ),
        "the smallest number is used: take the largest absolute value.": row_by(
            largest=lambda row: -min(row)
        ),
        "int() truncates: round() takes the nearest step.": row_by(nearest=int),
        "a floor rounds down: round() takes the nearest step.": row_by(nearest=math.floor),
        "// is a floor, which rounds down: round() takes the nearest step.": floor_of,
        "half a step is added and int() truncates, which rounds negative numbers wrongly: use "
        "round().": row_by(nearest=lambda x: int(x + 0.5)),
        "you divide by 128: divide by 127, so that both signs have the same steps.": row_by(
            steps=128
        ),
        "you divide by 127.5, half of 255: divide by 127, so that codes are integers up "
        "to 127.": row_by(steps=127.5),
        "a row of zeros leads to a division by 0: handle it separately.": row_by(zeros=False),
        "the scale is inverted: code times scale must give the number back.": upside_down,
    },
    advice={
        "values to unpack": "Return both the codes and the scale.",
        "the codes": "Round each number to the nearest step of (largest absolute value) / 127.",
        "the scale": "A step is the largest absolute value over 127, however small it is.",
    },
)
