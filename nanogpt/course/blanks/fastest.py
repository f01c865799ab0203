"""Notebook 06, blank 2: fastest, the tokens per second that the roofline allows."""

from ..drivers import calls
from ..page import Blank


def fastest(flop: float, n_bytes: float, peak: float, bandwidth: float) -> float:
    """Upper limit of tokens per second if arithmetic and memory reads overlap."""
    return 1 / max(flop / peak, n_bytes / bandwidth)


# ------------------------------------------------------------------ what a check runs

NAMES = "flop n_bytes peak bandwidth"


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="06.2",
    minutes=4,
    solution=fastest,
    cases=calls(
        NAMES,
        (100.0, 100.0, 1000.0, 500.0),
        (1000.0, 100.0, 1000.0, 500.0),
        (10.0, 8.0, 1000.0, 2.0),
        (3.0, 7.0, 12.0, 2.0),
        (3.0, 7.0, 2.0, 12.0),
    ),
    mistakes={
        "you add the two times: they overlap, so only the longer one counts.": [
            "max(flop / peak, n_bytes / bandwidth) -> (flop / peak + n_bytes / bandwidth)"
        ],
        "this is the time per token: tokens per second is 1 over that.": ["1 / max -> max"],
        "this is the larger of the two rates, from the shorter of the two times: a token waits for the slower one.": [
            "max -> min"
        ],
        "only memory reads are counted: arithmetic can also be the limit.": [
            "max(flop / peak, n_bytes / bandwidth) -> (n_bytes / bandwidth)"
        ],
        "operations are divided by bytes per second: peak belongs to flop, and bandwidth to n_bytes.": [
            "flop / peak, n_bytes / bandwidth -> flop / bandwidth, n_bytes / peak"
        ],
    },
    wrong=[
        "1 / max -> 1 // max",
        "flop / peak -> 2 * flop / peak",
        "1 / max(flop / peak, n_bytes / bandwidth) -> peak / flop if flop > n_bytes else bandwidth / n_bytes",
    ],
    right=[
        """
def fastest(flop, n_bytes, peak, bandwidth):
    return min(peak / flop, bandwidth / n_bytes)
""",
        """
def fastest(flop, n_bytes, peak, bandwidth):
    import numpy as np

    return 1 / np.maximum(np.float64(flop) / peak, n_bytes / bandwidth)
""",
        """
def fastest(flop, n_bytes, peak, bandwidth):
    intensity = flop / n_bytes
    if intensity > peak / bandwidth:
        return peak / flop
    return intensity * bandwidth / flop
""",
    ],
    hints=(
        "Arithmetic and memory reads overlap. When is a token done?",
        "Two times in seconds: `flop / peak` and `n_bytes / bandwidth`. Which of them decides?",
        "return 1 / max(flop / peak, n_bytes / bandwidth)",
    ),
    advice={
        "the number": "A token takes the longer of flop / peak and n_bytes / bandwidth seconds; return 1 over that.",
    },
)
