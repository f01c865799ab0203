"""Notebook 02, blank 4: sample, which draws tokens by a race with exponential noise."""

import torch

from ...sampling import draw_noise
from ..comparing import alike
from ..drivers import Arguments, form, numbers
from ..page import Blank, Case


def sample(logits, noise):
    """Sample one token per row.  (B, V), (B, V) -> (B, 1)"""
    probs = logits.softmax(-1)
    return (probs / noise).argmax(-1, keepdim=True)


# ------------------------------------------------------------------ what a check runs

CLEAR = 1e-3  # in log space: a closer race may go either way


def run_race(answer, B, V, factor, level=0.0, rounds=20):
    """The winners of races that are not too close to call. Each of B rows has its own offset."""
    logits = factor * numbers(B, V, seed=V) + level * torch.arange(1, B + 1)[:, None]
    logits = logits.repeat(rounds, 1)
    noise = draw_noise(1, rounds * B, V, torch.Generator().manual_seed(B))[0].double()
    given = Arguments(logits=logits, noise=noise)
    tokens = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the tokens", form(tokens)
    yield "the dtype of the tokens", str(getattr(tokens, "dtype", "none"))
    two = (given.before["logits"].log_softmax(-1) - given.before["noise"].log()).topk(2).values
    clear = (two[:, 0] - two[:, 1] > CLEAR)[:, None]
    yield "the tokens", torch.where(clear, tokens, -1)


def run_again(answer):
    """The same call twice."""
    logits = numbers(20, 9)
    noise = draw_noise(1, 20, 9, torch.Generator().manual_seed(0))[0].double()
    first = answer(logits.clone(), noise.clone())
    same = alike(answer(logits.clone(), noise.clone()), first)
    yield "the same noise gives different tokens: your code draws its own random numbers", not same


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="02.4",
    minutes=4,
    solution=sample,
    cases=[
        Case(run_again),
        Case(run_race, B=8, V=5, factor=1.0, rounds=3),
        Case(run_race, B=40, V=65, factor=1.0, rounds=50),
        Case(run_race, B=40, V=65, factor=0.2, rounds=50),
        Case(run_race, B=7, V=300, factor=4.0),
        Case(run_race, B=3, V=17, factor=1.0, level=900.0),
        Case(run_race, B=6, V=65, factor=12.0, level=-900.0),
        Case(run_race, B=2, V=3000, factor=0.3, rounds=50),
    ],
    mistakes={
        "the noise is multiplied, or its logarithm added: the largest probability / noise wins, "
        "which is the largest logit - log(noise).": ["/ noise -> * noise"],
        "the noise is added or subtracted: divide, because the largest probability / noise wins.": (
            ["/ noise -> + noise"],
            ["/ noise -> - noise"],
        ),
        "the softmax is missing, comes after the division, or is a log_softmax: the race is won by "
        "probability / noise.": (
            ["softmax -> log_softmax"],
            ["logits.softmax(-1) -> logits"],
        ),
        "the softmax runs over the rows: its dimension is the last, -1.": [
            "softmax(-1) -> softmax(0)"
        ],
        "the loser of the race is picked: the largest probability / noise wins, so use argmax.": [
            "argmax -> argmin"
        ],
        "the winner's value is returned: a token is its integer index, from argmax.": [
            "argmax -> amax"
        ],
        "a temperature is built in: sample at temperature 1, because the caller divides by another.": [
            "logits.softmax -> (logits / 0.8).softmax"
        ],
    },
    wrong=[
        "logits.softmax -> (logits / 1.05).softmax",
        "logits.softmax(-1) -> logits.softmax(-1).clamp(min=1e-4)",
        "(probs / noise) -> (probs / noise)[:, :512]",
        "logits.softmax -> logits.clamp(-50, 50).softmax",
        ", keepdim=True -> ",
    ],
    right=[
        """
def sample(logits, noise):
    return (logits - torch.log(noise)).max(dim=-1, keepdim=True).indices
""",
        """
def sample(logits, noise):
    race = (logits.log_softmax(-1) - noise.log()).tolist()
    return torch.tensor([[max(range(len(row)), key=row.__getitem__)] for row in race])
""",
        """
def sample(logits, noise):
    return torch.argmin(noise / F.softmax(logits.float(), dim=-1), dim=1)[:, None]
""",
    ],
    hints=(
        "In the race each token rings after noise / probability seconds, and the first to ring is the sample. Which token is that?",
        "Softmax along the last dimension, one division, `argmax`.",
        "return (logits.softmax(-1) / noise).argmax(-1, keepdim=True)",
    ),
    advice={
        "the shape of": "Each row needs one token: a tensor (B, 1).",
        "the dtype of": "A token is an integer, the index returned by argmax.",
        "the tokens": "All candidates race, each row with its own unmodified noise, at temperature 1. Only differences of logits count.",
    },
    axes=[("row", "token")],
)
