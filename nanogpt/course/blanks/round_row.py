"""Notebook 06, blank 3: round_row, a row of numbers as 8-bit codes and one scale."""

import math

import torch

from ..page import Blank, Case


def round_row(row: list[float]) -> tuple[list[int], float]:
    """Integer codes from -127 to 127 and one scale: row[i] ≈ codes[i] * scale."""
    scale = max(abs(number) for number in row) / 127
    if scale == 0:
        return [0] * len(row), 0.0
    return [round(number / scale) for number in row], scale


# ------------------------------------------------------------------ what a check runs


def run_row(answer, row):
    """The codes and the scale of a row; a scale computed in float32 is near enough."""
    got = answer([*row])
    two = isinstance(got, (tuple, list)) and len(got) == 2
    yield "what is returned", "codes and a scale" if two else f"a {type(got).__name__}"
    codes, scale = got
    if any(row):  # a row of zeros may have any scale
        yield "the scale", torch.tensor(float(scale), dtype=torch.float64)
    yield "the codes", [code_of(code) for code in codes]


def code_of(code):
    """A code of any type as an integer; a fraction as it is."""
    value = float(code)
    return int(value) if math.isfinite(value) and value == int(value) else repr(value)


def row(*numbers):
    """A case. No number is half-way between two codes, where rounding up and down are equally good."""
    return Case(run_row, tolerance=1e-6, row=[*numbers])


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="06.3",
    minutes=6,
    solution=round_row,
    cases=[
        row(1.1, -2.0, 0.5),
        row(3.0, 1.0, -1.0, 0.2),
        row(-0.5, -0.26, -0.01),
        row(4.0),
        row(-7.0, 6.9, 0.0, 1e-3, 2.2),
        row(1e-7, -3e-8, 2e-9),
        row(2e20, -1.0),
        row(0.0, 0.0),
    ],
    mistakes={
        "the largest number is used with its sign: take absolute values first.": [
            "abs(number) -> number"
        ],
        "the codes are truncated, as int() does: round() takes the nearest step.": [
            "round(number -> int(number"
        ],
        "half a step is added and int() truncates, which rounds negative numbers wrongly: use round().": [
            "round(number / scale) -> int(number / scale + 0.5)"
        ],
        "the largest absolute value must get the code 127: divide it by 127 for the scale, not by 128, 255 or half of that.": (
            ["/ 127 -> / 128"],
            ["/ 127 -> / 127.5"],
        ),
        "the scale is inverted: code times scale must give the number back.": [
            "row], scale -> row], 1 / scale"
        ],
        "codes times scale are returned, the rounded numbers themselves: return the integer codes.": [
            "[round(number / scale) -> [round(number / scale) * scale"
        ],
        "a small constant is added to the scale or is its lower limit, so rows of small numbers lose their digits: treat a scale of 0 separately.": (
            ["for number in row) / 127 -> for number in row) / 127 + 1e-8"],
            [
                "max(abs(number) for number in row) / 127 -> (max(abs(number) for number in row) + 1e-8) / 127"
            ],
        ),
        "the scale comes from a mean: take the largest absolute value.": (
            ["max(abs(number) for number in row) -> sum(abs(number) for number in row) / len(row)"],
            [
                "max(abs(number) for number in row) -> sum(abs(number) for number in row) / len(row)",
                "round(number / scale) -> max(-127, min(127, round(number / scale)))",
            ],
        ),
    },
    wrong=[
        "row], scale -> row], round(scale, 9)",
        "round(number / scale) -> max(-100, round(number / scale))",
        "round(number / scale) -> round(number / scale, 1)",
        "max(abs(number) for number in row) -> -min(row)",
    ],
    right=[
        """
def round_row(row):
    largest = max((abs(x) for x in row), default=0.0)
    if not largest:
        return [0 for _ in row], 1.0
    step = largest / 127
    return [math.floor(x / step + 0.5) for x in row], step
""",
        """
def round_row(row):
    x = torch.tensor(row)
    scale = x.abs().max() / 127
    if scale == 0:
        return torch.zeros(len(row), dtype=torch.int8), 0.0
    return (x / scale).round().to(torch.int8), scale
""",
        """
def round_row(row):
    scale = max(max(row), -min(row)) / 127 or 1.0
    return [max(-127, min(127, int(math.copysign(abs(x) / scale + 0.5, x)))) for x in row], scale
""",
        """
def round_row(row):
    import numpy as np

    x = np.array(row)
    scale = np.abs(x).max() / 127
    return np.rint(x / (scale or 1)), scale
""",
    ],
    hints=(
        "The row's largest absolute value becomes 127. How large is one step then? And if all numbers are 0?",
        "`scale` is the size of one step: the largest absolute value divided by 127. Then express each number in steps.",
        "scale = max(abs(number) for number in row) / 127; the codes are round(number / scale), and zeros if scale is 0",
    ),
    advice={
        "the codes": "Round each number to the nearest step of (largest absolute value) / 127.",
        "the scale": "A step is the largest absolute value over 127, however small it is.",
    },
)
