"""Requests that arrive over time, a clock, and the loop that serves them.

Arrivals are data: a Poisson process drawn from a seed. On the virtual clock measured steps take
their time and waiting takes none, so a quiet minute is measured in the seconds of work in it.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch

from ..config.checks import check_int, check_share
from ..decoding.sampling import SamplingParams
from ..serving.batch import BatchEngine
from ..serving.request import Request
from .measures import Answer


@dataclass(frozen=True)
class Load:
    """What is asked for: n requests, of which a share begin alike. Raises ValueError.

    Of a model's `block_size` a prompt takes 1/16 to 1/2, uniformly, and the common beginning 1/4.
    The new tokens are exponential with mean 1/6, at most 1/2: some are many times the mean.
    """

    n: int = 64
    seed: int = 1
    shared: float = 0.5
    greedy: bool = False

    def __post_init__(self):
        check_int("n", self.n, 1)
        check_int("seed", self.seed, 0)
        check_share("shared", self.shared)

    def requests(self, vocab_size: int, block_size: int, rate: float) -> list[Request]:
        """The requests at `rate` a second (inf: all at once). Only the arrivals depend on it."""
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


class RealClock:
    """Seconds since the start; `worked` are those in which something was run."""

    def __init__(self):
        self.start, self.worked = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def run(self, work: Callable):
        """What the work returns."""
        before = time.perf_counter()
        result = work()
        self.worked += time.perf_counter() - before
        return result

    def wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - self.seconds))


class VirtualClock(RealClock):
    """The same, but waiting takes no time, and only what was run takes any."""

    skipped = 0.0

    @property
    def seconds(self) -> float:
        return self.worked + self.skipped

    def wait_until(self, moment: float) -> None:
        self.skipped += max(0.0, moment - self.seconds)


def drive(
    engine: BatchEngine, requests: Sequence[Request], clock, static: bool = False
) -> dict[int, Answer]:
    """Serve the requests as they arrive. -> for each id its tokens, and the moment of each.

    With `static`, what has arrived forms a batch when the last one has ended, and every text of it
    takes part until the longest ends: its idle cells are computed too, and not counted.
    """
    wanted = {request.id: request.max_new_tokens for request in requests}
    answers = {request.id: Answer([], []) for request in requests}
    coming, arrived = deque(sorted(requests, key=lambda r: r.arrival)), deque()
    while coming or arrived or engine.busy:
        while coming and coming[0].arrival <= clock.seconds:
            arrived.append(coming.popleft())
        if not arrived and not engine.busy:
            clock.wait_until(coming[0].arrival)
            continue
        clock.run(lambda: _admit(engine, arrived, static))
        for output in clock.run(engine.step):
            own, moments = answers[output.request.id]
            if len(own) < wanted[output.request.id]:
                own.append(output.token)
                moments.append(clock.seconds)
    return answers


def _admit(engine: BatchEngine, arrived: deque[Request], static: bool) -> None:
    if not static:
        while arrived:
            engine.add(arrived.popleft())
    elif not engine.busy:
        batch = [arrived.popleft() for _ in range(min(len(arrived), engine.scheduler.max_running))]
        longest = max(request.max_new_tokens for request in batch)
        for request in batch:
            engine.add(_padded(request, longest, engine.config))


def _padded(request: Request, n_new: int, config) -> Request:
    """The request, asking for n_new tokens, or as many as the model has positions for."""
    n_new = min(n_new, (config.positions or inf) + 1 - len(request.prompt))
    noise = request.draw(config.vocab_size)
    if noise is not None:
        idle = torch.ones(n_new - request.max_new_tokens, config.vocab_size)
        noise = torch.cat([noise, idle])
    return replace(request, max_new_tokens=n_new, noise=noise, seed=None)
