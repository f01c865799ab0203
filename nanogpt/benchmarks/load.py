"""Throughput and latency under load: requests that arrive whether or not the server is ready.

A step with n texts that decode and m tokens of prompts takes start + decode · n + prefill · m
seconds: a line through the steps of a run. On a clock that such steps move, a schedule can be
replayed without a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf

import torch
from torch import Tensor

from ..model.gpt import GPT
from ..serving.batch import BatchEngine
from ..serving.modules import ModuleBackend, StepInput
from ..serving.request import Request
from .arrivals import Replies, VirtualClock, Workload, drive, measures, speed
from .roofline import Limits, serving_work
from .timing import in_turns, summary

SCHEMES = {  # ways to share one model among requests, and what each asks of the engine
    "one at a time": {"single"},
    "static batches": {"static"},
    "continuous": set(),
    "chunked prefill": {"chunked"},
    "prefix reuse": {"chunked", "reuse"},
}
LINE = ("start", "decode", "prefill")


def load(
    systems: dict[str, Callable[[list[Request]], Replies]],
    rates: Sequence[float],
    *,
    vocab_size: int,
    block_size: int,
    workload: Workload | None = None,
    repeats: int = 3,
    limits: dict[str, float] | None = None,
    model: GPT | None = None,
    machine: Limits | None = None,
) -> dict:
    """Serve the same requests by every system, at each rate (requests a second; inf: at once).

    The systems are those of `schemes`, or others in real time, with a greedy workload. They take
    turns, repeat by repeat, after a warm-up with at most 8 requests. `limits` are those of
    `measures`; those of the `machine` are measured after each turn. Returns plain data: `rows` for
    each rate and system, and of schemes `line`, what a step costs, `simulated`, their rows as
    replayed on that line, and with a machine `bounds`.

    A row has summaries over the repeats of all measures, and the requests that `failed`. Of schemes
    `ratio` is its speed over the first one's. `differ` says how many of its texts are not the first
    scheme's, or not those of the `model` alone; None where nothing was compared. Raises ValueError.
    """
    workload, limits = workload or Workload(), limits or {}
    asked = {rate: workload.requests(vocab_size, block_size, rate) for rate in (*rates, inf)}
    for system in systems.values():
        system(asked[inf][:8])
    ours = all(isinstance(system, Scheme) for system in systems.values())
    texts, rows = None, []
    if model and not ours:
        texts = drive(BatchEngine(model), asked[inf], VirtualClock())
    for rate in rates:
        turns = {name: partial(system, asked[rate]) for name, system in systems.items()}
        after = {"after_turn": machine.measure} if machine else {}
        done = in_turns(turns, repeats, warmup=0, **after)
        base = next(iter(done.values()))
        texts = texts or (base[0] if ours else None)
        for name, runs in done.items():
            row = {"rate": None if rate == inf else rate, "scheme": name}
            row |= _summed(asked[rate], runs, limits)
            pairs = zip(runs, base, strict=True)
            row["ratio"] = summary(speed(a) / speed(b) for a, b in pairs) if ours else None
            row["differ"] = texts and max(_differing(run, texts) for run in runs)
            rows.append(row)
    result = {"block_size": block_size, **asdict(workload), "repeats": repeats, "limits": limits}
    if ours and machine:
        result["bounds"] = _bounds(systems, asked[rates[-1]], machine)
    return result | (_costs(systems, workload, rates, limits) if ours else {}) | {"rows": rows}


def _bounds(own: dict[str, Scheme], requests: list[Request], machine: Limits) -> dict:
    """What a drawn token took in each scheme's last run, and the least that it can take here.

    In seconds. Neither has the waiting for requests in it. The bound is that of `serving_work`.
    """
    bandwidth, peak = machine.best()
    drawn, rows = sum(request.max_new_tokens for request in requests), []
    for name, scheme in own.items():
        _, decoded, prompts, seconds = scheme.noted[-1].sum(0).tolist()
        need = serving_work(scheme.model.config, requests, decoded + prompts)
        least = need["flop"] / peak + need["bytes"] / bandwidth
        row = {"read": (decoded + prompts) / drawn, "least": least / drawn}
        rows.append({"scheme": name, **row, "taken": seconds / drawn})
    return {"peak": peak, "bandwidth": bandwidth, "rows": rows}


# ------------------------------------------------------------------ the schemes of our engine


@dataclass
class Scheme:
    """One way to share a model among requests. Called with them it returns the replies.

    A step holds at most `running` texts and, where prompts are cut, `budget` tokens. The clock
    is virtual. With a `line` nothing is computed: each step takes what the line says.
    """

    model: GPT
    name: str
    backend: type = ModuleBackend
    running: int = 32
    budget: int = 64
    noted: list[Tensor] = field(default_factory=list)  # of each call, NotedEngine's: (…, 4)

    def __call__(self, requests: list[Request], line: dict[str, float] | None = None) -> Replies:
        asks, clock = SCHEMES[self.name], VirtualClock()
        engine = NotedEngine(
            self.model,
            backend=self.backend if line is None else ModuleBackend,
            max_running=1 if "single" in asks else self.running,
            budget=self.budget if "chunked" in asks else None,
            reuse="reuse" in asks,
        )
        if line:
            clock = LineClock()
            engine.backend = Priced(line, clock, self.model.config.vocab_size)
        replies = drive(engine, requests, clock, self.running if "static" in asks else None)
        if line is None:
            self.noted.append(torch.tensor(engine.calls, dtype=torch.float64))
        return replies


def schemes(model: GPT, **settings) -> dict[str, Scheme]:
    """Every scheme of SCHEMES by its name. `settings` are those of Scheme."""
    return {name: Scheme(model, name, **settings) for name in SCHEMES}


class NotedEngine(BatchEngine):
    """Notes what each call of `step` held: [steps, texts that decoded, tokens of prompts, seconds].

    The seconds have those of scheduling and sampling in them.
    """

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.calls: list[list[float]] = []

    def step(self) -> list:
        before = time.perf_counter()
        outputs = super().step()
        self.calls[-1].append(time.perf_counter() - before)
        return outputs

    def _append(self, batch: list, drawn: list[list[int]]) -> list:
        read = [seq.num_scheduled_tokens for seq in batch]
        decoded = sum(max(1, len(own)) for n, own in zip(read, drawn, strict=True) if n == 1)
        self.calls.append([max(1, *map(len, drawn)), decoded, sum(n for n in read if n > 1)])
        return super()._append(batch, drawn)


# ------------------------------------------------------------------ what a step costs, replayed


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
        self.clock.seconds += line["start"] + line["decode"] * decode + line["prefill"] * prefill
        return torch.zeros(len(step.wanted), self.vocab_size)


def _costs(own: dict[str, Scheme], workload: Workload, rates, limits: dict) -> dict:
    """The settings, what a step costs, and the measures of each scheme replayed on that line."""
    one, rows = next(iter(own.values())), []
    c, greedy = one.model.config, replace(workload, greedy=True)
    line = fit([steps for scheme in own.values() for steps in scheme.noted[1:]])  # no warm-up
    for rate in rates:
        requests = greedy.requests(c.vocab_size, c.block_size, rate)
        for name, scheme in own.items():
            row = {"rate": None if rate == inf else rate, "scheme": name}
            rows.append(row | measures(requests, scheme(requests, line), limits))
    about = {"n_params": one.model.n_params, "running": one.running, "budget": one.budget}
    return about | {"line": line, "simulated": rows}


# ------------------------------------------------------------------ rows, and texts that differ


def _summed(requests: list, runs: list[Replies], limits: dict) -> dict:
    """`measures` of several runs, each a summary over them; None where a run has none."""
    each = [measures(requests, replies, limits) for replies in runs]
    columns = {key: [one[key] for one in each] for key in each[0]}
    summed = {key: None if None in column else summary(column) for key, column in columns.items()}
    return {"failed": max(len(requests) - len(replies) for replies in runs)} | summed


def _differing(replies: Replies, others: Replies) -> int:
    """How many of them have other tokens."""
    return sum(reply.tokens != others[name].tokens for name, reply in replies.items())
