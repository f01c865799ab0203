"""Timing token iterators from outside: TTFT, TPOT, ITL and E2EL, interleaved, as plain data.

The terms are those of inference servers. TTFT: time to first token, the prefill and one draw.
ITL: inter-token latency, each gap after it. TPOT: time per output token, the mean of the gaps.
E2EL: end-to-end latency, the sum. All are seconds; a ratio of two systems is what to quote.
"""

import gc
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from statistics import fmean, median
from typing import TypedDict, TypeVar

import torch

from .config import check_int
from .console import Progress
from .device import synchronize

CPU = torch.device("cpu")
Tokens = Callable[[], Iterable]  # starts a generation, as in lambda: generate(model, prompt, 9)
Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


class Summary(TypedDict):
    """Some measurements of one thing."""

    median: float
    low: float
    high: float
    n: int


def time_tokens(tokens: Iterable, device: torch.device = CPU) -> list[float]:
    """Seconds from the call to the first token, then between tokens. Raises ValueError."""
    # A generator computes while it is asked for its next token, so the time between two tokens is
    # what the second one took. The first gap has the prefill in it.
    moments = [clock(device)]
    for _ in tokens:
        moments.append(clock(device))
    if len(moments) < 2:
        raise ValueError("the iterator gave no token to time: ask for at least 1")
    return [b - a for a, b in zip(moments, moments[1:], strict=False)]


def metrics(gaps: list[float]) -> dict:
    """TTFT, TPOT, ITL and E2EL of one run, in seconds. TPOT is None for a single token."""
    first, *rest = gaps
    return {"ttft": first, "tpot": fmean(rest) if rest else None, "itl": rest, "e2el": sum(gaps)}


def summary(values: Iterable[float]) -> Summary:
    """Median, smallest, largest and count of some measurements, of which there is at least one."""
    ordered = sorted(values)
    return {"median": median(ordered), "low": ordered[0], "high": ordered[-1], "n": len(ordered)}


def time_pair(a: Tokens, b: Tokens, *, repeats: int = 5, device: torch.device = CPU) -> dict:
    """Time two token iterators, uncached and cached, interleaved, after a warm-up of each.

    Returns, as plain data: for both `systems` a summary of every metric and the median gap at each
    token; `speedup`, the summary of E2EL(a) / E2EL(b) pair by pair. Raises ValueError.
    """
    runs = paired_gaps(a, b, repeats=repeats, device=device)
    # Neighbours in time share the machine's load, so each ratio is of one pair.
    speedup = summary(sum(x) / sum(y) for x, y in zip(*runs, strict=True))
    systems = {"uncached": _system_summary(runs[0]), "cached": _system_summary(runs[1])}
    return {"systems": systems, "speedup": speedup}


def paired_gaps(a: Tokens, b: Tokens, *, repeats: int, device=CPU) -> list[list[list[float]]]:
    """The gaps of every counted run of a and of b, interleaved. Raises ValueError."""
    # Two systems are a case of `interleave`: their names are 0 and 1.
    systems = [lambda: time_tokens(a(), device), lambda: time_tokens(b(), device)]
    runs = list(interleave(dict(enumerate(systems)), repeats).values())
    counts = {len(gaps) for system in runs for gaps in system}
    if len(counts) > 1:
        raise ValueError(f"the runs gave {sorted(counts)} tokens: compare equal work")
    return runs


def interleave(
    runs: Mapping[Name, Callable[[], Result]],
    repeats: int,
    after_turn: Callable[[], None] = lambda: None,
    warmup: int = 1,
) -> dict[Name, list[Result]]:
    """The results of every run in each turn, A B C A B C …, without those of the warm-up.

    `after_turn` is called after every turn, the warm-up included. Raises ValueError.
    """
    # A machine's speed drifts, with its load and its temperature. In turns, all runs meet the same
    # drift. The warm-up fills caches and compiles what is compiled; its times mean nothing.
    check_int("repeats", repeats, 1)
    results: dict[Name, list[Result]] = {name: [] for name in runs}
    with Progress((warmup + repeats) * len(runs), "timing") as bar:
        for _ in range(warmup + repeats):
            for name, run in runs.items():
                gc.collect()  # here, and not during a measurement
                results[name].append(run())
                bar.update()
            after_turn()
    return {name: turns[warmup:] for name, turns in results.items()}


def _system_summary(runs: list[list[float]]) -> dict:
    # A token's median over the runs, token by token: one run's hiccup does not show.
    each = [metrics(gaps) for gaps in runs]
    out = {key: summary(m[key] for m in each) for key in ("ttft", "e2el")}
    out["tpot"] = summary(m["tpot"] for m in each) if each[0]["itl"] else None
    out["itl"] = [median(column) for column in zip(*[m["itl"] for m in each], strict=True)]
    return out


def clock(device: torch.device) -> float:
    """The time in seconds, once the device has finished all its work."""
    # A GPU takes orders and works on them later: without a wait only the giving of orders is timed.
    synchronize(device)
    return time.perf_counter()
