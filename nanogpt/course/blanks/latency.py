"""Notebook 05, blank 2: latency."""

from ..page import Blank


def latency(moments: list[float]) -> dict:
    """TTFT, TPOT, ITL and E2EL in seconds, from timestamps: the call, then each token."""
    first, *rest = [b - a for a, b in zip(moments, moments[1:])]
    tpot = sum(rest) / len(rest) if rest else None
    return {"ttft": first, "tpot": tpot, "itl": rest, "e2el": moments[-1] - moments[0]}


BLANK = Blank(
    number="05.2",
    solution=latency,
    cases=[],
    mistakes={},
    hints=(
        "How many gaps are there between five timestamps, and which of them is the wait for the first token?",
        "First take the differences of neighbours: `zip(moments, moments[1:])`. The first difference is TTFT, the others are ITL.",
        "first, *rest = [b - a for a, b in zip(moments, moments[1:])]; TPOT is sum(rest) / len(rest), or None if rest is empty",
    ),
    advice={
        "the keys": "Return a dict with ttft, tpot, itl and e2el.",
        "TTFT": "From the call to the first token.",
        "of ITL": "The gaps after the first token.",
        "in ITL": "The gaps after the first token: one less than there are tokens.",
        "TPOT": "The mean of the gaps; None without a gap.",
        "E2EL": "From the call to the last token.",
        "ZeroDivisionError": "A single token has no gap after it: its TPOT is None.",
    },
)
