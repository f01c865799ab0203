"""Notebook 03, blank 3: margin, by how much a sampled token wins its race."""

import math

import torch

from ..drivers import Arguments, numbers
from ..page import Blank, Case


def margin(logits, noise):
    """By how many logits the best candidate beats the second best.  (V,), (V,) -> float"""
    best, second = (logits - noise.log()).topk(2).values
    return (best - second).item()


# ------------------------------------------------------------------ what a check runs

E = math.e


def run_margin(answer, logits, noise):
    """One sampled token."""
    pairs = zip(("logits", "noise"), (logits, noise), strict=True)
    given = Arguments(**{name: torch.tensor(row, dtype=torch.float64) for name, row in pairs})
    yield from measured(answer, given, "the margin")


def run_margins(answer, V, factor, dtype):
    """Two sampled tokens with random logits."""
    for seed in range(2):
        logits = factor * numbers(V, seed=seed, dtype=dtype)
        noise = numbers(V, seed=10 + seed, dtype=dtype).abs()
        given = Arguments(logits=logits, noise=noise)
        yield from measured(answer, given, "the margin of a sampled token")


def measured(answer, given, what):
    """A number, as a float or anything that float() accepts."""
    said = answer(*given.tensors.values())
    yield from given.changes()
    try:
        number = float(said)
        wrong = False
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
        wrong = True
    yield "what is returned is not a number", wrong
    yield what, torch.tensor(number, dtype=torch.float64)


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="03.3",
    minutes=5,
    solution=margin,
    cases=[
        Case(run_margin, 1e-4, logits=[2.0, 1.0, 0.0], noise=[1.0, 1.0, 1.0]),
        Case(run_margin, 1e-4, logits=[2.0, 1.0, 0.0], noise=[E, 1.0, E**-4]),
        Case(run_margin, 1e-4, logits=[0.0, 4.0, 1.5, -3.0], noise=[1.0, E**3, E, E**-2]),
        Case(run_margin, 1e-4, logits=[-5.0, -8.0], noise=[0.5, 0.5]),
        Case(run_margin, 1e-4, logits=[1.0, 3.0, 3.0, 0.0], noise=[1.0, 1.0, 1.0, 1.0]),
        Case(run_margins, 1e-4, V=65, factor=3.0, dtype=torch.float64),
        Case(run_margins, 1e-3, V=65, factor=3.0, dtype=torch.float32),
        Case(run_margin, 1e-4, logits=[300.0, 0.0, -250.0], noise=[1.0, 2.0, 3.0]),
    ],
    mistakes={
        "the noise is not used: it decides the race as much as the logits do.": [
            " - noise.log() -> "
        ],
        "log(noise) is added: large noise means ringing late, so it must lower the score.": [
            "- noise -> + noise"
        ],
        "the logits are divided by the noise: that is for probabilities; for logits, subtract "
        "log(noise).": ["logits - noise.log() -> logits / noise"],
        "the margin is in logits, and yours is in probabilities: compare logits - log(noise), without "
        "a softmax.": (
            ["logits - noise.log() -> logits.softmax(-1) / noise"],
            [
                "logits - noise.log() -> logits.softmax(-1) / noise",
                "best - second -> best / second",
            ],
        ),
        "the best score is compared with another than the second best, such as the worst or the mean.": (
            [".topk(2).values -> .aminmax()", "best - second -> second - best"],
            [
                "best, second = -> scores =",
                ".topk(2).values -> \n    best, second = scores.max(), scores.mean()",
            ],
        ),
        "if two candidates tie for first place, the margin is 0: the second best may be as good as "
        "the best.": [
            ".topk(2).values -> .unique()[-2:]",
            "best - second -> second - best",
        ],
    },
    wrong=[
        "logits - -> logits / 0.8 -",
        "(logits - noise.log()) -> (logits - noise.log()).abs()",
    ],
    right=[
        """
def margin(logits, noise):
    scores = sorted(a - math.log(b) for a, b in zip(logits.tolist(), noise.tolist()))
    return scores[-1] - scores[-2]
""",
        """
def margin(logits, noise):
    scores = logits.log_softmax(-1) - noise.log()
    first = scores.argmax()
    best = scores[first].clone()
    scores[first] = -torch.inf
    return best - scores.max()
""",
    ],
    hints=(
        "Sampling is a race. What is a candidate's score in it, in logits: what does a large noise value do to its chances?",
        "The score of a candidate is `logits - noise.log()`. `scores.topk(2).values` are the best two.",
        "best, second = (logits - noise.log()).topk(2).values; then return (best - second).item()",
    ),
    advice={
        "the margin": "It is the best score, logits - noise.log(), minus the second best.",
    },
)
