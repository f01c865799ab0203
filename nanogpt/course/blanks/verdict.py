"""Notebook 03, blank 1: verdict."""

from ..page import Blank


def verdict(in_float32, in_float64):
    """'equal', 'rounding' or 'bug', from the largest logit difference in each dtype."""
    if in_float32 == in_float64 == 0:
        return "equal"
    return "rounding" if in_float64 < in_float32 / 1000 else "bug"


BLANK = Blank(
    number="03.1",
    solution=verdict,
    cases=[],
    mistakes={},
    hints=(
        "How much smaller does rounding get in float64? And how much smaller does a bug get?",
        'Test for what is good, and let "bug" be the rest: `fine < coarse` is False if either is NaN.',
        'if in_float32 == in_float64 == 0: return "equal"; then return "rounding" if in_float64 < in_float32 / 1000 else "bug"',
    ),
    advice={
        "the verdict": "A bug does not shrink a thousandfold. No difference in either dtype is 'equal', and a NaN is a bug.",
        "not a word": "Return one of the words 'equal', 'rounding' and 'bug'.",
    },
)
