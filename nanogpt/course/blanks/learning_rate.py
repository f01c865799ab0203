"""Notebook 11, blank 1: learning_rate."""

from ..page import Blank


def learning_rate(step, steps, warmup):
    """The factor of the learning rate at `step`, 0 ≤ step < steps."""
    rise = min(1, (step + 1) / warmup)
    return rise * (1 - step / steps)


BLANK = Blank(
    number="11.1",
    solution=learning_rate,
    cases=[],
    mistakes={},
    hints=(
        "With a warm-up of 10: how large is the rise at steps 0, 9 and 50? And with 100 steps: where is the line at steps 0, 9 and 50?",
        "`min(1, …)` stops a rise. At step `s` the line is 1 - s / steps. Multiply the two.",
        "return min(1, (step + 1) / warmup) * (1 - step / steps)",
    ),
    advice={
        "the factor at step 0": "It is 1/warmup: the rise is 1/warmup and the line is 1.",
        "the factors of": "Is the rise wrong, or the line? The factor is the product of the rise and the line.",
        "the second time": "Compute it from the arguments alone.",
    },
    axes=[("step",)],
)
