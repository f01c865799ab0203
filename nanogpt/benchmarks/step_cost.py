"""What a step costs, as a line through the steps of a run, and schedules replayed on that line.

A step of n texts that decode and of m tokens of prompts takes start + decode · n + prefill · m
seconds. On a clock that such steps move, a schedule can be replayed without a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..serving.batch import BatchEngine
from ..serving.request import Sequence as Served
from ..serving.step import StepInput
from .arrivals import VirtualClock

LINE = ("start", "decode", "prefill")


class Timed:
    """A backend, the seconds in which it computes, and what each call held.

    Native code draws the tokens too: elsewhere sampling is part of the rest of a step.
    """

    def __init__(self, backend):
        self.backend, self.seconds, self.calls = backend, 0.0, []
        self.draws = getattr(backend, "draws", False)
        if self.draws:
            self.most_steps = backend.most_steps
            backend.compute = partial(self._timed, backend.compute)

    def read(self, step: StepInput) -> Tensor:
        logits = self._timed(self.backend.read, step)
        self.calls.append((1, *counted(step.sequences)))
        return logits

    def draw(self, batch: list[Served], steps: list[int]) -> list[list[int]]:
        drawn, read = self.backend.draw(batch, steps), [seq.num_scheduled_tokens for seq in batch]
        decoded = sum(max(1, n_new) for n, n_new in zip(read, steps, strict=True) if n == 1)
        self.calls.append((max(1, *steps), decoded, sum(n for n in read if n > 1)))
        return drawn

    def _timed(self, work: Callable, *args):
        before = time.perf_counter()
        result = work(*args)
        self.seconds += time.perf_counter() - before
        return result


class TimedEngine(BatchEngine):
    """Notes the seconds of each step, with those of scheduling and sampling."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.backend, self.seconds = Timed(self.backend), []

    def step(self) -> list:
        before = time.perf_counter()
        outputs = super().step()
        self.seconds.append(time.perf_counter() - before)
        return outputs

    def steps(self) -> Tensor:
        """A row for each call: its steps, texts that decoded in them, tokens of prompts, seconds.

        -> (n, 4)
        """
        rows = torch.tensor(self.backend.calls, dtype=torch.float64)
        return torch.cat([rows, torch.tensor(self.seconds, dtype=torch.float64)[:, None]], dim=1)


def counted(sequences: Tensor) -> tuple[int, int]:
    """How many sequences of a step read one token, and how many tokens the others read.  (N,)"""
    alone = int((sequences.bincount() == 1).sum())
    return alone, len(sequences) - alone


def fit(steps: Sequence[Tensor]) -> dict[str, float]:
    """The line with the least squares through the steps of several runs, in seconds.  n × (…, 4)

    Nothing costs less than 0: what few steps would make negative is left out.
    """
    rows = torch.cat(list(steps))
    kept, found = list(LINE), {}
    while not found or min(found.values()) < 0:
        kept = [name for name in kept if found.get(name, 0.0) >= 0]
        columns = rows[:, [LINE.index(name) for name in kept]]
        solution = torch.linalg.lstsq(columns, rows[:, 3:], driver="gelsd").solution[:, 0]
        found = dict(zip(kept, solution.tolist(), strict=True))
    return {name: found.get(name, 0.0) for name in LINE}


class LineClock(VirtualClock):
    """A virtual clock that only a Priced backend moves."""

    def run(self, work):
        return work()


class Priced:
    """A backend that computes nothing, and lets each step take what the line says."""

    def __init__(self, line: dict[str, float], clock: VirtualClock, vocab_size: int):
        self.line, self.clock, self.vocab_size = line, clock, vocab_size

    def read(self, step: StepInput) -> Tensor:
        decode, prefill = counted(step.sequences)
        line = self.line
        self.clock.worked += line["start"] + line["decode"] * decode + line["prefill"] * prefill
        return torch.zeros(len(step.wanted), self.vocab_size)
