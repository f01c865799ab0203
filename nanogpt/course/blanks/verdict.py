"""Notebook 03, blank 1: verdict, which tells rounding from a bug by how much it shrinks."""

import math

from ..page import Blank, Case


def verdict(in_float32, in_float64):
    """'equal', 'rounding' or 'bug', from the largest logit difference in each dtype."""
    if in_float32 == in_float64 == 0:
        return "equal"
    return "rounding" if in_float64 < in_float32 / 1000 else "bug"


# ------------------------------------------------------------------ what a check runs

NAN = float("nan")  # a different object from math.nan, so that comparing with `is` fails
INF = math.inf
PAIRS = [  # differences in float32 and in float64
    (0.0, 0.0),
    (2e-5, 4e-14),
    (2e-3, 2e-3),
    (3e-10, 2e-10),
    (3e-2, 0.0),
    (0.0, 1e-3),
    (2e-5, 3e-8),
    (2e-5, 1e-8),
    (4.0, 0.1),
    (4000.0, 3.0),
    (1e-5, 1e-3),
    (1e-9, 1e-13),
    (NAN, NAN),
    (NAN, 0.0),
    (0.0, NAN),
    (1e-5, NAN),
    (1e-5, INF),
    (INF, INF),
    (0, 0),
]


def run_verdict(answer, in_float32, in_float64):
    """One call."""
    said = answer(in_float32, in_float64)
    other = said not in ("equal", "rounding", "bug")
    yield "what is returned is none of 'equal', 'rounding' and 'bug'", other
    yield "the verdict", said


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="03.1",
    minutes=6,
    solution=verdict,
    # No pair is at the edge: exactly a thousandth is left open. So is a difference that is infinite
    # only in float32.
    cases=[Case(run_verdict, in_float32=a, in_float64=b) for a, b in PAIRS],
    mistakes={
        "a difference of 0 in one dtype alone is not 'equal': in float32 alone it is rounding, in "
        "float64 alone a bug.": ["in_float32 == in_float64 == 0 -> in_float64 == 0"],
        "two differences of the same size are not 'equal': a difference that does not shrink is a bug.": [
            "in_float32 == in_float64 == 0 -> in_float32 == in_float64"
        ],
        "a small difference is not 'equal', which means none at all: compare with 0 itself.": [
            "in_float32 == in_float64 == 0 -> in_float32 < 1e-6 and in_float64 < 1e-6"
        ],
        "a difference that shrinks a little is not yet rounding: it must be a thousand times smaller.": (
            ["in_float32 / 1000 -> in_float32"],
            ["in_float32 / 1000 -> in_float32 / 10"],
            ["in_float32 / 1000 -> in_float32 / 100"],
        ),
        "a thousand times smaller is enough for rounding: you require more.": (
            ["in_float32 / 1000 -> in_float32 / 1e6"],
            ["in_float32 / 1000 -> in_float32 * 2**-29"],
        ),
        "the difference in float32 must be a thousand times that in float64, not the other way round.": [
            "in_float64 < in_float32 / 1000 -> in_float32 < in_float64 / 1000"
        ],
        "rounding and bug are swapped: what shrinks is rounding.": [
            '"rounding" if in_float64 < in_float32 / 1000 else "bug" -> '
            '"bug" if in_float64 < in_float32 / 1000 else "rounding"'
        ],
        "NaN is a bug: every comparison with NaN is False, so test for what is good and let 'bug' be "
        "the rest.": ["in_float64 < in_float32 / 1000 -> not in_float64 >= in_float32 / 1000"],
        "your ratio divides by 0 if float64 shows no difference: compare with in_float32 / 1000.": [
            "in_float64 < in_float32 / 1000 -> in_float32 / in_float64 > 1000"
        ],
        "a boolean is returned: return 'equal', 'rounding' or 'bug'.": (
            [
                '    if in_float32 == in_float64 == 0:\n        return "equal"\n -> ',
                '"rounding" if in_float64 < in_float32 / 1000 else "bug" -> in_float64 < in_float32 / 1000',
            ],
            [
                '    if in_float32 == in_float64 == 0:\n        return "equal"\n -> ',
                '"rounding" if in_float64 < in_float32 / 1000 else "bug" -> in_float64 * 1000 <= in_float32',
            ],
        ),
    },
    wrong=[
        "in_float64 < -> 1e-20 < in_float64 <",
        "in_float32 == in_float64 == 0 -> in_float32 == 0",
        '"rounding" if in_float64 < in_float32 / 1000 else "bug" -> in_float64 < in_float32 / 1000',
    ],
    right=[
        """
def verdict(in_float32, in_float64):
    if math.isnan(in_float32) or math.isnan(in_float64) or math.isinf(in_float64):
        return "bug"
    if in_float32 == 0 and in_float64 == 0:
        return "equal"
    if in_float64 * 1000 <= in_float32:
        return "rounding"
    return "bug"
""",
        """
def verdict(in_float32, in_float64):
    if not (in_float32 or in_float64):
        return "equal"
    return ("bug", "rounding")[1000 * in_float64 < in_float32]
""",
        """
def verdict(in_float32, in_float64):
    if in_float64 == 0:
        return "rounding" if in_float32 > 0 else "equal" if in_float32 == 0 else "bug"
    return "rounding" if in_float32 / in_float64 >= 1000 else "bug"
""",
    ],
    hints=(
        "How much smaller does rounding get in float64? And how much smaller does a bug get?",
        'Test for what is good, and let "bug" be the rest: `fine < coarse` is False if either is NaN.',
        'if in_float32 == in_float64 == 0: return "equal"; then return "rounding" if in_float64 < in_float32 / 1000 else "bug"',
    ),
    advice={
        "the verdict": "A bug does not shrink a thousandfold. No difference in either dtype is 'equal', and a NaN is a bug.",
        "none of": "Return one of these words, in lower case.",
    },
)
