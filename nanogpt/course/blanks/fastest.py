"""Notebook 06, blank 2: fastest."""

from ..page import Blank


def fastest(flop: float, n_bytes: float, peak: float, bandwidth: float) -> float:
    """Upper limit of tokens per second if arithmetic and memory reads overlap."""
    return 1 / max(flop / peak, n_bytes / bandwidth)


BLANK = Blank(
    number="06.2",
    solution=fastest,
    cases=[],
    mistakes={},
    hints=(
        "Arithmetic and memory reads overlap. When is a token done?",
        "Two times in seconds: `flop / peak` and `n_bytes / bandwidth`. Which of them decides?",
        "return 1 / max(flop / peak, n_bytes / bandwidth)",
    ),
    advice={
        "the number": "A token takes the longer of flop / peak and n_bytes / bandwidth seconds."
    },
)
