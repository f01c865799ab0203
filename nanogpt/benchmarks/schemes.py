"""Five ways to share one model among requests, and what each needs to serve them on a clock."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from ..config.checks import check_int
from ..model.gpt import GPT
from ..serving.modules import ModuleBackend
from ..serving.native import NativeBackend
from ..serving.request import Request
from .arrivals import RealClock, VirtualClock, drive
from .measures import Answer, check_limits
from .step_cost import LineClock, Priced, TimedEngine

BACKENDS = {"modules": ModuleBackend, "native": NativeBackend}


@dataclass(frozen=True)
class Scheme:
    """One way to share the model. `static`: a batch is formed when the last one has ended."""

    name: str
    static: bool = False
    single: bool = False
    chunked: bool = False
    reuse: bool = False

    def engine(self, model: GPT, backend, running: int, budget: int) -> TimedEngine:
        return TimedEngine(
            model,
            backend=backend,
            max_running=1 if self.single else running,
            budget=budget if self.chunked else None,
            reuse=self.reuse,
        )


SCHEMES = (
    Scheme("one at a time", single=True),
    Scheme("static batches", static=True),
    Scheme("continuous"),
    Scheme("chunked prefill", chunked=True),
    Scheme("prefix reuse", chunked=True, reuse=True),
)


class Run(NamedTuple):
    """One run over all requests."""

    answers: dict[int, Answer]
    bookkeeping: float | None = None  # the share of the time outside the backend
    steps: Tensor | None = None  # as TimedEngine.steps has them

    @property
    def tokens(self) -> dict[int, list[int]]:
        return {name: answer.tokens for name, answer in self.answers.items()}

    @property
    def speed(self) -> float:
        """Tokens a second."""
        end = max(answer.moments[-1] for answer in self.answers.values())
        return sum(map(len, self.tokens.values())) / end


@dataclass(frozen=True)
class Settings:
    """How requests are served, whatever the scheme. Raises ValueError."""

    backend: type = ModuleBackend
    running: int = 32
    budget: int = 64
    limits: dict[str, float] = field(default_factory=dict)  # as `measures` has them
    real: bool = False

    def __post_init__(self):
        check_int("running", self.running, 1)
        check_int("budget", self.budget, 1)
        check_limits(self.limits)

    def serve(self, model: GPT, scheme: Scheme, requests: list[Request]) -> Run:
        """Serve them, on the real clock or on a virtual one."""
        engine = scheme.engine(model, self.backend, self.running, self.budget)
        gc.collect()  # not while the clock runs
        clock = RealClock() if self.real else VirtualClock()
        answers = drive(engine, requests, clock, scheme.static)
        return Run(answers, 1 - engine.backend.seconds / clock.worked, engine.steps())

    def replay(self, model: GPT, scheme: Scheme, requests: list[Request], line: dict) -> Run:
        """The same on a clock whose steps take what the line says: nothing is computed."""
        engine = scheme.engine(model, ModuleBackend, self.running, self.budget)
        clock = LineClock()
        engine.backend.backend = Priced(line, clock, model.config.vocab_size)
        return Run(drive(engine, requests, clock, scheme.static))
