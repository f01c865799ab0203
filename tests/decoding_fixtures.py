"""Models and texts for the tests of decoding."""

import functools

import torch
from conftest import seeded

from nanogpt.config import GPTConfig
from nanogpt.model import GPT

V = 13
BLOCK = 32


@functools.cache
def build(dtype=torch.float64, seed=3, **changes) -> GPT:
    """A small model whose weights are 25 times larger than usual: far from a flat distribution."""
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 32, "per_head": False, "vocab_size": V}
    config = GPTConfig(**(shape | {"block_size": BLOCK} | changes))
    model = GPT(config, generator=seeded(seed)).eval()
    for weight in model.parameters():
        weight.data *= 25 if weight.ndim == 2 else 1
    return model.to(dtype)


def text(length, batch=1, seed=7):
    return torch.randint(V, (batch, length), generator=seeded(seed))
