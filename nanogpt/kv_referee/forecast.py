"""How far will it come? Said before a slow model starts, with what to do about it."""

from __future__ import annotations

import time

import torch

from .contract import Model
from .programs import Program, reads_of, tokens_read
from .scenarios import Scenario
from .texts import BRIEF

_LIMITS = (60.0, 300.0)  # seconds whose reach is said
SMALL_MODEL = (
    "from transformers import AutoConfig, AutoModelForCausalLM; "
    "c = AutoConfig.from_pretrained(NAME, num_hidden_layers=2, hidden_size=64); "
    "model = AutoModelForCausalLM.from_config(c)"
)


def forecast(model: Model, plan: list[Scenario], seconds: float) -> str:
    """What 60 and 300 seconds reach of the brief scenarios; empty for a model that is fast enough.

    Measured by one plain pass; a call costs as much as eight more tokens.
    """
    n = min(BRIEF, model.limits.longest or BRIEF)
    ids = model.text(1, 0, n)
    start = time.monotonic()
    model.plain(ids)
    each = (time.monotonic() - start) / (n + 8)
    costs = [each * _cost(one.program) for one in plan]
    if 3 * sum(costs) < min(seconds, _LIMITS[0]):
        return ""
    reached = []
    for limit in _LIMITS:
        spent = 0.0
        kinds = []
        for scenario, cost in zip(plan, costs, strict=True):
            spent += cost
            if spent <= limit:
                kinds.append(scenario.kind)
        whole = len(dict.fromkeys(one.kind for one in plan))
        reached.append(f"{limit:.0f} s reach {len(dict.fromkeys(kinds))} of {whole} kinds")
    advice = f"all kinds need about {sum(costs):.0f} s; the same architecture, small, needs seconds"
    if hasattr(model.given, "plainly"):
        advice += f": {SMALL_MODEL}"
    passed = f"a pass of {n} tokens takes {each * (n + 8):.1f} s in {_dtype(model)}"
    return f"{model.name}: {passed}; {'; '.join(reached)}; {advice}"


def _dtype(model: Model) -> torch.dtype:
    weight = None if model.module is None else next(model.module.parameters(), None)
    return torch.float64 if weight is None else weight.dtype


def _cost(program: Program) -> float:
    """What a program costs in tokens, with the plain passes of its texts."""
    return 2 * tokens_read(program) + 8 * len(reads_of(program))
