"""The check of turn_arrow."""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import solutions
from .exercise import Answer, Case, Exercise, Pairs
from .observing import form

NEAR = 1e-5  # relative to the larger number: float32 is exact enough


def run_turn(answer: Answer, a: float, b: float, angle: float) -> Pairs:
    """One rotation, and whether it preserves the length."""
    got = answer(a, b, angle)
    yield "the two numbers", _kind(got)
    x, y = (float(number) for number in got)
    before = math.hypot(a, b)
    same = math.isclose(math.hypot(x, y), before, rel_tol=NEAR, abs_tol=NEAR)
    yield f"the length changed from {before:.2f}, but a turn preserves it", not same
    yield "the end of the arrow", torch.tensor([x, y], dtype=torch.float64)


def _kind(got: Any) -> str:
    """Two numbers, or a description of anything else."""
    if isinstance(got, (str, dict)) or not hasattr(got, "__len__"):
        return f"{form(got)} instead of two numbers"
    return f"{len(got)} numbers"


def turn_by(x: Any, y: Any) -> Answer:
    """turn_arrow as two functions of a, b, cos and sin."""

    def turn_arrow(a: float, b: float, angle: float) -> tuple[float, float]:
        c = math.cos(angle)
        s = math.sin(angle)
        return x(a, b, c, s), y(a, b, c, s)

    return turn_arrow


def right_x(a: float, b: float, c: float, s: float) -> float:
    return a * c - b * s


def right_y(a: float, b: float, c: float, s: float) -> float:
    return a * s + b * c


RIGHT = turn_by(right_x, right_y)


def at_angle(change: Any) -> Answer:
    """turn_arrow with another angle."""
    return lambda a, b, angle: RIGHT(a, b, change(angle))


def new_a(a: float, b: float, angle: float) -> tuple[float, float]:
    a = a * math.cos(angle) - b * math.sin(angle)
    b = a * math.sin(angle) + b * math.cos(angle)
    return a, b


def new_b(a: float, b: float, angle: float) -> tuple[float, float]:
    b = a * math.sin(angle) + b * math.cos(angle)
    a = a * math.cos(angle) - b * math.sin(angle)
    return a, b


def put_at(a: float, b: float, angle: float) -> tuple[float, float]:
    length = math.hypot(a, b)
    return length * math.cos(angle), length * math.sin(angle)


def by_arctangent(a: float, b: float, angle: float) -> tuple[float, float]:
    old = math.atan(b / a) if a else math.copysign(math.pi / 2, b)
    return put_at(math.hypot(a, b), 0.0, old + angle)


def unit(a: float, b: float, angle: float) -> tuple[float, float]:
    x, y = RIGHT(a, b, angle)
    length = math.hypot(x, y) or 1.0
    return x / length, y / length


def to_tenths(a: float, b: float, angle: float) -> tuple[float, float]:
    x, y = RIGHT(a, b, angle)
    return round(x, 2), round(y, 2)


def as_complex(a: float, b: float, angle: float) -> complex:
    return complex(*RIGHT(a, b, angle))


TURN_ARROW = Exercise(
    notebook="08",
    hints=(
        "Where does the arrow (1, 0) point after a quarter turn, which is π / 2? And where does "
        "(0, 1)?",
        "`math.cos` and `math.sin` take radians. Compute both results from the old a and b, in one "
        "line.",
        "return a * cos - b * sin, a * sin + b * cos, with cos = math.cos(angle) and sin = "
        "math.sin(angle)",
    ),
    right=solutions.turn_arrow,
    cases=[
        Case(run_turn, NEAR, a=0.6, b=0.8, angle=1.0),
        Case(run_turn, NEAR, a=1.0, b=0.0, angle=math.pi / 2),
        Case(run_turn, NEAR, a=0.0, b=1.0, angle=math.pi / 2),
        Case(run_turn, NEAR, a=-2.0, b=0.5, angle=-3.0),
        Case(run_turn, NEAR, a=3.0, b=4.0, angle=0.0),
        Case(run_turn, NEAR, a=0.0, b=0.0, angle=1.0),
        Case(run_turn, NEAR, a=-1.5, b=-2.5, angle=math.pi),
        Case(run_turn, NEAR, a=0.0, b=-2.0, angle=0.3),
        Case(run_turn, NEAR, a=5.0, b=-7.0, angle=40.0),
        Case(run_turn, NEAR, a=3, b=2, angle=2),
        Case(run_turn, NEAR, a=0.001, b=-0.002, angle=2.5),
    ],
    mistakes={
        "it turns clockwise: swap the signs of the two products with the sine.": turn_by(
            lambda a, b, c, s: a * c + b * s, lambda a, b, c, s: b * c - a * s
        ),
        "these are the right numbers in the wrong order: return a' first, then b'.": turn_by(
            right_y, right_x
        ),
        "the second line uses the new a instead of the old one: keep both old numbers until "
        "both new ones are computed.": new_a,
        "the first line uses the new b instead of the old one: keep both old numbers until both "
        "new ones are computed.": new_b,
        "the angle is already in radians: leave math.radians out.": at_angle(math.radians),
        "the angle is converted to degrees, but math.cos takes radians: leave "
        "math.degrees out.": at_angle(math.degrees),
        "the angle is multiplied by 2π, as if it counted full turns: it is already in radians.": (
            at_angle(lambda angle: 2 * math.pi * angle)
        ),
        "the angle is multiplied by π: it is already in radians.": at_angle(
            lambda angle: math.pi * angle
        ),
        "half the angle is used: use the whole angle.": at_angle(lambda angle: angle / 2),
        "sine and cosine are swapped.": turn_by(
            lambda a, b, c, s: right_x(a, b, s, c), lambda a, b, c, s: right_y(a, b, s, c)
        ),
        "this is a mirror image, because two signs are wrong: a' = a · cos − b · sin, b' = a · "
        "sin + b · cos.": turn_by(
            lambda a, b, c, s: a * c + b * s, lambda a, b, c, s: a * s - b * c
        ),
        "both lines have a plus: the first has a minus, a · cos − b · sin.": turn_by(
            lambda a, b, c, s: a * c + b * s, right_y
        ),
        "both lines have a minus: the second has a plus, a · sin + b · cos.": turn_by(
            right_x, lambda a, b, c, s: a * s - b * c
        ),
        "the second line has one minus too many: a · sin is positive.": turn_by(
            right_x, lambda a, b, c, s: b * c - a * s
        ),
        "the signs in the first line are swapped: a · cos − b · sin.": turn_by(
            lambda a, b, c, s: b * s - a * c, right_y
        ),
        "cosine and sine are swapped in the second line: a goes with the sine, b with the "
        "cosine.": turn_by(right_x, lambda a, b, c, s: a * c + b * s),
        "cosine and sine are swapped in the first line: a goes with the cosine, b with "
        "the sine.": turn_by(lambda a, b, c, s: a * s - b * c, right_y),
        "the first line has the sine twice: a goes with the cosine there.": turn_by(
            lambda a, b, c, s: a * s - b * s, right_y
        ),
        "the first line has the cosine twice: b goes with the sine there.": turn_by(
            lambda a, b, c, s: a * c - b * c, right_y
        ),
        "the second line has the sine twice: b goes with the cosine there.": turn_by(
            right_x, lambda a, b, c, s: a * s + b * s
        ),
        "the second line has the cosine twice: a goes with the sine there.": turn_by(
            right_x, lambda a, b, c, s: a * c + b * c
        ),
        "the second product is missing in each line: a' = a · cos − b · sin, b' = a · sin + b · "
        "cos.": turn_by(lambda a, b, c, s: a * c, lambda a, b, c, s: b * c),
        "the old arrow is added: return only the end of the turned one.": turn_by(
            lambda a, b, c, s: a + right_x(a, b, c, s), lambda a, b, c, s: b + right_y(a, b, c, s)
        ),
        "the arrow is set to the angle, wherever it pointed before: turn it by the angle from "
        "where it is.": put_at,
        "the arctangent of b / a cannot tell an arrow from its opposite: use the "
        "formula.": by_arctangent,
        "the arrow is normalised to length 1: a turn preserves the length.": unit,
        "the numbers are rounded: leave them as they are.": to_tenths,
        "the numbers lose their signs: an arrow may point left or down.": turn_by(
            lambda a, b, c, s: abs(right_x(a, b, c, s)), lambda a, b, c, s: abs(right_y(a, b, c, s))
        ),
        "a complex number is returned: return its two parts.": as_complex,
        "the angle is ignored: the arrow stays where it is.": lambda a, b, angle: (a, b),
        "only the first number is returned: return a' and b'.": (
            lambda a, b, angle: RIGHT(a, b, angle)[0]
        ),
    },
    advice={
        "the two numbers": "Return a' and b', as a tuple.",
        "ZeroDivisionError": (
            "The formula needs no division: a' = a · cos − b · sin and b' = a · sin + b · cos."
        ),
        "the length changed": (
            "Compare each product with the formula, a' = a · cos − b · sin and b' = a · sin + b · "
            "cos: both lines use the old a and b."
        ),
        "the end of": "a' = a · cos − b · sin and b' = a · sin + b · cos, with the angle in "
        "radians.",
    },
    axes=[("number",)],
)
