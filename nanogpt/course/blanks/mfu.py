"""Notebook 11, blank 3: mfu."""

from ..page import Blank


def mfu(chars, seconds, parameters, layers, width, block, peak):
    """The share of `peak` (operations per second) used by processing `chars` characters in `seconds`."""
    work = 6 * parameters + 12 * layers * width * block  # per character
    return work * chars / seconds / peak


BLANK = Blank(
    number="11.3",
    solution=mfu,
    cases=[],
    mistakes={},
    hints=(
        "How many operations does one character cost? How many characters are processed per second? And how many operations could be done in that second?",
        "Operations per character: 6 · parameters + 12 · layers · width · block. Multiply by characters per second, and divide by the peak.",
        "return (6 * parameters + 12 * layers * width * block) * chars / seconds / peak",
    ),
    advice={
        "the number": "6 · parameters + 12 · layers · width · block operations per character, times the characters per second, over the peak."
    },
)
