"""Data for the interactive figures of a run's measurements: plain data in and out.

Each function returns a kind (a script in figures/) and its data, for `Run.figure`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import linear_regression, median

from ..bench.tables import shown_label
from ..config import GPTConfig
from ..timing import Summary, summary
from .moving import FigureData

GROUPS = 16  # most groups of neighbouring tokens, one point each
FAR = 0.25  # relative distance from the line; the line is dropped if half of the times are farther
TIME_PARTS = ("arithmetic", "memory", "overhead")
DOES = {  # the work of a rung, by the labels of bench.ladder
    "per-Head, no cache": "Reads the whole text again for every token, head by head.",
    "your loop (notebook 02)": "Your heads keep keys and values; your loop reads one token a step.",
    "per-Head, cache by torch.cat": "Reads one token a step; torch.cat copies each head's cache.",
    "batched heads, torch.cat": "All heads of a layer in one product, with one cache: fewer calls.",
    # In ladders that were published before it was found to be no faster than the one before it.
    "static cache, inference_mode": "The cache is allocated once and written in place: no copies.",
    "flat step, eager": "One function over plain tensors: no module is called.",
    "compiled step": "The step is compiled: many small operations become a few loops.",
    "CUDA graph of a step": "The step is recorded once and replayed: one launch a token.",
    "CUDA graph of 16 steps": "Sixteen steps are one recorded graph: one launch for all of them.",
    "native loop": "The whole loop in C++: no call of Python or torch between two tokens.",
    "native loop, 8-bit weights": "The same with a quarter of the bytes: not quite the same model.",
}


def moving_cost(
    config: GPTConfig, timing: FigureData, count: Callable[..., int]
) -> tuple[str, FigureData]:
    """The cost of a token against its position: counted multiplications and measured times.

    `timing` is the result of `time_pair` after a prompt of one token, and `count` is notebook 05's
    `multiplications`. `line` is the straight line through the points' medians, in seconds: `step`
    per step and `each` per multiplication; half of the medians are within the relative distance
    `off` of it. It is None if no line fits, for example for a very short text.
    """
    W = config.matrix_weights
    L = config.n_layer
    C = config.n_embd
    points = _points(*(timing["systems"][name]["itl"] for name in ("uncached", "cached")))
    return "cost", {
        "layers": L,
        "width": C,
        "vocabulary": config.vocab_size,
        "block": (W - config.vocab_size * C) // L / C**2,  # weights of a layer, in units of C · C
        "tokens": points[-1]["to"],
        "turns": timing["speedup"]["n"],
        "points": points,
        "line": _line(points, lambda T, cached: count(T, W, L, C, cached)),
    }


def _points(without: list[float], cached: list[float]) -> list[FigureData]:
    """The gaps between tokens as summaries, grouped by position; the first token has no gap."""
    groups = max(1, min(GROUPS, len(cached) // 3))
    cuts = [len(cached) * i // groups for i in range(groups + 1)]
    points = []
    for start, stop in pairwise(cuts):
        points.append(
            {
                "from": start + 2,
                "to": stop + 1,
                "without": _rounded(summary(without[start:stop])),
                "with": _rounded(summary(cached[start:stop])),
            }
        )
    return points


def _line(points: list[FigureData], count: Callable[[int, bool], int]) -> FigureData | None:
    """{step, each, off, n} of the least-squares line; None if it does not fit."""
    counts = []
    seconds = []
    for point in points:
        for cached, way in ((False, "without"), (True, "with")):
            counts.append((count(point["from"], cached) + count(point["to"], cached)) / 2)
            seconds.append(point[way]["median"])
    each, step = linear_regression(counts, seconds)
    off = median(abs(step + each * n - s) / s for n, s in zip(counts, seconds, strict=True))
    if each <= 0 or step < 0 or off > FAR:
        return None
    return {"step": step, "each": each, "off": off, "n": len(seconds)}


def moving_ladder(ladders: list[tuple[str, FigureData, str]]) -> tuple[str, FigureData]:
    """The rungs of several ladders, each with the breakdown of a token's time.

    A ladder is its name, its result from bench.ladder, and the conditions with which it was
    published, or "" for this run.
    """
    return "ladder", {"ladders": [_ladder(*one) for one in ladders]}


def _ladder(name: str, result: FigureData, published: str) -> FigureData:
    limits = result["limits"]
    base = result["rungs"][0]["tokens_per_second"]["median"]
    ends = ("low", "median", "high")
    return {
        "name": name,
        "published": published,
        "tokens": result["n_new"],
        "turns": result["repeats"],
        "roofline": {end: limits["roofline"][end] / base for end in ends},
        "peak": {end: limits["peak"][end] for end in ends},
        "read": {end: limits["read"][end] for end in ends},
        "rungs": [_rung(row) for row in result["rungs"]],
    }


def _rung(row: FigureData) -> FigureData:
    about = {
        "rung": row["rung"],
        "label": shown_label(row["label"]),
        "does": DOES.get(row["label"], ""),
    }
    if "speedup" not in row:
        return about | {"unavailable": row.get("unavailable", "not measured")}
    split = {part: row["split"][part] for part in TIME_PARTS}
    return about | {"speedup": row["speedup"], "equal": row["equal"], "split": split}


def _rounded(times: Summary) -> Summary:
    """A summary in seconds, to a tenth of a microsecond."""
    return {
        "median": round(times["median"], 7),
        "low": round(times["low"], 7),
        "high": round(times["high"], 7),
        "n": times["n"],
    }
