"""Notebook 06, blank 3: round_row."""

from ..page import Blank


def round_row(row: list[float]) -> tuple[list[int], float]:
    """Integer codes from -127 to 127 and one scale: row[i] ≈ codes[i] * scale."""
    scale = max(abs(number) for number in row) / 127
    if scale == 0:
        return [0] * len(row), 0.0
    return [round(number / scale) for number in row], scale


BLANK = Blank(
    number="06.3",
    solution=round_row,
    cases=[],
    mistakes={},
    hints=(
        "The row's largest absolute value becomes 127. How large is one step then? And if all numbers are 0?",
        "`scale` is the size of one step: the largest absolute value divided by 127. Then express each number in steps.",
        "scale = max(abs(number) for number in row) / 127; the codes are round(number / scale), and zeros if scale is 0",
    ),
    advice={
        "values to unpack": "Return both the codes and the scale.",
        "the codes": "Round each number to the nearest step of (largest absolute value) / 127.",
        "the scale": "A step is the largest absolute value over 127, however small it is.",
    },
)
