"""Throughput and latency under load: requests that arrive whether or not the server is ready.

What a step costs is a line through the steps of a run: one with n texts that decode and m tokens of
prompts takes start + decode · n + prefill · m seconds. On a clock that such steps move, a schedule
can be replayed without a model.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
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
    model: GPT,
    rates: Sequence[float],
    *,
    workload: Workload | None = None,
    repeats: int = 3,
    limits: dict[str, float] | None = None,
    peers: dict[str, Serve] | None = None,
    **settings,
) -> dict:
    """Serve the same requests under every scheme, at each rate (requests a second; inf: at once).

    The schemes, and `peers` in real time, take turns, repeat by repeat, after a warm-up of each.
    `limits` are those of `measures`, `settings` those of Sharing. Returns plain data: `rows` for
    each rate and scheme; `line`, what a step costs; `simulated`, rows of the schemes as replayed on
    that line. A row has summaries over the repeats of all measures; `ratio`, its speed over the
    first scheme's; `equal`, whether its tokens are the first scheme's. A peer has `ours`, the speed
    of our fastest scheme over its own; its texts may differ at ties. Raises ValueError.
    """
    workload, limits, peers = workload or Workload(), limits or {}, peers or {}
    sharing, c, steps = Sharing(**settings), model.config, []
    at = partial(workload.requests, c.vocab_size, c.block_size)

    def noted(scheme: str, requests: list[Request]) -> Replies:
        replies, own = sharing.serve(model, scheme, requests)
        steps.append(own)
        return replies

    systems = {scheme: partial(noted, scheme) for scheme in SCHEMES} | peers
    done = serve_in_turns(systems, at, rates, repeats, limits)
    line = fit(steps[len(SCHEMES) :])  # those of the warm-up left out
    rows = []
    for rate in rates:
        runs = {name: done[rate, name] for name in systems}
        rows += _beside_the_first(model, rate, at(rate), runs, limits)
    return {
        "n_params": model.n_params,
        "block_size": c.block_size,
        **asdict(workload),
        **{"running": sharing.running, "budget": sharing.budget, "repeats": repeats},
        "limits": limits,
        "clock": "real" if sharing.real else "virtual",
        "line": line,
        "rows": rows,
        "simulated": _simulated(model, workload, sharing, rates, line, limits),
    }


def load_of_server(
    server: Serve,
    name: str,
    rates: Sequence[float],
    *,
    vocab_size: int,
    block_size: int,
    workload: Workload | None = None,
    repeats: int = 3,
    limits: dict[str, float] | None = None,
    model: GPT | None = None,
) -> dict:
    """The requests of `load` served by a system elsewhere, in real time: rows for the same table.

    With the `model` of the same weights its greedy texts are compared with our engine's. `failed`
    are requests without a whole reply. Raises ValueError, and what the server raises.
    """
    workload, limits = workload or Workload(greedy=True), limits or {}
    at = partial(workload.requests, vocab_size, block_size)
    done, rows = serve_in_turns({name: server}, at, rates, repeats, limits), []
    ours = _greedy_texts(model, at(inf)) if model else None
    for rate in rates:
        requests, runs = at(rate), done[rate, name]
        row = _row(rate, name, requests, runs, limits) | {"ratio": None}
        row["failed"] = max(len(requests) - len(run) for run in runs)
        rows.append(row | (_compared(model, requests, ours, runs) if ours else {"equal": None}))
    about = {"block_size": block_size, **asdict(workload), "repeats": repeats, "limits": limits}
    return about | {"clock": "real", "rows": rows}


def serve_in_turns(
    systems: dict[str, Serve],
    at: Callable[[float], list[Request]],
    rates: Sequence[float],
    repeats: int,
    limits: dict[str, float],
) -> dict[tuple[float, str], list[Replies]]:
    """Each system's runs at each rate, repeat by repeat, after one with at most 8 requests each.

    `at` gives the requests of a rate. Raises ValueError for no rates, and for wrong numbers.
    """
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


@dataclass(frozen=True)
class Sharing:
    """How one model is shared among requests, whatever the scheme. Raises ValueError."""

    backend: type = ModuleBackend
    running: int = 32
    budget: int = 64
    real: bool = False

    def __post_init__(self):
        check_int("running", self.running, 1)
        check_int("budget", self.budget, 1)

    def serve(self, model: GPT, scheme: str, requests: list[Request]) -> tuple[Replies, Tensor]:
        """Serve them, on the real clock or on a virtual one. -> and NotedEngine's steps"""
        engine = self._engine(model, scheme, self.backend)
        clock = RealClock() if self.real else VirtualClock()
        gc.collect()  # not while the clock runs
        replies = drive(engine, requests, clock, self._static_batch(scheme))
        return replies, engine.steps()

    def replay(self, model: GPT, scheme: str, requests: list[Request], line: dict) -> Replies:
        """The same on a clock whose steps take what the line says: nothing is computed."""
        engine, clock = self._engine(model, scheme, ModuleBackend), LineClock()
        engine.backend = Priced(line, clock, model.config.vocab_size)
        return drive(engine, requests, clock, self._static_batch(scheme))

    def _engine(self, model: GPT, scheme: str, backend: type) -> NotedEngine:
        asks = SCHEMES[scheme]
        return NotedEngine(
            model,
            backend=backend,
            max_running=1 if "single" in asks else self.running,
            budget=self.budget if "chunked" in asks else None,
            reuse="reuse" in asks,
        )

    def _static_batch(self, scheme: str) -> int | None:
        return self.running if "static" in SCHEMES[scheme] else None


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


def _simulated(model, workload, sharing, rates, line: dict, limits: dict) -> list[dict]:
    """Throughput and latencies of the schemes as replayed on a line: plain numbers, in seconds."""
    c, greedy, rows = model.config, replace(workload, greedy=True), []
    for rate in rates:
        requests = greedy.requests(c.vocab_size, c.block_size, rate)
        for scheme in SCHEMES:
            got = measures(requests, sharing.replay(model, scheme, requests, line), limits)
            row = {"rate": None if rate == inf else rate, "scheme": scheme}
            rows.append(row | {key: got[key] for key in SIMULATED})
    return rows


# ------------------------------------------------------------------ rows, and texts that differ


def _row(rate: float, name: str, requests: list, runs: list[Replies], limits: dict) -> dict:
    """`measures` of several runs, each a summary over them; None where a run has none."""
    each = [measures(requests, replies, limits) for replies in runs]
    columns = {key: [one[key] for one in each] for key in each[0]}
    summed = {key: None if None in column else summary(column) for key, column in columns.items()}
    return {"rate": None if rate == inf else rate, "scheme": name} | summed


def _beside_the_first(
    model: GPT, rate: float, requests: list, systems: dict[str, list[Replies]], limits: dict
) -> list[dict]:
    """The rows of the systems at a rate: the schemes, and what is not one of them, a peer."""
    ours = [systems[scheme] for scheme in SCHEMES]
    first, tokens, rows = ours[0], _tokens(ours[0][0]), []
    best = max(ours, key=lambda runs: summary(map(speed, runs))["median"])
    for name, runs in systems.items():
        row = _row(rate, name, requests, runs, limits) | {"ratio": _over(runs, first)}
        if name in SCHEMES:
            row["equal"] = all(_tokens(run) == tokens for run in runs)
        else:
            row |= _compared(model, requests, tokens, runs) | {"ours": _over(best, runs)}
        rows.append(row)
    return rows


def _over(own: list[Replies], base: list[Replies]) -> dict:
    """How many times as fast, pair by pair."""
    return summary(speed(a) / speed(b) for a, b in zip(own, base, strict=True))


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
