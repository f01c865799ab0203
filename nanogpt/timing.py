"""Timing token iterators from outside: TTFT, TPOT, ITL and E2EL, interleaved, as plain data.

The terms are those of inference servers. TTFT: time to first token, the prefill and one sample.
ITL: inter-token latency, each gap after it. TPOT: time per output token, the mean of the gaps.
E2EL: end-to-end latency, the sum. All are in seconds; quote the ratio of two systems.
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
Tokens = Callable[[], Iterable]  # starts a generation: lambda: generate(model, prompt, 9)
Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


class Summary(TypedDict):
    """Summary statistics of repeated measurements."""

    median: float
    low: float
    high: float
    n: int


def time_tokens(tokens: Iterable, device: torch.device = CPU) -> list[float]:
    """Seconds from the call to the first token, then between tokens. Raises ValueError."""
    # A generator computes a token when it is asked for it, so the gap between two tokens is the
    # time of the second one. The first gap includes the prefill.
    moments = [clock(device)]
    for _ in tokens:
        moments.append(clock(device))
    if len(moments) < 2:
        raise ValueError("the iterator yielded no token to time: ask for at least 1")
    return [b - a for a, b in zip(moments, moments[1:], strict=False)]


def metrics(gaps: list[float]) -> dict:
    """TTFT, TPOT, ITL and E2EL of one run, in seconds. TPOT is None for a single token."""
    # The first gap contains the prefill of the whole prompt; each other gap is one decoding step.
    first, *rest = gaps
    return {"ttft": first, "tpot": fmean(rest) if rest else None, "itl": rest, "e2el": sum(gaps)}


def summary(values: Iterable[float]) -> Summary:
    """Median, smallest, largest and count of one or more measurements."""
    ordered = sorted(values)
    return {"median": median(ordered), "low": ordered[0], "high": ordered[-1], "n": len(ordered)}


def time_pair(a: Tokens, b: Tokens, *, repeats: int = 5, device: torch.device = CPU) -> dict:
    """Time two token iterators, uncached and cached, interleaved, after a warm-up of each.

    Returns plain data: `systems`, a summary of every metric and the median gap at each token for
    both; `speedup`, the summary of E2EL(a) / E2EL(b) over pairs. Raises ValueError.
    """
    # 1. Alternate the two: A B A B …, after a warm-up of each.
    runs = paired_gaps(a, b, repeats=repeats, device=device)
    # 2. Runs next to each other in time share the machine's load, so take the ratio of each pair.
    speedup = summary(sum(x) / sum(y) for x, y in zip(*runs, strict=True))
    # 3. What each system did, metric by metric.
    systems = {"uncached": _system_summary(runs[0]), "cached": _system_summary(runs[1])}
    return {"systems": systems, "speedup": speedup}


def paired_gaps(a: Tokens, b: Tokens, *, repeats: int, device=CPU) -> list[list[list[float]]]:
    """The gaps of every measured run of a and b, interleaved. Raises ValueError."""
    # A special case of `interleave`: two systems, named 0 and 1.
    systems = [lambda: time_tokens(a(), device), lambda: time_tokens(b(), device)]
    runs = list(interleave(dict(enumerate(systems)), repeats).values())
    counts = {len(gaps) for system in runs for gaps in system}
    if len(counts) > 1:
        raise ValueError(f"the runs yielded {sorted(counts)} tokens: compare equal work")
    return runs


def interleave(
    runs: Mapping[Name, Callable[[], Result]],
    repeats: int,
    after_turn: Callable[[], None] = lambda: None,
    warmup: int = 1,
) -> dict[Name, list[Result]]:
    """Run A B C A B C … and return every run's results, without the warm-up.

    `after_turn` is called after every turn, including the warm-up. Raises ValueError.
    """
    # 1. A machine's speed drifts with its load and temperature. Interleaved, all runs see the same
    #    drift.
    check_int("repeats", repeats, 1)
    results: dict[Name, list[Result]] = {name: [] for name in runs}
    with Progress((warmup + repeats) * len(runs), "timing") as bar:
        for _ in range(warmup + repeats):
            for name, run in runs.items():
                gc.collect()  # here, and not during a measurement
                results[name].append(run())
                bar.update()
            after_turn()
    # 2. The warm-up filled caches and triggered compilation: its times mean nothing.
    return {name: turns[warmup:] for name, turns in results.items()}


def _system_summary(runs: list[list[float]]) -> dict:
    # The median over the runs, token by token, so that a hiccup in one run does not show.
    each = [metrics(gaps) for gaps in runs]
    out = {key: summary(m[key] for m in each) for key in ("ttft", "e2el")}
    out["tpot"] = summary(m["tpot"] for m in each) if each[0]["itl"] else None
    out["itl"] = [median(column) for column in zip(*[m["itl"] for m in each], strict=True)]
    return out


def clock(device: torch.device) -> float:
    """The time in seconds, once the device has finished all its work."""
    # A GPU runs kernels asynchronously: without a sync this would time only the launches.
    synchronize(device)
    return time.perf_counter()
