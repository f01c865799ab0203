"""Throughput and latency under load: requests that arrive whether or not the server is ready.

The terms are those of vLLM's serving benchmark. TTFT, time to first token, counts from the arrival,
the queue included. TPOT of a request of n tokens is (E2EL - TTFT) / (n - 1), and there is none for
n = 1. ITL is every gap of every request. Goodput counts the requests a second that meet every
limit.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from ..config.checks import check_int, check_positive
from ..model.gpt import GPT
from ..serving.batch import BatchEngine
from ..serving.modules import ModuleBackend
from ..serving.native import NativeBackend
from ..serving.request import Request
from ..system.console import Progress
from .arrivals import Load, RealClock, VirtualClock, drive
from .timing import summary

BACKENDS = {"modules": ModuleBackend, "native": NativeBackend}
LATENCIES = ("ttft", "tpot", "itl", "e2el")
LIMITED = ("ttft", "tpot", "e2el")  # what a request can be asked to meet


@dataclass(frozen=True)
class Scheme:
    """One way to share the model. `static`: a batch is formed when the last one has ended."""

    name: str
    static: bool = False
    single: bool = False
    chunked: bool = False
    reuse: bool = False

    def engine(self, model: GPT, backend, running: int, budget: int) -> BatchEngine:
        return BatchEngine(
            model,
            backend=backend,
            max_running=1 if self.single else running,
            budget=budget if self.chunked else None,
            reuse=self.reuse,
        )


SCHEMES = (
    Scheme("one at a time", single=True),
    Scheme("static batches", static=True),
    Scheme("continuous", reuse=False),
    Scheme("chunked prefill", chunked=True),
    Scheme("prefix reuse", chunked=True, reuse=True),
)


def measures(requests: Sequence[Request], tokens: dict, limits: dict[str, float]) -> dict:
    """Throughput, goodput and latencies of one run, in seconds; each of these as p50 and p95.

    `limits` are seconds for ttft, tpot and e2el, all of which a request must meet.
    """
    each = [_of_request(request.arrival, tokens[request.id][1]) for request in requests]
    end = max(moments[-1] for _, moments in tokens.values())
    good = sum(all((one[key] or 0.0) <= limit for key, limit in limits.items()) for one in each)
    n_tokens = sum(len(own) for own, _ in tokens.values())
    out = {"tokens_per_second": n_tokens / end, "requests_per_second": len(each) / end}
    out |= {"goodput": good / end, "seconds": end}
    for key in LATENCIES:
        values = [one[key] for one in each if one[key] is not None]
        pooled = [gap for gaps in values for gap in gaps] if key == "itl" else values
        for percent in (50, 95):
            out[f"{key}_p{percent}"] = percentile(pooled, percent)
    return out


def _of_request(arrival: float, moments: list[float]) -> dict:
    ttft, e2el = moments[0] - arrival, moments[-1] - arrival
    gaps = [b - a for a, b in zip(moments, moments[1:], strict=False)]
    return {
        "ttft": ttft,
        "e2el": e2el,
        "itl": gaps,
        "tpot": sum(gaps) / len(gaps) if gaps else None,
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Between the two values next to it, linearly; None of no values."""
    if not values:
        return None
    return torch.tensor(values, dtype=torch.float64).quantile(percent / 100).item()


class Timed:
    """A backend, and the seconds spent in it: the rest of a step is bookkeeping and sampling."""

    def __init__(self, backend):
        self.backend, self.seconds = backend, 0.0

    def read(self, step) -> Tensor:
        before = time.perf_counter()
        logits = self.backend.read(step)
        self.seconds += time.perf_counter() - before
        return logits


def load(
    model: GPT,
    rates: Sequence[float],
    *,
    asked: Load | None = None,
    backend=ModuleBackend,
    running: int = 32,
    budget: int = 64,
    repeats: int = 3,
    limits: dict[str, float] | None = None,
    real: bool = False,
    schemes: Sequence[Scheme] = SCHEMES,
) -> dict:
    """Serve the same requests under every scheme, at each rate (requests a second; inf: at once).

    The schemes take turns, repeat by repeat, after a warm-up of each. Returns plain data: a row for
    each rate and scheme, with a summary of every measure over the repeats; `ratio`, its throughput
    over that of the first scheme, pair by pair; `bookkeeping`, the share of the time outside the
    backend, sampling included; `equal`, whether its tokens are those of the first scheme. Raises
    ValueError.
    """
    asked, limits, rows = asked or Load(), limits or {}, []
    _check(rates, repeats, limits)
    check_int("budget", budget, 1)
    check_int("running", running, 1)
    sizes = model.config.vocab_size, model.config.block_size
    with Progress((1 + len(rates) * repeats) * len(schemes), "load") as bar:

        def run(scheme: Scheme, requests: list[Request], clock) -> dict:
            engine = scheme.engine(model, backend, running, budget)
            bar.update(note=scheme.name)
            return _run(engine, requests, scheme.static, limits, clock)

        for scheme in schemes:
            run(scheme, replace(asked, n=min(asked.n, 8)).requests(*sizes, inf), VirtualClock())
        for rate in rates:
            requests, runs = asked.requests(*sizes, rate), {scheme: [] for scheme in schemes}
            for scheme in list(schemes) * repeats:
                runs[scheme].append(run(scheme, requests, RealClock() if real else VirtualClock()))
            rows += _rows(rate, runs)
    about = {"n_params": model.n_params, "requests": asked.n, "seed": asked.seed}
    about |= {"running": running, "budget": budget, "repeats": repeats, "limits": limits}
    return about | {"clock": "real" if real else "virtual", "rows": rows}


def _run(engine: BatchEngine, requests: list[Request], static: bool, limits: dict, clock) -> dict:
    gc.collect()  # not while the clock runs
    engine.backend = timed = Timed(engine.backend)
    tokens = drive(engine, requests, clock, static)
    measured = measures(requests, tokens, limits)
    measured["bookkeeping"] = 1 - timed.seconds / clock.worked
    return measured | {"tokens": {name: own for name, (own, _) in tokens.items()}}


def _rows(rate: float, runs: dict[Scheme, list[dict]]) -> list[dict]:
    base, rows = next(iter(runs.values())), []
    for scheme, own in runs.items():
        row = {"rate": None if rate == inf else rate, "scheme": scheme.name}
        row["equal"] = all(one["tokens"] == base[0]["tokens"] for one in own)
        pairs = zip(own, base, strict=True)
        row["ratio"] = summary(a["tokens_per_second"] / b["tokens_per_second"] for a, b in pairs)
        for key in own[0]:
            if key != "tokens":
                row[key] = None if own[0][key] is None else summary(one[key] for one in own)
        rows.append(row)
    return rows


def _check(rates: Sequence[float], repeats: int, limits: dict) -> None:
    check_int("repeats", repeats, 1)
    if not rates:
        raise ValueError("rates=[]: give at least one, in requests a second")
    for rate in rates:
        if rate != inf:
            check_positive("rate", rate)
    for name, limit in limits.items():
        if name not in LIMITED:
            raise ValueError(f"a limit on {name!r}: choose from {', '.join(LIMITED)}")
        check_positive(name, limit)
