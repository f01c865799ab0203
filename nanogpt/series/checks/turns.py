"""The check of turn_arrow."""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import solutions
from .exercise import Answer, Case, Exercise, Pairs
from .observing import form

NEAR = 1e-5  # relative to the longer number: float32 is exact enough


def run_turn(answer: Answer, a: float, b: float, angle: float) -> Pairs:
    """One turn, and whether it keeps the length."""
    got = answer(a, b, angle)
    yield "the two numbers", _kind(got)
    x, y = (float(number) for number in got)
    before = math.hypot(a, b)
    same = math.isclose(math.hypot(x, y), before, rel_tol=NEAR, abs_tol=NEAR)
    yield f"the length went from {before:.2f} to another one, and a turn keeps it", not same
    yield "the end of the arrow", torch.tensor([x, y], dtype=torch.float64)


def _kind(got: Any) -> str:
    """That two numbers came, or what else did."""
    if isinstance(got, (str, dict)) or not hasattr(got, "__len__"):
        return f"not two numbers, but {form(got)}"
    return f"{len(got)} numbers"


def turn_by(x: Any, y: Any) -> Answer:
    """turn_arrow by two functions of a, b, cos and sin."""

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
    """turn_arrow by another angle."""
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
        "it turned clockwise: exchange the signs of the two products with the sine.": turn_by(
            lambda a, b, c, s: a * c + b * s, lambda a, b, c, s: b * c - a * s
        ),
        "these are the right two numbers in the wrong order: return a' first, then b'.": turn_by(
            right_y, right_x
        ),
        "the second line takes the new a in place of the old one: keep both old numbers until both "
        "new ones are there.": new_a,
        "the first line takes the new b in place of the old one: keep both old numbers until both "
        "new ones are there.": new_b,
        "the angle is in radians already: leave math.radians out.": at_angle(math.radians),
        "the angle becomes degrees, and math.cos takes radians: leave math.degrees out.": at_angle(
            math.degrees
        ),
        "the angle is multiplied by 2π, as if it counted turns: it is in radians already.": (
            at_angle(lambda angle: 2 * math.pi * angle)
        ),
        "the angle is multiplied by π: it is in radians already.": at_angle(
            lambda angle: math.pi * angle
        ),
        "half the angle is taken: take all of it.": at_angle(lambda angle: angle / 2),
        "sine and cosine are exchanged.": turn_by(
            lambda a, b, c, s: right_x(a, b, s, c), lambda a, b, c, s: right_y(a, b, s, c)
        ),
        "this is a mirror image, without a minus that is right: a' = a · cos − b · sin, b' = a · "
        "sin + b · cos.": turn_by(
            lambda a, b, c, s: a * c + b * s, lambda a, b, c, s: a * s - b * c
        ),
        "both lines have a plus: the first has a minus, a · cos − b · sin.": turn_by(
            lambda a, b, c, s: a * c + b * s, right_y
        ),
        "both lines have a minus: the second has a plus, a · sin + b · cos.": turn_by(
            right_x, lambda a, b, c, s: a * s - b * c
        ),
        "the second line has a minus too many: a · sin comes with a plus.": turn_by(
            right_x, lambda a, b, c, s: b * c - a * s
        ),
        "the first line has its signs exchanged: a · cos − b · sin.": turn_by(
            lambda a, b, c, s: b * s - a * c, right_y
        ),
        "the second line has cosine and sine exchanged: a goes with the sine, b with the "
        "cosine.": turn_by(right_x, lambda a, b, c, s: a * c + b * s),
        "the first line has cosine and sine exchanged: a goes with the cosine, b with the "
        "sine.": turn_by(lambda a, b, c, s: a * s - b * c, right_y),
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
        "the old arrow is added: return the end of the turned one alone.": turn_by(
            lambda a, b, c, s: a + right_x(a, b, c, s), lambda a, b, c, s: b + right_y(a, b, c, s)
        ),
        "the arrow is put at the angle, wherever it pointed before: turn it further by the "
        "angle.": put_at,
        "the arctangent of b / a cannot tell an arrow from its opposite: use the formula, without "
        "angles of your own.": by_arctangent,
        "the arrow is made as long as 1: a turn keeps the length.": unit,
        "the numbers are rounded: leave them as they are.": to_tenths,
        "the numbers lose their signs: an arrow may point to the left, or down.": turn_by(
            lambda a, b, c, s: abs(right_x(a, b, c, s)), lambda a, b, c, s: abs(right_y(a, b, c, s))
        ),
        "a complex number comes: return its two parts.": as_complex,
        "the angle is not used: the arrow stays where it is.": lambda a, b, angle: (a, b),
        "only the first number is returned: return a' and b'.": (
            lambda a, b, angle: RIGHT(a, b, angle)[0]
        ),
    },
    advice={
        "the two numbers": "Return a' and b', as a tuple.",
        "ZeroDivisionError": "The formula divides by nothing: a' = a · cos − b · sin and b' = a · "
        "sin + b · cos.",
        "the length went": "Compare each product with the formula, a' = a · cos − b · sin and b' = "
        "a · sin + b · cos: both lines take the old a and b.",
        "the end of": "a' = a · cos − b · sin and b' = a · sin + b · cos, with the angle in "
        "radians.",
    },
    axes=[("number",)],
)
