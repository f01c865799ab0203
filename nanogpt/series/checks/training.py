"""The checks of training numbers: learning_rate and mfu."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from .. import solutions
from .costs import calls
from .exercise import Answer, Case, Exercise, Pairs

# ------------------------------------------------------------------ learning_rate


def run_schedule(answer: Answer, steps: int, warmup: int) -> Pairs:
    """The factor at every step, in order and then backwards."""
    rates = [float(answer(step, steps, warmup)) for step in range(steps)]
    yield "the factor at step 0", rates[0]
    yield "the factors of all steps", torch.tensor(rates, dtype=torch.float64)
    again = [float(answer(step, steps, warmup)) for step in reversed(range(steps))]
    yield "a step has a different factor the second time", again[::-1] != rates


def scheduled(
    step: int,
    steps: int,
    warmup: int,
    rise: Any = lambda step, warmup: min(1, (step + 1) / warmup),
    fall: Any = lambda step, steps, warmup: 1 - step / steps,
    join: Any = lambda rise, fall: rise * fall,
) -> Any:
    """The reference solution. Each step can be replaced."""
    return join(rise(step, warmup), fall(step, steps, warmup))


def rate_by(**step: Any) -> Answer:
    """learning_rate with one step replaced."""
    return lambda *given: scheduled(*given, **step)


def rises_then_falls(step: int, steps: int, warmup: int) -> float:
    return (step + 1) / warmup if step < warmup else 1 - step / steps


def after_warmup(step: int, steps: int, warmup: int) -> float:
    return 1 - max(0, step - warmup) / max(1, steps - warmup)


def after_last_of_warmup(step: int, steps: int, warmup: int) -> float:
    return 1 - max(0, step + 1 - warmup) / max(1, steps - warmup)


def exchanged(step: int, steps: int, warmup: int) -> Any:
    return scheduled(step, warmup, steps)


def cosine(step: int, steps: int, warmup: int) -> float:
    return (1 + math.cos(math.pi * step / steps)) / 2


PRODUCT = "the factor is the product of the rise and the line"
LEARNING_RATE = Exercise(
    notebook="11",
    hints=(
        "With a warm-up of 10: how large is the rise at steps 0, 9 and 50? And with 100 steps: "
        "where is the line at steps 0, 9 and 50?",
        "`min(1, …)` stops a rise. At step `s` the line is 1 - s / steps. Multiply the two.",
        "return min(1, (step + 1) / warmup) * (1 - step / steps)",
    ),
    right=solutions.learning_rate,
    cases=[
        Case(run_schedule, steps=100, warmup=10),
        Case(run_schedule, steps=12, warmup=4),
        Case(run_schedule, steps=7, warmup=1),
        Case(run_schedule, steps=5, warmup=5),
        Case(run_schedule, steps=4, warmup=9),
        Case(run_schedule, steps=1, warmup=1),
        Case(run_schedule, steps=900, warmup=37),
    ],
    mistakes={
        "at step 0 the rate is 0, so the first batch is wasted: the rise begins at 1/warmup, "
        "(step + 1) / warmup.": rate_by(rise=lambda step, warmup: min(1, step / warmup)),
        "the rise continues past 1: it stops there, after the warm-up, with min(1, …).": rate_by(
            rise=lambda step, warmup: (step + 1) / warmup
        ),
        "max(1, …) starts at 1 and rises past it: min(1, …) stops a rise.": rate_by(
            rise=lambda step, warmup: max(1, (step + 1) / warmup)
        ),
        "there is no rise: multiply the line by min(1, (step + 1) / warmup).": rate_by(
            rise=lambda step, warmup: 1
        ),
        "the rise reaches 1 one step too late: at the last step of the warm-up, warmup - 1.": (
            rate_by(rise=lambda step, warmup: min(1, (step + 1) / (warmup + 1)))
        ),
        "the rise is one step ahead: at step 0 it is 1/warmup.": rate_by(
            rise=lambda step, warmup: min(1, (step + 2) / warmup)
        ),
        "// truncates the rise to whole numbers: divide with /.": rate_by(
            rise=lambda step, warmup: min(1, (step + 1) // warmup)
        ),
        "the rise is a curve: it is a straight line from 1/warmup to 1.": rate_by(
            rise=lambda step, warmup: min(1, (step + 1) / warmup) ** 2
        ),
        "there is no fall: multiply the rise by 1 - step / steps.": rate_by(
            fall=lambda step, steps, warmup: 1
        ),
        "the line is negative, because the 1 is missing: 1 - step / steps.": rate_by(
            fall=lambda step, steps, warmup: -step / steps
        ),
        "`steps` and `warmup` are swapped: the line ends after `steps`.": exchanged,
        "the line rises instead of falling: 1 - step / steps.": rate_by(
            fall=lambda step, steps, warmup: step / steps
        ),
        "your line begins after the warm-up: it is 1 at step 0 and falls from there.": rate_by(
            fall=after_warmup
        ),
        "your line begins at the last step of the warm-up: it is 1 at step 0 and falls from "
        "there.": rate_by(fall=after_last_of_warmup),
        "the line reaches 0 in the last step, steps - 1: it would be 0 one step later.": rate_by(
            fall=lambda step, steps, warmup: 1 - step / max(1, steps - 1)
        ),
        "the line is one step ahead: it is 1 at step 0.": rate_by(
            fall=lambda step, steps, warmup: 1 - (step + 1) / steps
        ),
        "the line stops at a tenth: it falls to 0 at step `steps`.": rate_by(
            fall=lambda step, steps, warmup: max(0.1, 1 - step / steps)
        ),
        "the fall is a cosine: it is a straight line.": rate_by(fall=cosine),
        "the fall is squared: it is a straight line.": rate_by(
            fall=lambda step, steps, warmup: (1 - step / steps) ** 2
        ),
        f"you take the smaller of the two: {PRODUCT}.": rate_by(join=min),
        f"you add the two: {PRODUCT}.": rate_by(join=lambda rise, fall: rise + fall),
        f"you take their mean: {PRODUCT}.": rate_by(join=lambda rise, fall: (rise + fall) / 2),
        "the line is missing during the warm-up: it falls from step 0 on.": rises_then_falls,
        "the factor is rounded: leave it as it is.": rate_by(
            join=lambda rise, fall: round(rise * fall, 3)
        ),
    },
    advice={
        "the factor at step 0": "It is 1/warmup: the rise is 1/warmup and the line is 1.",
        "the factors of": f"Is the rise wrong, or the line? {PRODUCT.capitalize()}.",
        "the second time": "Compute it from the arguments alone.",
    },
    axes=[("step",)],
)


# ------------------------------------------------------------------ mfu


def share(
    chars: float,
    seconds: float,
    parameters: float,
    layers: int,
    width: int,
    block: int,
    peak: float,
    work: Any = lambda P, L, C, T: 6 * P + 12 * L * C * T,
    used: Any = lambda work, chars, seconds, peak: work * chars / seconds / peak,
) -> Any:
    """The reference solution. Each step can be replaced."""
    return used(work(parameters, layers, width, block), chars, seconds, peak)


def work_by(work: Any) -> Answer:
    """mfu with other operations per character, for P parameters, L layers, width C and block T."""
    return partial(share, work=work)


def use_by(used: Any) -> Answer:
    """mfu with another use of the operations per character."""
    return partial(share, used=used)


MFU = Exercise(
    notebook="11",
    hints=(
        "How many operations does one character cost? How many characters are processed per "
        "second? And how many operations could be done in that second?",
        "Operations per character: 6 · parameters + 12 · layers · width · block. Multiply by "
        "characters per second, and divide by the peak.",
        "return (6 * parameters + 12 * layers * width * block) * chars / seconds / peak",
    ),
    right=solutions.mfu,
    cases=calls(
        (1000, 2.0, 700, 2, 10, 5, 5_400_000),
        (1000, 2.0, 700, 0, 10, 5, 5_400_000),
        (1000, 2.0, 0, 2, 10, 5, 5_400_000),
        (300, 0.25, 1_000, 3, 7, 11, 1e9),
        (50_000, 9.5, 10_788_929, 6, 384, 256, 3.12e14),
        (1, 1.0, 1, 1, 1, 1, 1e3),
    ),
    mistakes={
        "attention is missing: 12 · layers · width · block operations per character.": work_by(
            lambda P, L, C, T: 6 * P
        ),
        "the weights are missing: 6 operations each.": work_by(lambda P, L, C, T: 12 * L * C * T),
        "these are operations per second: divide them by the peak.": use_by(
            lambda work, chars, seconds, peak: work * chars / seconds
        ),
        "these are all operations: divide them by the seconds and by the peak.": use_by(
            lambda work, chars, seconds, peak: work * chars
        ),
        "this divides the work of all seconds by the peak of one: divide by the seconds.": use_by(
            lambda work, chars, seconds, peak: work * chars / peak
        ),
        "you multiply by the seconds: divide by them.": use_by(
            lambda work, chars, seconds, peak: work * chars * seconds / peak
        ),
        "the fraction is inverted: utilization is used / peak.": (lambda *given: 1 / share(*given)),
        "only one character is counted: there were `chars` of them.": use_by(
            lambda work, chars, seconds, peak: work / seconds / peak
        ),
        "2 operations per weight are only the forward pass: the backward pass takes 4 more.": (
            work_by(lambda P, L, C, T: 2 * P + 12 * L * C * T)
        ),
        "4 operations per weight are only the backward pass: the forward pass takes 2 more.": (
            work_by(lambda P, L, C, T: 4 * P + 12 * L * C * T)
        ),
        "both terms are only the forward pass, a third: with the backward pass they are 6 and "
        "12.": work_by(lambda P, L, C, T: 2 * P + 4 * L * C * T),
        "attention is counted with 6: it takes 12, a multiplication and an addition for keys and "
        "for values, three times.": work_by(lambda P, L, C, T: 6 * P + 6 * L * C * T),
        "attention is counted with 4, which is only the forward pass: it takes 12.": work_by(
            lambda P, L, C, T: 6 * P + 4 * L * C * T
        ),
        "6 and 12 are swapped: 6 for each weight, 12 for attention.": work_by(
            lambda P, L, C, T: 12 * P + 6 * L * C * T
        ),
        "only one layer's attention is counted: each layer has its own.": work_by(
            lambda P, L, C, T: 6 * P + 12 * C * T
        ),
        "the block is missing: each character attends to `block` keys.": work_by(
            lambda P, L, C, T: 6 * P + 12 * L * C
        ),
        "the width is missing: a score takes `width` multiplications.": work_by(
            lambda P, L, C, T: 6 * P + 12 * L * T
        ),
        "the block is squared: this is the work of one character, not of a window.": work_by(
            lambda P, L, C, T: 6 * P + 12 * L * C * T * T
        ),
        "the width is squared, as in a matrix: a score takes `width` multiplications.": work_by(
            lambda P, L, C, T: 6 * P + 12 * L * C * C * T
        ),
        "the weights are counted once per layer: `parameters` already includes all "
        "layers.": work_by(lambda P, L, C, T: L * (6 * P + 12 * C * T)),
        "every weight is counted for every key of the block: a character passes through each "
        "weight once.": work_by(lambda P, L, C, T: (6 * P + 12 * L * C) * T),
        "weights and attention are multiplied: add their operations.": work_by(
            lambda P, L, C, T: 6 * P * 12 * L * C * T
        ),
        "the seconds are divided by the peak first: chars / seconds / peak needs no "
        "parentheses.": use_by(lambda work, chars, seconds, peak: work * chars / (seconds / peak)),
        "this is in percent: utilization is between 0 and 1.": lambda *given: 100 * share(*given),
        "the result is rounded: leave it as it is.": lambda *given: round(share(*given), 2),
        "// truncates the result to a whole number: divide with /.": use_by(
            lambda work, chars, seconds, peak: work * chars / seconds // peak
        ),
    },
    advice={
        "the number": (
            "6 · parameters + 12 · layers · width · block operations per character, times the "
            "characters per second, over the peak."
        ),
    },
)
