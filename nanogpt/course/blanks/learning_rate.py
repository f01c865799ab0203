"""Notebook 11, blank 1: learning_rate, which rises during a warm-up and falls to 0."""

import torch

from ..drivers import number
from ..page import Blank, Case


def learning_rate(step, steps, warmup):
    """The factor of the learning rate at `step`, 0 ≤ step < steps."""
    rise = min(1, (step + 1) / warmup)
    return rise * (1 - step / steps)


# ------------------------------------------------------------------ what a check runs


def run_schedule(answer, steps, warmup):
    """The factor at every step, in order and then backwards."""
    rates = [number(answer(step, steps, warmup)) for step in range(steps)]
    other = [f"{rate} at step {n}" for n, rate in enumerate(rates) if isinstance(rate, str)]
    yield "what is returned", other[0] if other else "a number at each step"
    yield "the factors of all steps", torch.tensor(rates, dtype=torch.float64)
    again = [number(answer(step, steps, warmup)) for step in reversed(range(steps))]
    yield "a step has a different factor the second time", again[::-1] != rates


def schedule(steps, warmup):
    """A case; factors computed in float32 are near enough."""
    return Case(run_schedule, tolerance=1e-6, steps=steps, warmup=warmup)


# ------------------------------------------------------------------ what people write

LINE = "(1 - step / steps)"
BLANK = Blank(
    number="11.1",
    minutes=7,
    solution=learning_rate,
    cases=[
        schedule(steps=100, warmup=10),
        schedule(steps=12, warmup=4),
        schedule(steps=7, warmup=1),
        schedule(steps=5, warmup=5),
        schedule(steps=4, warmup=9),
        schedule(steps=1, warmup=1),
        schedule(steps=900, warmup=37),
    ],
    mistakes={
        "at step 0 the rate is 0, so the first batch is wasted: the rise begins at 1/warmup, (step + 1) / warmup.": (
            ["(step + 1) -> step"],
            ["(step + 1) / warmup -> step / max(1, warmup - 1)"],
        ),
        "your line begins after the warm-up: it is 1 at step 0 and falls from there.": [
            f"{LINE} -> (1 - max(0, step - warmup) / (steps - warmup))"
        ],
        "the line reaches 0 at the last step, steps - 1: it is 1 at step 0 and would be 0 one step after the last.": (
            ["step / steps) -> step / (steps - 1))"],
            ["step / steps -> step / max(1, steps - 1)"],
        ),
        "you take the smaller of the two, their sum or their mean: the factor is the product of the rise and the line.": (
            [f"rise * {LINE} -> min(rise, 1 - step / steps)"],
            [f"rise * {LINE} -> (rise + 1 - step / steps) / 2"],
        ),
    },
    wrong=[
        f"rise * {LINE} -> round(rise * (1 - step / steps), 3)",
        f"rise * {LINE} -> torch.tensor(rise * (1 - step / steps)).half()",
        "rise = -> steps = min(steps, 500)\n    rise =",
    ],
    right=[
        """
def learning_rate(step, steps, warmup):
    line = (steps - step) / steps
    if step + 1 < warmup:
        return (step + 1) / warmup * line
    return line
""",
        """
def learning_rate(step, steps, warmup):
    import numpy as np

    return np.clip((step + 1) / warmup, 0, 1) * np.interp(step, [0, steps], [1, 0])
""",
        """
def learning_rate(step, steps, warmup):
    rise = torch.tensor((step + 1) / warmup).clamp(max=1)
    return rise * (1 - step / steps)
""",
        """
def learning_rate(step, steps, warmup):
    rise = 0
    for _ in range(min(step + 1, warmup)):
        rise += 1 / warmup
    return rise - rise * step / steps
""",
    ],
    hints=(
        "With a warm-up of 10: how large is the rise at steps 0, 9 and 50? And with 100 steps: where is the line at steps 0, 9 and 50?",
        "`min(1, …)` stops a rise. At step `s` the line is 1 - s / steps. Multiply the two.",
        "return min(1, (step + 1) / warmup) * (1 - step / steps)",
    ),
    advice={
        "the factors of": "Is the rise wrong, or the line? At step 0 the rise is 1/warmup and the line is 1, and the factor is their product.",
    },
    axes=[("step",)],
)
