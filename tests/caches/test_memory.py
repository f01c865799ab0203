"""Sizes that are in range but cannot be allocated: one line with the bytes and the parameter."""

import pytest
import torch
from shapes import ROPE, model_of

from nanogpt import (
    Flat,
    PagedCache,
    RollingCache,
    StaticCache,
    draw_noise,
    generate,
    kv_cache,
)


def filled(cache):
    keys = torch.ones(1, 2, 4)
    cache.update(keys, keys, torch.arange(2))
    return cache


def rotary(block_size):
    sizes = {"vocab_size": 11, "n_layer": 1, "n_head": 1, "n_embd": 8}
    return model_of(torch.Generator(), block_size=block_size, **sizes, **ROPE).eval()


def read_with_cache(capacity):
    with kv_cache(rotary(16), StaticCache, capacity) as model:
        model(torch.tensor([[1]]), pos=torch.arange(1))


PROMPT = torch.tensor([[1, 2]])
# The beginning of the message, and the call.
IMPOSSIBLE = {
    "StaticCache with capacity=1099": lambda: filled(StaticCache(2**40)),
    "RollingCache with capacity=4611": lambda: filled(RollingCache(2**62)),
    "fork: n=4611686018427387904": lambda: filled(PagedCache()).fork(2**62),
    "StaticCache with capacity=4398": lambda: read_with_cache(2**42),
    "n_new=2147483647, batch=2147483647": lambda: draw_noise(2**31 - 1, 2**31 - 1, 9),
    "block_size=1099511627776": lambda: next(generate(rotary(2**40), PROMPT, 3, engine=Flat)),
    "batch=2199023255552, capacity=16": lambda: Flat(rotary(16).config, batch=2**41).buffers(),
}


@pytest.mark.parametrize("beginning", IMPOSSIBLE)
def test_a_size_that_cannot_be_allocated_is_refused_by_name(beginning):
    with pytest.raises(MemoryError, match=rf"^{beginning}.* take [\d,]+ bytes, more than could"):
        IMPOSSIBLE[beginning]()


def test_a_cache_is_unchanged_after_it_could_not_be_allocated():
    cache = filled(PagedCache())
    with pytest.raises(MemoryError):
        cache.fork(2**62)
    cache.fork(2)
    assert cache.users.tolist() == [2]
