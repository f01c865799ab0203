"""Throughput and latency under load: requests that arrive whether or not the server is ready.

What a step costs is a line through the steps of a run: one with n texts that decode and m tokens of
prompts takes start + decode · n + prefill · m seconds. On a clock that such steps move, a schedule
can be replayed without a model.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf

import torch
from torch import Tensor

from ..config.checks import check_int, check_positive
from ..model.gpt import GPT
from ..serving.batch import BatchEngine, serve
from ..serving.modules import ModuleBackend
from ..serving.native import NativeBackend
from ..serving.request import Request
from ..serving.step import StepInput
from ..system.console import Progress
from .arrivals import (
    RealClock,
    Replies,
    VirtualClock,
    Workload,
    check_limits,
    drive,
    measures,
    speed,
)
from .timing import summary

BACKENDS = {"modules": ModuleBackend, "native": NativeBackend}
SCHEMES = {  # ways to share one model among requests, and what each asks of the engine
    "one at a time": {"single"},
    "static batches": {"static"},
    "continuous": set(),
    "chunked prefill": {"chunked"},
    "prefix reuse": {"chunked", "reuse"},
}
LINE = ("start", "decode", "prefill")
SIMULATED = ("tokens_per_second", "goodput", "ttft_p95", "e2el_p50", "e2el_p95")
ROUNDING = 256 * torch.finfo(torch.float32).eps  # of the largest logit: what two programs may add

Serve = Callable[[list[Request]], Replies]


def load(
    systems: dict[str, Serve],
    rates: Sequence[float],
    *,
    vocab_size: int,
    block_size: int,
    workload: Workload | None = None,
    repeats: int = 3,
    limits: dict[str, float] | None = None,
    model: GPT | None = None,
) -> dict:
    """Serve the same requests by every system, at each rate (requests a second; inf: at once).

    The systems are those of `schemes`, and others in real time, which need a greedy workload to be
    compared. They take turns, repeat by repeat, after a warm-up with at most 8 requests. `limits`
    are those of `measures`. Returns plain data: `rows` for each rate and system, and where schemes
    are among them `line`, what a step costs, and `simulated`, their rows as replayed on that line.

    A row has summaries over the repeats of all measures, and the requests that `failed`. Beside
    schemes `ratio` is its speed over the first one's. `equal` says whether its texts are the first
    scheme's, or those of the `model` alone; another system's may differ at ties: `differences`; and
    `ours` is the speed of our fastest scheme over its own. Raises ValueError, what a system raises.
    """
    workload, limits = workload or Workload(), limits or {}
    at = partial(workload.requests, vocab_size, block_size)
    done, rows = _serve_in_turns(systems, at, rates, repeats, limits), []
    own = {name: system for name, system in systems.items() if isinstance(system, Scheme)}
    texts = _tokens(done[rates[0], next(iter(own))][0]) if own else None
    if model and not own:
        texts = _greedy_texts(model, at(inf))
    for rate in rates:
        ours = [done[rate, name] for name in own]
        for name in systems:
            runs, requests = done[rate, name], at(rate)
            row = _row(rate, name, requests, runs, limits)
            row["ratio"] = _over(runs, ours[0]) if ours else None
            if name in own or texts is None:
                row["equal"] = texts and all(_tokens(run) == texts for run in runs)
            else:
                row |= _compared(model, requests, texts, runs)
            if ours and name not in own:
                row["ours"] = _over(max(ours, key=_median_speed), runs)
            rows.append(row)
    about = {"block_size": block_size, **asdict(workload), "repeats": repeats, "limits": limits}
    return about | (_costs(own, workload, rates, limits) if own else {}) | {"rows": rows}


def _serve_in_turns(systems: dict, at: Callable, rates, repeats: int, limits: dict) -> dict:
    """The runs of each rate and system, in turns, those of the warm-up left out."""
    check_int("repeats", repeats, 1)
    check_limits(limits)
    if not rates:
        raise ValueError("rates=[]: give at least one, in requests a second")
    for rate in rates:
        if rate != inf:
            check_positive("rate", rate)
    done = {(rate, name): [] for rate in rates for name in systems}
    turns = [(inf, 8), *((rate, None) for rate in rates for _ in range(repeats))]
    with Progress(len(turns) * len(systems), "load") as bar:
        for rate, most in turns:
            for name, system in systems.items():
                bar.update(note=name)
                replies = system(at(rate)[:most])
                if most is None:
                    done[rate, name].append(replies)
    return done


# ------------------------------------------------------------------ the schemes of our engine


def schemes(model: GPT, **settings) -> dict[str, Scheme]:
    """Every scheme of SCHEMES by its name. `settings` are those of Scheme. Raises ValueError."""
    return {name: Scheme(model, name, **settings) for name in SCHEMES}


@dataclass
class Scheme:
    """One way to share a model among requests. Called with them it returns the replies.

    A step holds at most `running` texts and, where prompts are cut, `budget` tokens. `real` waits
    for the requests; otherwise the clock is virtual. Raises ValueError.
    """

    model: GPT
    name: str
    backend: type = ModuleBackend
    running: int = 32
    budget: int = 64
    real: bool = False
    noted: list[Tensor] = field(default_factory=list)  # NotedEngine's steps of each call

    def __post_init__(self):
        check_int("running", self.running, 1)
        check_int("budget", self.budget, 1)
        self.static_batch = self.running if "static" in SCHEMES[self.name] else None

    def __call__(self, requests: list[Request]) -> Replies:
        engine = self._engine(self.backend)
        clock = RealClock() if self.real else VirtualClock()
        gc.collect()  # not while the clock runs
        replies = drive(engine, requests, clock, self.static_batch)
        self.noted.append(engine.steps())
        return replies

    def replay(self, requests: list[Request], line: dict) -> Replies:
        """The same on a clock whose steps take what the line says: nothing is computed."""
        engine, clock = self._engine(ModuleBackend), LineClock()
        engine.backend = Priced(line, clock, self.model.config.vocab_size)
        return drive(engine, requests, clock, self.static_batch)

    def _engine(self, backend: type) -> NotedEngine:
        asks = SCHEMES[self.name]
        return NotedEngine(
            self.model,
            backend=backend,
            max_running=1 if "single" in asks else self.running,
            budget=self.budget if "chunked" in asks else None,
            reuse="reuse" in asks,
        )


class Counted:
    """A backend, and what each call of it held: steps, texts that decoded, tokens of prompts."""

    def __init__(self, backend):
        self.backend, self.calls = backend, []

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def read(self, step: StepInput) -> Tensor:
        self.calls.append((1, *counted(step.sequences)))
        return self.backend.read(step)

    def draw(self, batch: list, steps: list[int]) -> list[list[int]]:
        drawn, read = self.backend.draw(batch, steps), [seq.num_scheduled_tokens for seq in batch]
        decoded = sum(max(1, n_new) for n, n_new in zip(read, steps, strict=True) if n == 1)
        self.calls.append((max(1, *steps), decoded, sum(n for n in read if n > 1)))
        return drawn


class NotedEngine(BatchEngine):
    """Notes the seconds of each step, with those of scheduling and sampling, and what it held."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.backend, self.seconds = Counted(self.backend), []

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
        self.clock.worked += line["start"] + line["decode"] * decode + line["prefill"] * prefill
        return torch.zeros(len(step.wanted), self.vocab_size)


def _costs(own: dict[str, Scheme], workload: Workload, rates, limits: dict) -> dict:
    """The settings, what a step costs, and the measures of each scheme replayed on that line."""
    one = next(iter(own.values()))
    c, greedy, rows = one.model.config, replace(workload, greedy=True), []
    line = fit([steps for scheme in own.values() for steps in scheme.noted[1:]])  # no warm-up
    for rate in rates:
        requests = greedy.requests(c.vocab_size, c.block_size, rate)
        for name, scheme in own.items():
            got = measures(requests, scheme.replay(requests, line), limits)
            row = {"rate": None if rate == inf else rate, "scheme": name}
            rows.append(row | {key: got[key] for key in SIMULATED})
    about = {"n_params": one.model.n_params, "running": one.running, "budget": one.budget}
    clock = "real" if one.real else "virtual"
    return about | {"clock": clock, "line": line, "simulated": rows}


# ------------------------------------------------------------------ rows, and texts that differ


def _row(rate: float, name: str, requests: list, runs: list[Replies], limits: dict) -> dict:
    """`measures` of several runs, each a summary over them; None where a run has none."""
    each = [measures(requests, replies, limits) for replies in runs]
    columns = {key: [one[key] for one in each] for key in each[0]}
    summed = {key: None if None in column else summary(column) for key, column in columns.items()}
    failed = max(len(requests) - len(replies) for replies in runs)
    return {"rate": None if rate == inf else rate, "scheme": name, "failed": failed} | summed


def _over(own: list[Replies], base: list[Replies]) -> dict:
    """How many times as fast, pair by pair."""
    return summary(speed(a) / speed(b) for a, b in zip(own, base, strict=True))


def _median_speed(runs: list[Replies]) -> float:
    return summary(map(speed, runs))["median"]


def _tokens(replies: Replies) -> dict[int, list]:
    return {name: reply.tokens for name, reply in replies.items()}


def _greedy_texts(model: GPT, requests: list[Request]) -> dict[int, list[int]]:
    """The new tokens of each greedy request, from our own engine."""
    texts = {request.id: [] for request in requests}
    for output in serve(model, requests):
        texts[output.request.id].append(output.token)
    return texts


def _compared(model: GPT, requests: list[Request], ours: dict, runs: list[Replies]) -> dict:
    """Whether the texts that came whole are ours but for ties; those that are not, of one run."""
    parted = [differences(model, requests, ours, _tokens(run)) for run in runs]
    equal = all(one["tie"] for found in parted for one in found)
    return {"equal": equal, "differences": max(parted, key=len)}


def differences(
    model: GPT, requests: Sequence[Request], ours: dict[int, list], theirs: dict[int, list]
) -> list[dict]:
    """Where greedy texts part: {"request", "at", "margin", "tie"} for each request that differs.

    `margin` is the distance, in our logits, from our token to theirs, given the tokens before. It
    is a `tie` when rounding alone may cover it. A text that only ended early has no margin, nor has
    a token that is not ours (None). Requests without a reply are left out.
    """
    found = []
    for request in requests:
        own, other = ours[request.id], theirs.get(request.id)
        if other is None or own == other:
            continue
        pairs = enumerate(zip(own, other, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), None)
        one = {"request": request.id, "at": len(other) if at is None else at}
        found.append(one | {"margin": None, "tie": False})
        if at is not None and other[at] is not None:
            found[-1] |= _margin(model, request.prompt.tolist() + own[:at], own[at], other[at])
    return found


@torch.no_grad()
def _margin(model: GPT, tokens: list[int], own: int, other: int) -> dict:
    weight = model.lm_head.weight
    logits = model(torch.tensor([tokens], device=weight.device))[0][0, -1].double()
    margin = float(logits[own] - logits[other])
    return {"margin": margin, "tie": margin <= ROUNDING * float(logits.abs().max())}
