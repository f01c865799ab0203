"""Models and texts for the tests of decoding."""

import functools

import torch
from conftest import seeded
from shapes import SMALL, model_of

from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import Decoder

V = 13
BLOCK = 32


@functools.cache
def build(dtype=torch.float64, seed=3, *, per_head=False, **changes):
    """A small model whose weights are 25 times larger than usual: far from a flat distribution."""
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": V, "block_size": BLOCK}
    model = model_of(seeded(seed), packed=not per_head, **(shape | changes)).eval()
    for weight in model.parameters():
        weight.data *= 25 if weight.ndim == 2 else 1
    return model.to(dtype)


@functools.cache
def decoder(dtype=torch.float64, **fields) -> Decoder:
    """A small Decoder in eval mode; its biases and norms are random numbers too."""
    model = Decoder(DecoderConfig(**SMALL | fields), generator=seeded(3)).double().eval()
    generator = seeded(4)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return model.to(dtype)


def text(length, batch=1, seed=7):
    return torch.randint(V, (batch, length), generator=seeded(seed))
