"""Notebook 08, blank 2: turn_arrow, the rotation behind rotary positions."""

import math

import torch

from ..drivers import form
from ..page import Blank, Case


def turn_arrow(a, b, angle):
    """The end of the arrow (a, b) after a rotation by `angle` radians: two numbers."""
    cos = math.cos(angle)
    sin = math.sin(angle)
    return a * cos - b * sin, a * sin + b * cos


# ------------------------------------------------------------------ what a check runs


NEAR = 1e-5  # relative to the larger number: float32 is exact enough


def run_turn(answer, a, b, angle):
    """One rotation, and whether it preserves the length."""
    got = answer(a, b, angle)
    yield "the two numbers", kind(got)
    x, y = (float(number) for number in got)
    before = math.hypot(a, b)
    same = math.isclose(math.hypot(x, y), before, rel_tol=NEAR, abs_tol=NEAR)
    yield f"the length changed from {before:.2f}, but a turn preserves it", not same
    yield "the end of the arrow", torch.tensor([x, y], dtype=torch.float64)


def kind(got):
    """Two numbers, or a description of anything else."""
    if isinstance(got, (str, dict)) or not hasattr(got, "__len__"):
        return f"{form(got)} instead of two numbers"
    return f"{len(got)} numbers"


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="08.2",
    minutes=6,
    solution=turn_arrow,
    cases=[
        Case(run_turn, NEAR, a=0.6, b=0.8, angle=1.0),
        Case(run_turn, NEAR, a=1.0, b=0.0, angle=math.pi / 2),
        Case(run_turn, NEAR, a=0.0, b=1.0, angle=math.pi / 2),
        Case(run_turn, NEAR, a=-2.0, b=0.5, angle=-3.0),
        Case(run_turn, NEAR, a=0.0, b=0.0, angle=1.0),
        Case(run_turn, NEAR, a=0.0, b=-2.0, angle=0.3),
        Case(run_turn, NEAR, a=3, b=2, angle=2),
        Case(run_turn, NEAR, a=0.001, b=-0.002, angle=40.0),
    ],
    mistakes={
        "these are the right numbers in the wrong order: return a' first, then b'.": [
            "a * cos - b * sin, a * sin + b * cos -> a * sin + b * cos, a * cos - b * sin"
        ],
        "the second line uses the new a instead of the old one: keep both old numbers until both new ones are computed.": [
            "return a * cos - b * sin, a * sin + b * cos -> a = a * cos - b * sin\n    b = a * sin + b * cos\n    return a, b"
        ],
        "the angle is converted, but it is already in radians, which math.cos takes: use it as it is.": (
            ["(angle) -> (math.radians(angle))"],
            ["(angle) -> (math.degrees(angle))"],
        ),
        "both lines have a minus: the second has a plus, a · sin + b · cos.": [
            "sin + b -> sin - b"
        ],
        "the arctangent of b / a cannot tell an arrow from its opposite: use the formula, or math.atan2(b, a).": [
            """
def turn_arrow(a, b, angle):
    phi = (math.atan(b / a) if a else math.pi / 2) + angle
    return math.hypot(a, b) * math.cos(phi), math.hypot(a, b) * math.sin(phi)
"""
        ],
    },
    wrong=[
        "(angle) -> (angle / 2)",
        "a * cos - b * sin, a * sin + b * cos -> abs(a * cos - b * sin), abs(a * sin + b * cos)",
        "return a * cos - b * sin, a * sin + b * cos -> return complex(a * cos - b * sin, a * sin + b * cos)",
    ],
    right=[
        """
def turn_arrow(a, b, angle):
    z = complex(a, b) * complex(math.cos(angle), math.sin(angle))
    return [z.real, z.imag]
""",
        """
def turn_arrow(a, b, angle):
    angle = torch.tensor(angle)  # float32
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()])
""",
        """
def turn_arrow(a, b, angle):
    r = math.hypot(a, b)
    phi = math.atan2(b, a) + angle
    return r * math.cos(phi), r * math.sin(phi)
""",
    ],
    hints=(
        "Where does the arrow (1, 0) point after a quarter turn, which is π / 2? And where does (0, 1)?",
        "`math.cos` and `math.sin` take radians. Compute both results from the old a and b, in one line.",
        "return a * cos - b * sin, a * sin + b * cos, with cos = math.cos(angle) and sin = math.sin(angle)",
    ),
    advice={
        "the length changed": "Compare each product with the formula, a' = a · cos − b · sin and b' = a · sin + b · cos: both lines use the old a and b.",
        "the end of": "a' = a · cos − b · sin and b' = a · sin + b · cos, with the angle in radians, and signs that stay.",
    },
    axes=[("number",)],
)
