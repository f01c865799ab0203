"""The check of sample."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...sampling import draw_noise
from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, form, numbers

CLEAR = 1e-3  # in log space: a closer race may go either way


def run_three(answer: Answer, noise: list[float]) -> Pairs:
    """One row of three candidates."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    given = Arguments(logits=logits, noise=torch.tensor([noise]))
    token = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the tokens", form(token)
    yield "the dtype of the tokens", str(getattr(token, "dtype", "none"))
    yield "the token of probabilities 0.5, 0.3, 0.2 with this noise", int(token)
    same = all(int(answer(*given.tensors.values())) == int(token) for _ in range(20))
    yield "the same noise gives different tokens: your code draws its own random numbers", not same


def run_shares(answer: Answer) -> Pairs:
    """How often each of three candidates wins."""
    n = 20_000
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log().repeat(n, 1)
    noise = draw_noise(n, 1, 3, torch.Generator().manual_seed(0))[:, 0]
    tokens = answer(logits, noise)
    yield "the shape of the tokens", form(tokens)
    shares = torch.bincount(tokens.flatten(), minlength=3) / n
    for token, share in enumerate(shares.tolist()):
        yield f"token {token} is never sampled", share == 0
    yield "the shares of the tokens in 20,000 rows", shares


def run_race(
    answer: Answer, B: int, V: int, factor: float, level: float = 0.0, rows: int = 20
) -> Pairs:
    """The winners of races that are not too close to call. Each row has its own offset."""
    logits = factor * numbers(B, V, seed=V) + level * torch.arange(1, B + 1)[:, None]
    for row in draw_noise(rows, B, V, torch.Generator().manual_seed(B)).double():
        given = Arguments(logits=logits.clone(), noise=row.clone())
        tokens = answer(*given.tensors.values())
        yield from given.changes()
        yield "the shape of the tokens", form(tokens)
        two = (logits.log_softmax(-1) - row.log()).topk(2).values
        clear = (two[:, 0] - two[:, 1] > CLEAR)[:, None]
        yield "the tokens", torch.where(clear, tokens, -1)


def sample(logits: Tensor, noise: Tensor, share: Any = None, race: Any = None) -> Tensor:
    """The reference solution. Each step can be replaced."""
    probs = share(logits) if share else logits.softmax(-1)
    times = race(probs, noise) if race else probs / noise
    return times.argmax(-1, keepdim=True)


def sample_by(**step: Any) -> Answer:
    """sample with one step replaced."""
    return partial(sample, **step)


def flat(logits: Tensor, noise: Tensor) -> Tensor:
    return sample(logits, noise)[:, 0]


def least(logits: Tensor, noise: Tensor) -> Tensor:
    return (logits.softmax(-1) / noise).argmin(-1, keepdim=True)


def probability(logits: Tensor, noise: Tensor) -> Tensor:
    return (logits.softmax(-1) / noise).amax(-1, keepdim=True)


def own_noise(logits: Tensor, noise: Tensor) -> Tensor:
    return sample(logits, torch.rand_like(noise))


def one_winner(logits: Tensor, noise: Tensor) -> Tensor:
    return sample(logits, noise)[:1].expand(len(logits), 1)


def maximum_of_all(logits: Tensor) -> Tensor:
    return (logits - logits.max()).exp()


def without_maximum(logits: Tensor) -> Tensor:
    return logits.exp() / logits.exp().sum(-1, keepdim=True)


def gumbel_of_noise(probs: Tensor, noise: Tensor) -> Tensor:
    return probs.log() - (-noise.log()).log().nan_to_num()


NOISE = "the largest probability / noise wins"
SAMPLE = Exercise(
    notebook="02",
    hints=(
        "In the race each token rings after noise / probability seconds, and the first to ring "
        "is the sample. Which token is that?",
        "Softmax along the last dimension, one division, `argmax`.",
        "return (logits.softmax(-1) / noise).argmax(-1, keepdim=True)",
    ),
    right=sample,
    cases=[
        Case(run_three, noise=[1.0, 0.2, 9.0]),
        Case(run_three, noise=[9.0, 9.0, 0.01]),
        Case(run_three, noise=[0.9, 1.0, 1.0]),
        Case(run_shares),
        Case(run_race, B=40, V=65, factor=1.0, rows=50),
        Case(run_race, B=40, V=65, factor=0.2, rows=50),
        Case(run_race, B=7, V=300, factor=4.0),
        Case(run_race, B=3, V=17, factor=1.0, level=900.0),
        Case(run_race, B=6, V=65, factor=12.0, level=-900.0),
        Case(run_race, B=2, V=3000, factor=0.3, rows=50),
    ],
    mistakes={
        f"the noise is not used: {NOISE}.": sample_by(race=lambda probs, noise: probs),
        f"the noise is multiplied: divide, {NOISE}.": sample_by(
            race=lambda probs, noise: probs * noise
        ),
        f"the noise is added to the logits: use probabilities, and {NOISE}.": (
            lambda logits, noise: (logits + noise).argmax(-1, keepdim=True)
        ),
        f"the noise is added: divide, {NOISE}.": sample_by(race=lambda probs, noise: probs + noise),
        f"the noise is subtracted: divide, {NOISE}.": sample_by(
            race=lambda probs, noise: probs - noise
        ),
        "the softmax is missing: logits are not probabilities.": sample_by(share=lambda x: x),
        "a sigmoid does not turn logits into probabilities: use a softmax.": sample_by(
            share=torch.sigmoid
        ),
        "the softmax runs over the rows: its dimension is the last, -1.": sample_by(
            share=lambda x: x.softmax(0)
        ),
        "the softmax is applied twice.": sample_by(share=lambda x: x.softmax(-1).softmax(-1)),
        f"argmin picks the loser of the race: use argmax, because {NOISE}.": least,
        "argmax drops the last dimension: tokens are (B, 1), so use keepdim=True.": flat,
        "the probability itself is returned: a token is its integer index, from argmax.": (
            probability
        ),
        "the same noise gives different tokens: your code draws its own random numbers. Use the "
        "noise passed in.": own_noise,
        "all rows use the first row's noise: each has its own.": sample_by(
            race=lambda probs, noise: probs / noise[:1]
        ),
        "all rows get the first row's token: each has its own.": one_winner,
        "exp() of a large logit overflows, and of a low one is 0: softmax subtracts each row's "
        "own maximum first, because only differences count.": sample_by(share=without_maximum),
        "the maximum of all rows is subtracted: subtract each row's own, or use softmax, which "
        "does.": sample_by(share=maximum_of_all),
        "the noise is squared: use the noise as it is.": sample_by(
            race=lambda probs, noise: probs / noise**2
        ),
        "the noise's logarithm is taken again: it is already exponential, so use the noise as "
        "it is.": sample_by(race=gumbel_of_noise),
        "the noise is normalised: use the noise as it is.": sample_by(
            race=lambda probs, noise: probs / F.normalize(noise, 1, 0)
        ),
        "the last candidate is left out and never sampled: all of them race.": sample_by(
            race=lambda probs, noise: (probs / noise)[:, :-1]
        ),
    },
    advice={
        "the shape of": "Each row needs one token: (B, 1).",
        "the dtype of": "A token is an integer, the index returned by argmax.",
        "the token of": f"Use the noise as it is: {NOISE}.",
        "is never sampled": "All race.",
        "the shares": "Is it a softmax, and the noise used as it is?",
        "the tokens": (
            "All candidates race, each row with its own unmodified noise, at temperature 1. Only "
            "differences of logits count."
        ),
    },
    axes=[("row", "token")],
)
