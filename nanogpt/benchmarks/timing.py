"""Timing token iterators from outside: TTFT, TPOT, ITL and E2EL, in interleaved pairs, as plain data.

The terms are those of inference servers. TTFT: time to first token, the prefill and one draw.
ITL: inter-token latency, each gap after it. TPOT: time per output token, the mean of the gaps.
E2EL: end-to-end latency, the sum. All are seconds; a ratio of two systems is what to quote.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from statistics import median

import torch

from ..system.device import synchronize

CPU = torch.device("cpu")


def time_tokens(tokens: Iterable, device: torch.device = CPU) -> list[float]:
    """Seconds from the call to the first token, then from each token to the next."""
    readings = [clock(device)]
    for _ in tokens:
        readings.append(clock(device))
    if len(readings) < 2:
        raise ValueError(
            "the iterator gave no token, so there is nothing to time: ask for at least 1"
        )
    return [b - a for a, b in zip(readings, readings[1:], strict=False)]


def metrics(gaps: list[float]) -> dict:
    """TTFT, TPOT, ITL and E2EL of one run, in seconds. TPOT is None for a single token."""
    first, *rest = gaps
    return {
        "ttft": first,
        "tpot": sum(rest) / len(rest) if rest else None,
        "itl": rest,
        "e2el": sum(gaps),
    }


def summary(values: Iterable[float]) -> dict:
    """Median, smallest, largest and count: what a figure needs to show its spread."""
    values = sorted(values)
    return {"median": median(values), "low": values[0], "high": values[-1], "n": len(values)}


def spread(s: dict, digits: int) -> str:
    """A summary as text: median [low – high]."""
    return f"{s['median']:,.{digits}f} [{s['low']:,.{digits}f} – {s['high']:,.{digits}f}]"


def duel(
    a: Callable[[], Iterable],
    b: Callable[[], Iterable],
    *,
    repeats: int = 5,
    warmup: int = 1,
    device: torch.device = CPU,
    names: tuple[str, str] = ("uncached", "cached"),
) -> dict:
    """Time two token iterators in turn, A B A B …, after a warm-up of each.

    Returns, as plain data: for each system a summary of every metric and the median gap at each
    token; `speedup`, the summary of E2EL(a) / E2EL(b) pair by pair. Neighbours in time meet the
    same machine, so the ratio holds where absolute times drift. Raises ValueError.
    """
    runs = interleave(a, b, repeats=repeats, warmup=warmup, device=device)
    pairs = zip(*[[sum(gaps) for gaps in runs_of] for runs_of in runs], strict=True)
    return {
        "systems": {name: _describe(runs_of) for name, runs_of in zip(names, runs, strict=True)},
        "speedup": summary(x / y for x, y in pairs),
    }


def speedups_by_length(
    a: Callable[[], Iterable],
    b: Callable[[], Iterable],
    lengths: Iterable[int],
    *,
    repeats: int = 5,
    warmup: int = 1,
    device: torch.device = CPU,
) -> dict[int, dict]:
    """E2EL(a) / E2EL(b) of the first n tokens, for each n: one long run holds all shorter ones.

    Returns a summary for each length. Raises ValueError for a length that the runs do not reach.
    """
    runs = interleave(a, b, repeats=repeats, warmup=warmup, device=device)
    longest, out = len(runs[0][0]), {}
    for n in lengths:
        if not 1 <= n <= longest:
            raise ValueError(
                f"length {n} is not in a run of {longest} tokens: choose 1 to {longest}"
            )
        out[n] = summary(sum(x[:n]) / sum(y[:n]) for x, y in zip(*runs, strict=True))
    return out


def interleave(
    a: Callable[[], Iterable],
    b: Callable[[], Iterable],
    *,
    repeats: int,
    warmup: int,
    device: torch.device,
) -> tuple[list[list[float]], list[list[float]]]:
    """The gaps of every counted run of a and of b, taken in turn."""
    if repeats < 1 or warmup < 0:
        raise ValueError(
            f"repeats={repeats}, warmup={warmup}: at least 1 and at least 0 are needed"
        )
    if not callable(a) or not callable(b):
        raise ValueError(
            "pass two functions that start a generation, as in lambda: generate(model, prompt, 9)"
        )
    runs: tuple[list, list] = ([], [])
    for turn in range(warmup + repeats):
        for system, runs_of in zip((a, b), runs, strict=True):
            gc.collect()  # not in the middle of a reading
            gaps = time_tokens(system(), device)
            if turn >= warmup:
                runs_of.append(gaps)
    counts = {len(gaps) for runs_of in runs for gaps in runs_of}
    if len(counts) > 1:
        raise ValueError(
            f"the runs gave {' and '.join(map(str, sorted(counts)))} tokens: compare equal work"
        )
    return runs


def _describe(runs: list[list[float]]) -> dict:
    each = [metrics(gaps) for gaps in runs]
    out = {key: summary(m[key] for m in each) for key in ("ttft", "e2el")}
    out["tpot"] = summary(m["tpot"] for m in each) if each[0]["tpot"] is not None else None
    out["itl"] = [median(column) for column in zip(*[m["itl"] for m in each], strict=True)]
    out["tokens_per_second"] = summary(len(gaps) / sum(gaps) for gaps in runs)
    return out


def clock(device: torch.device) -> float:
    """Seconds, read when the device has done all that it was given."""
    synchronize(device)
    return time.perf_counter()
