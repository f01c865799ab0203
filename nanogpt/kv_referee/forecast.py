"""How far will it come? Said before a slow model starts, with what to do about it."""

from __future__ import annotations

import time

import torch

from .contract import Model
from .programs import Fork, Start, reads_of, tokens_read
from .scenarios import Scenario
from .texts import BRIEF

_LIMITS = (60.0, 300.0)  # seconds whose reach is said
_MEASURED = 14  # plain passes before the first scenario: what moves them
_SMALL_MODEL = (
    "from transformers import AutoConfig, AutoModelForCausalLM; "
    "c = AutoConfig.from_pretrained(NAME, num_hidden_layers=2, hidden_size=64); "
    "model = AutoModelForCausalLM.from_config(c)"
)


def forecast(model: Model, plan: list[Scenario], spent: float, left: float) -> str:
    """What 60 and 300 seconds reach of the brief scenarios; empty for a model that is fast enough.

    `spent` are the seconds that are gone, `left` those to come.
    """
    # 1. What a call costs, and each of its tokens: from a long pass and a short one.
    n = min(BRIEF, model.limits.longest or BRIEF)
    few = model.limits.shortest
    long, short = _seconds(model, n), _seconds(model, few)
    each = max(0.0, (long - short) / (n - few))
    call = max(0.0, long - each * n)
    # 2. What each scenario costs, and the passes before them.
    spent += long * _MEASURED
    costs = []
    for scenario in plan:
        calls, tokens = _work(scenario)
        costs.append(call * calls + each * tokens)
    if 3 * sum(costs) < min(left, _LIMITS[0]):
        return ""
    # 3. How many kinds are done by then.
    reached = []
    whole = len({one.kind for one in plan})
    for limit in _LIMITS:
        now = spent
        kinds = set()
        for scenario, cost in zip(plan, costs, strict=True):
            now += cost
            if now <= limit:
                kinds.add(scenario.kind)
        reached.append(f"{limit:.0f} s reach {len(kinds)} of {whole} kinds")
    total = spent + sum(costs)
    advice = f"all kinds need about {total:.0f} s; the same architecture, small, needs seconds"
    if hasattr(model.given, "plainly"):
        advice += f": {_SMALL_MODEL}"
    passed = f"a pass of {n} tokens takes {long:.1f} s in {_dtype(model)}"
    return f"{model.name}: {passed}; {'; '.join(reached)}; {advice}"


def _seconds(model: Model, n: int) -> float:
    """How long a pass of n tokens takes."""
    ids = model.text(1, 0, n)
    start = time.monotonic()
    model.plain(ids)
    return time.monotonic() - start


def _dtype(model: Model) -> torch.dtype:
    weight = None if model.module is None else next(model.module.parameters(), None)
    return torch.float64 if weight is None else weight.dtype


def _work(scenario: Scenario) -> tuple[int, int]:
    """The calls of a scenario and their tokens, with a plain pass of each text."""
    if scenario.padding is not None:
        ids = scenario.padding.ids
        return len(scenario.padding.lengths) + 1 + len(ids), 3 * ids.numel()
    begun = (step.rows for step in scenario.program if isinstance(step, Start))
    forks = sum(isinstance(step, Fork) for step in scenario.program)
    calls = len(reads_of(scenario.program)) + sum(begun) + forks
    return calls, 2 * tokens_read(scenario.program)
