"""The 8-bit cache: its rounding, and odd head sizes."""

import pytest
import torch
from conftest import seeded, tokens
from decoding_fixtures import build
from shapes import ROPE

from nanogpt.cache import DynamicCache, kv_cache, measured_bytes
from nanogpt.caches.int8 import Int8Cache, decoded, encoded


def random(*shape):
    return torch.randn(*shape, generator=seeded(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_rounding_is_at_most_half_a_step(dtype, size):
    x = (random(2, 3, 50, 16) * size).to(dtype)
    back = decoded(encoded(x), torch.float64)
    step = x.double().abs().amax(-1, keepdim=True) / 127
    assert ((back - x.double()).abs() <= 0.51 * step + 1e-7 * 127).all()
    assert not decoded(encoded(0 * x), dtype).any()


@torch.no_grad()
def test_logits_of_a_model_change_a_little():
    model = build(torch.float32, **ROPE)
    idx = tokens(2, 20)
    found = {}
    for cache_kind in (DynamicCache, Int8Cache):
        with kv_cache(model, cache_kind):
            parts = [model(idx[:, p], pos=p)[0] for p in torch.arange(20).split(3)]
            found[cache_kind] = torch.cat(parts, dim=1)
            bytes_of = measured_bytes(model)
    difference = (found[Int8Cache] - found[DynamicCache]).abs().max()
    assert 0 < difference < 0.05 * found[DynamicCache].abs().max()
    assert bytes_of < model.cache_bytes(20, 2)


@pytest.mark.parametrize("head_size", [1, 5, 8])
@pytest.mark.parametrize("length", [1, 2])
def test_any_head_size_and_length(head_size, length):
    """Witness: an odd head and a one-token text ended in a RuntimeError about an odd address."""
    k = random(1, length, head_size)
    cache = Int8Cache()
    found, _, _ = cache.update(k, -k, torch.arange(length))
    assert (found - k).abs().max() <= k.abs().max() / 127
