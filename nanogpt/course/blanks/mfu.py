"""Notebook 11, blank 3: mfu, the fraction of a machine's peak that training uses."""

from ..drivers import calls
from ..page import Blank


def mfu(chars, seconds, parameters, layers, width, block, peak):
    """The share of `peak` (operations per second) used by processing `chars` characters in `seconds`."""
    work = 6 * parameters + 12 * layers * width * block  # per character
    return work * chars / seconds / peak


# ------------------------------------------------------------------ what a check runs

NAMES = "chars seconds parameters layers width block peak"


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="11.3",
    minutes=6,
    solution=mfu,
    cases=calls(
        NAMES,
        (1000, 2.0, 700, 5, 10, 4, 6_600_000),
        (300, 0.25, 1_000, 3, 7, 11, 1e9),
        (50_000, 9.5, 10_788_929, 6, 384, 256, 3.12e14),
        (1, 1.0, 1, 1, 1, 1, 10),
    ),
    mistakes={
        "you multiply by the seconds: divide by them.": ["/ seconds -> * seconds"],
        "the fraction is inverted: utilization is used / peak.": [
            "work * chars / seconds / peak -> peak / (work * chars / seconds)"
        ],
        "the weights have another factor: 6 operations each, 2 in the forward pass and 4 in the backward pass.": [
            "6 * parameters -> 2 * parameters"
        ],
        "the weights are counted once per layer: `parameters` already includes all layers.": [
            "6 * parameters -> 6 * parameters * layers"
        ],
        "the result is limited, rounded or in percent: leave the fraction as it is.": [
            "work * chars / seconds / peak -> min(1.0, work * chars / seconds / peak)"
        ],
    },
    wrong=[
        "/ peak -> / peak / 1e12",
        '    return work * chars / seconds / peak ->     return f"{work * chars / seconds / peak:.1%}"',
        "/ peak -> * 1e-12 / peak",
        "work * chars / seconds / peak -> round(work * chars / seconds / peak, 2)",
    ],
    right=[
        """
def mfu(chars, seconds, parameters, layers, width, block, peak):
    weights = 6 * parameters
    attention = 12 * layers * width * block
    speed = chars / seconds
    return speed * (weights + attention) / peak
""",
        """
def mfu(chars, seconds, parameters, layers, width, block, peak):
    forward = 2 * parameters + 2 * 2 * layers * width * block
    return 3 * forward * chars / (seconds * peak)
""",
        """
def mfu(chars, seconds, parameters, layers, width, block, peak):
    import numpy as np

    work = np.dot([6, 12], [parameters, layers * width * block])
    return np.float64(work) * chars / peak / seconds
""",
    ],
    hints=(
        "How many operations does one character cost? How many characters are processed per second? And how many operations could be done in that second?",
        "Operations per character: 6 · parameters + 12 · layers · width · block. Multiply by characters per second, and divide by the peak.",
        "return (6 * parameters + 12 * layers * width * block) * chars / seconds / peak",
    ),
    advice={
        "the number": "6 · parameters + 12 · layers · width · block operations per character, times the characters per second, over the peak, which is in operations per second.",
    },
)
