"""Notebook 08, blank 2: turn_arrow."""

import math

from ..page import Blank


def turn_arrow(a, b, angle):
    """The end of the arrow (a, b) after a rotation by `angle` radians: two numbers."""
    cos = math.cos(angle)
    sin = math.sin(angle)
    return a * cos - b * sin, a * sin + b * cos


BLANK = Blank(
    number="08.2",
    solution=turn_arrow,
    cases=[],
    mistakes={},
    hints=(
        "Where does the arrow (1, 0) point after a quarter turn, which is π / 2? And where does (0, 1)?",
        "`math.cos` and `math.sin` take radians. Compute both results from the old a and b, in one line.",
        "return a * cos - b * sin, a * sin + b * cos, with cos = math.cos(angle) and sin = math.sin(angle)",
    ),
    advice={
        "the two numbers": "Return a' and b', as a tuple.",
        "ZeroDivisionError": "The formula needs no division: a' = a · cos − b · sin and b' = a · sin + b · cos.",
        "the length changed": "Compare each product with the formula, a' = a · cos − b · sin and b' = a · sin + b · cos: both lines use the old a and b.",
        "the end of": "a' = a · cos − b · sin and b' = a · sin + b · cos, with the angle in radians.",
    },
    axes=[("number",)],
)
