"""Requests that arrive whether or not a server is ready: a Poisson process sampled with a seed.

All of it is data, sampled in advance, so that every system gets the same requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf

import torch
from torch import Tensor

from ..config import check_positive
from ..pretrained.tokenizer import PretrainedTokenizer
from ..sampling import SamplingParams
from ..serving.sequence import Request

Prompt = Callable[[random.Random, int], list[int]]  # samples a prompt of n tokens


def random_tokens(vocab_size: int) -> Prompt:
    """Prompts of independently sampled tokens."""

    def prompt(draw: random.Random, n: int) -> list[int]:
        return [draw.randrange(vocab_size) for _ in range(n)]

    return prompt


def pieces_of_text(tokenizer: PretrainedTokenizer, text: str) -> Prompt:
    """Prompts cut from a text: each starts at a random word and is tokenized like a new text."""

    def prompt(draw: random.Random, n: int) -> list[int]:
        start = draw.randrange(len(text))
        start = text.find(" ", start, len(text) - 1) + 1 or start  # the next word, if any
        return first_tokens(tokenizer, text[start : start + 8 * n], n).tolist()

    return prompt


def first_tokens(tokenizer: PretrainedTokenizer, text: str, n: int) -> Tensor:
    """The first n tokens of a text, which is repeated if it has fewer.  -> (n,)"""
    tokens = tokenizer.encode(text)
    while len(tokens) < n:
        text += text
        tokens = tokenizer.encode(text)
    return tokens[:n]


def poisson(
    n: int,
    rate: float,
    vocab_size: int,
    block_size: int,
    greedy: bool = False,
    prompt: Prompt | None = None,
) -> list[Request]:
    """n requests at `rate` per second (inf: all at once). Only the arrivals depend on the rate.

    A prompt is 1/16 to 1/2 of `block_size` long, uniformly; half of them share a prefix of 1/4. The
    number of new tokens is exponential with a mean of 1/6 and a maximum of 1/2, so that some are
    far above the mean. Prompts are sampled by `prompt`; None: uniformly from the vocabulary. Raises
    ValueError if the rate is not positive.
    """
    prompt = prompt or random_tokens(vocab_size)
    if rate != inf:
        check_positive("rates", rate)
    draw = random.Random(1)
    gaps = random.Random(2)
    arrival = 0.0
    out = []
    common = prompt(draw, block_size // 4)
    for i in range(n):
        length = draw.randint(max(1, block_size // 16), max(1, block_size // 2))
        tokens = prompt(draw, length)
        if draw.random() < 0.5:
            tokens[: len(common)] = common[:length]
        n_new = min(1 + int(draw.expovariate(6 / block_size)), max(1, block_size // 2))
        arrival += gaps.expovariate(1.0) / rate
        sampling = SamplingParams(greedy=greedy)
        out.append(Request(torch.tensor(tokens), n_new, sampling, seed=i, arrival=arrival, id=i))
    return out
