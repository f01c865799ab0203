"""The checks of measured times: latency and paired_speedup."""

from __future__ import annotations

import math
from statistics import mean, median
from typing import Any

from .exercise import Answer, Case, Exercise, Pairs

# ------------------------------------------------------------------ latency


def run_latency(answer: Answer, moments: list[float]) -> Pairs:
    """The four latency numbers of one text."""
    got = answer([*moments])
    keys = sorted(got) if isinstance(got, dict) else f"{got!r} instead of a dict"
    yield "the keys of the dict", keys
    yield "TTFT", got["ttft"]
    yield "the number of gaps in ITL", len(got["itl"])
    for i, gap in enumerate(got["itl"]):
        yield f"gap {i} of ITL", gap
    yield "TPOT", got["tpot"]
    yield "E2EL", got["e2el"]


def latency(
    moments: list[float],
    ttft: Any = lambda moments: moments[1] - moments[0],
    itl: Any = lambda gaps: gaps[1:],
    tpot: Any = lambda gaps: mean(gaps[1:]) if gaps[1:] else None,
    e2el: Any = lambda moments: moments[-1] - moments[0],
) -> dict[str, Any]:
    """The reference solution. Each number can be replaced."""
    gaps = [b - a for a, b in zip(moments, moments[1:], strict=False)]
    return {"ttft": ttft(moments), "tpot": tpot(gaps), "itl": itl(gaps), "e2el": e2el(moments)}


def times_by(**numbers: Any) -> Answer:
    """latency with other numbers."""
    return lambda moments: latency(moments, **numbers)


def zero_for_one(gaps: list[float]) -> float:
    return mean(gaps[1:]) if gaps[1:] else 0.0


def with_first(gaps: list[float]) -> float | None:
    return mean(gaps) if gaps[1:] else None


def middle(gaps: list[float]) -> float | None:
    return median(gaps[1:]) if gaps[1:] else None


def whole_over_gaps(gaps: list[float]) -> float | None:
    return sum(gaps) / len(gaps[1:]) if gaps[1:] else None


def rounded(moments: list[float]) -> dict[str, Any]:
    return latency([round(moment, 3) for moment in moments])


LATENCY = Exercise(
    notebook="05",
    hints=(
        "How many gaps are there between five timestamps, and which of them is the wait for the "
        "first token?",
        "First take the differences of neighbours: `zip(moments, moments[1:])`. The first "
        "difference is TTFT, the others are ITL.",
        "first, *rest = [b - a for a, b in zip(moments, moments[1:])]; TPOT is sum(rest) / "
        "len(rest), or None if rest is empty",
    ),
    right=latency,
    cases=[
        Case(run_latency, moments=[10.0, 13.0, 14.0, 16.0]),
        Case(run_latency, moments=[0.0, 2.0, 3.0, 4.0, 14.0]),
        Case(run_latency, moments=[1.0, 1.5, 2.5]),
        Case(run_latency, moments=[0.0, 0.001234, 0.00129, 0.002]),
        Case(run_latency, moments=[0.0, 1.0]),
    ],
    mistakes={
        "ITL begins with the wait for the first token: that one is TTFT, which includes the "
        "prefill.": times_by(itl=lambda gaps: gaps),
        "ITL and TPOT begin with the wait for the first token: that one is TTFT, which includes "
        "the prefill.": times_by(itl=lambda gaps: gaps, tpot=mean),
        "TPOT includes the wait for the first token: it is the mean of the gaps after "
        "it.": times_by(tpot=with_first),
        "TPOT is a median: it is the mean of the gaps.": times_by(tpot=middle),
        "TPOT divides the total time by the number of gaps: it is the mean of the gaps.": times_by(
            tpot=whole_over_gaps
        ),
        "E2EL starts at the first token: it starts at the call.": times_by(
            e2el=lambda moments: moments[-1] - moments[1]
        ),
        "TTFT is the first token's timestamp: subtract the call's.": times_by(
            ttft=lambda moments: moments[1]
        ),
        "a single token has no gap after it, so TPOT divides by 0: its TPOT is None.": times_by(
            tpot=lambda gaps: sum(gaps[1:]) / len(gaps[1:])
        ),
        "a single token has no gap after it: its TPOT is None, not 0.": times_by(tpot=zero_for_one),
        "times are rounded: leave them as they are.": rounded,
    },
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


# ------------------------------------------------------------------ paired_speedup


def run_ratio(answer: Answer, a: list[float], b: list[float]) -> Pairs:
    """The ratio of two series of times."""
    yield "the speedup", answer([*a], [*b])


def ratios(a: list[float], b: list[float]) -> list[float]:
    return [x / y for x, y in zip(a, b, strict=True)]


def speedup_by(of_ratios: Any) -> Answer:
    """paired_speedup with other statistics of the ratios."""
    return lambda a, b: of_ratios(ratios(a, b))


def trimmed(x: list[float]) -> float:
    return mean(sorted(x)[1:-1] or x)


SPEEDUP = Exercise(
    notebook="05",
    hints=(
        "The machine slows down in the middle of the run, which affects both a and b of that "
        "turn. Which ratio is unaffected?",
        "First a list of ratios, one per pair, then the `median` of that list.",
        "return median(x / y for x, y in zip(a, b))",
    ),
    right=speedup_by(median),
    cases=[
        Case(run_ratio, a=[2.0, 6.0, 40.0], b=[1.0, 2.0, 10.0]),
        Case(run_ratio, a=[2.0, 2.0, 90.0], b=[1.0, 1.0, 1.0]),
        Case(run_ratio, a=[1.0, 10.0, 100.0], b=[2.0, 1.0, 100.0]),
        Case(run_ratio, a=[9.0, 6.0, 4.0, 1.0, 2.0], b=[3.0, 2.0, 8.0, 0.5, 4.0]),
        Case(run_ratio, a=[8.0, 1.0, 6.0, 20.0], b=[2.0, 1.0, 1.0, 2.0]),
        Case(run_ratio, a=[7.0], b=[2.0]),
    ],
    mistakes={
        "this is b / a, which is below 1 if b is faster: the speedup is a / b.": (
            lambda a, b: median(ratios(b, a))
        ),
        "this is a mean, which one disturbed pair can move far: use the median.": speedup_by(mean),
        "this is a trimmed mean of the ratios: use the median.": speedup_by(trimmed),
        "this is a geometric mean: use the median.": speedup_by(
            lambda x: math.exp(mean(map(math.log, x)))
        ),
        "this is the ratio of the medians: it divides runs that do not belong together.": (
            lambda a, b: median(a) / median(b)
        ),
        "this is the ratio of the sums: it divides runs that do not belong together.": (
            lambda a, b: sum(a) / sum(b)
        ),
        "this pairs runs that do not belong together: sort the ratios, not the runs.": (
            lambda a, b: median(ratios(sorted(a), sorted(b)))
        ),
        "for an even number of ratios you return the upper middle one: the median is half-way "
        "between the two.": speedup_by(lambda x: sorted(x)[len(x) // 2]),
        "for an even number of ratios you return the lower middle one: the median is half-way "
        "between the two.": speedup_by(lambda x: sorted(x)[(len(x) - 1) // 2]),
        "you return the middle of the unsorted list: sort the ratios first.": speedup_by(
            lambda x: x[len(x) // 2]
        ),
    },
    advice={"the speedup": "It is the median of the ratios a / b within the pairs."},
)
