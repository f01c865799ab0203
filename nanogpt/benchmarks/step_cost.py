"""What a step costs, as a line through the steps of a run, and schedules replayed on that line.

A step of n texts that decode and of m tokens of prompts takes start + decode · n + prefill · m
seconds. On a clock that such steps move, a schedule can be replayed without a model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ..serving.batch import BatchEngine
from ..serving.step import Step
from .arrivals import VirtualClock

LINE = ("start", "decode", "prefill")


class Timed:
    """A backend, the seconds spent in it, and which texts each step held."""

    def __init__(self, backend):
        self.backend, self.seconds, self.texts = backend, 0.0, []

    def read(self, step: Step) -> Tensor:
        before = time.perf_counter()
        logits = self.backend.read(step)
        self.seconds += time.perf_counter() - before
        self.texts.append(step.text)
        return logits


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
        """A row for each step: 1, texts that decoded, tokens of prompts, seconds.  (n, 4)"""
        rows = [(1, *counted(text)) for text in self.backend.texts]
        rows = torch.tensor(rows, dtype=torch.float64)
        return torch.cat([rows, torch.tensor(self.seconds, dtype=torch.float64)[:, None]], dim=1)


def counted(text: Tensor) -> tuple[int, int]:
    """How many texts of a step read one token, and how many tokens the others read.  (N,)"""
    alone = int((text.bincount() == 1).sum())
    return alone, len(text) - alone


def fit(steps: Sequence[Tensor]) -> dict[str, float]:
    """The line with the least squares through the steps of several runs, in seconds.  n × (…, 4)"""
    rows = torch.cat(list(steps))
    found = torch.linalg.lstsq(rows[:, :3], rows[:, 3:], driver="gelsd").solution[:, 0]
    return dict(zip(LINE, found.tolist(), strict=True))


class LineClock(VirtualClock):
    """A virtual clock that only a Priced backend moves."""

    def run(self, work):
        return work()


class Priced:
    """A backend that computes nothing, and lets each step take what the line says."""

    def __init__(self, line: dict[str, float], clock: VirtualClock, vocab_size: int):
        self.line, self.clock, self.vocab_size = line, clock, vocab_size

    def read(self, step: Step) -> Tensor:
        decode, prefill = counted(step.text)
        line = self.line
        self.clock.worked += line["start"] + line["decode"] * decode + line["prefill"] * prefill
        return torch.zeros(len(step.wanted), self.vocab_size)
