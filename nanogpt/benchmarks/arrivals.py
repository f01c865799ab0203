"""Requests that arrive over time, a clock, the loop that serves them, and what they got.

Arrivals are data: a Poisson process drawn from a seed. On the virtual clock measured steps take
their time and waiting takes none, so a quiet minute is measured in the seconds of work in it.

The terms are those of vLLM's serving benchmark. TTFT, time to first token, counts from the arrival,
the queue included. TPOT of a request of n tokens is (E2EL - TTFT) / (n - 1), and there is none for
n = 1. ITL is every gap of every request. Goodput counts the requests a second that meet every
limit.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import torch

from ..config.checks import check_positive
from ..decoding.sampling import SamplingParams
from ..serving.batch import BatchEngine
from ..serving.request import Request
from .timing import number_of

LATENCIES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class Workload:
    """What is asked for: n requests, of which a share begin alike.

    Of a model's `block_size` a prompt takes 1/16 to 1/2, uniformly, and the common beginning 1/4.
    The new tokens are exponential with mean 1/6, at most 1/2: some are many times the mean.
    """

    n: int = 64
    seed: int = 1
    shared: float = 0.5
    greedy: bool = False

    def requests(self, vocab_size: int, block_size: int, rate: float) -> list[Request]:
        """The requests at `rate` a second (inf: all at once). Only the arrivals depend on it.

        Raises ValueError for a rate of 0 and below.
        """
        if rate != inf:
            check_positive("rate", rate)
        draw, gaps, arrival, out = random.Random(self.seed), random.Random(self.seed + 1), 0.0, []
        sampling = SamplingParams(greedy=self.greedy)
        common = [draw.randrange(vocab_size) for _ in range(block_size // 4)]
        for i in range(self.n):
            length = draw.randint(max(1, block_size // 16), max(1, block_size // 2))
            prompt = [draw.randrange(vocab_size) for _ in range(length)]
            if draw.random() < self.shared:
                prompt[: len(common)] = common[:length]
            n_new = min(1 + int(draw.expovariate(6 / block_size)), max(1, block_size // 2))
            arrival += gaps.expovariate(1.0) / rate
            tokens = torch.tensor(prompt)
            out.append(Request(tokens, n_new, sampling, seed=i, arrival=arrival, id=i))
        return out

    def __str__(self) -> str:
        alike, how = (
            f"{self.shared:.0%} with the same beginning",
            "greedy" if self.greedy else "drawn",
        )
        prompts = "prompts of 1/16 to 1/2 of the block"
        return (
            f"{number_of(self.n, 'request')}, {prompts}, {alike}, new tokens 1/6 on average, {how}"
        )


class Reply(NamedTuple):
    """What a request got: tokens, and seconds after the start at which they were there.

    A server may send several tokens at once: then there are fewer moments than tokens.
    """

    tokens: list
    moments: list[float]


Replies = dict[int, Reply]  # of one run, by the id of the request

# ------------------------------------------------------------------ serving on a clock


class VirtualClock:
    """Seconds since the start: those of what was run, and those skipped, which take no time."""

    def __init__(self):
        self.seconds = 0.0

    def run(self, work: Callable):
        """What the work returns."""
        before = time.perf_counter()
        result = work()
        self.seconds += time.perf_counter() - before
        return result

    def wait_until(self, moment: float) -> None:
        self.seconds = max(self.seconds, moment)


def drive(
    engine: BatchEngine, requests: Sequence[Request], clock, static_batch: int | None = None
) -> Replies:
    """Serve the requests as they arrive.

    With `static_batch`, at most so many of those that have arrived form a batch when the last one
    has ended, and every text of it takes part until the longest ends: its idle cells are computed
    too, and not counted.
    """
    wanted = {request.id: request.max_new_tokens for request in requests}
    replies = {request.id: Reply([], []) for request in requests}
    coming, arrived = deque(sorted(requests, key=lambda r: r.arrival)), deque()
    while coming or arrived or engine.busy:
        while coming and coming[0].arrival <= clock.seconds:
            arrived.append(coming.popleft())
        if not arrived and not engine.busy:
            clock.wait_until(coming[0].arrival)
            continue
        clock.run(lambda: _admit(engine, arrived, static_batch))
        for output in clock.run(engine.step):
            tokens, moments = replies[output.request.id]
            if len(tokens) < wanted[output.request.id]:
                tokens.append(output.token)
                moments.append(clock.seconds)
    return replies


def _admit(engine: BatchEngine, arrived: deque[Request], static_batch: int | None) -> None:
    if static_batch is None:
        while arrived:
            engine.add(arrived.popleft())
    elif not engine.busy:
        batch = [arrived.popleft() for _ in range(min(len(arrived), static_batch))]
        longest = max(request.max_new_tokens for request in batch)
        for request in batch:
            most = (engine.config.positions or inf) + 1 - len(request.prompt)
            engine.add(replace(request, max_new_tokens=min(longest, most)))  # its noise goes on


# ------------------------------------------------------------------ what the requests got


def measures(requests: Sequence[Request], replies: Replies, limits: dict[str, float]) -> dict:
    """Throughput, goodput and latencies of one run, in seconds; of each latency p50 and p95.

    `limits` are seconds for ttft, tpot and e2el, all of which a request must meet. Requests without
    a reply are left out, and a good one needs a reply.
    """
    each = [_latencies(r.arrival, replies[r.id]) for r in requests if r.id in replies]
    end = max(moments[-1] for _, moments in replies.values())
    good = sum(all(max(one[key], default=0) <= limits[key] for key in limits) for one in each)
    out = {"tokens_per_second": speed(replies), "goodput": good / end}
    for key in LATENCIES:
        values = torch.tensor([x for one in each for x in one[key]], dtype=torch.float64)
        for percent in (50, 95):
            found = values.quantile(percent / 100).item() if len(values) else None
            out[f"{key}_p{percent}"] = found
    return out


def speed(replies: Replies) -> float:
    """Tokens a second of one run."""
    end = max(moments[-1] for _, moments in replies.values())
    return sum(len(tokens) for tokens, _ in replies.values()) / end


def _latencies(arrival: float, reply: Reply) -> dict[str, list[float]]:
    """Of one request: a list of every gap for itl, of one or none for the others."""
    n, moments = len(reply.tokens), reply.moments
    ttft, e2el = moments[0] - arrival, moments[-1] - arrival
    tpot = [(e2el - ttft) / (n - 1)] if n > 1 else []
    itl = [b - a for a, b in zip(moments, moments[1:], strict=False)]
    return {"ttft": [ttft], "tpot": tpot, "itl": itl, "e2el": [e2el]}
