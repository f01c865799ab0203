"""All layers behind one object: what each was given comes back, or an error says what to do."""

import pytest
import torch
from conftest import CACHES, seeded, tiny_model, tokens

from nanogpt.cache.attach import kv_cache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.int8 import Int8Cache
from nanogpt.cache.paged import PagedCache
from nanogpt.cache.rolling import RollingCache
from nanogpt.cache.static import StaticCache
from nanogpt.cache.tinytorch import LayerCaches
from nanogpt.config import GPTConfig

ROOM = 16


def new_tokens(T, lead=(1, 2), seed=0):
    k = torch.randn(*lead, T, 4, generator=seeded(seed))
    return k, -k


@pytest.mark.parametrize("cache", [*CACHES, PagedCache])
def test_each_layer_gives_back_what_it_was_given(cache):
    caches, given = LayerCaches(3, cache, ROOM), [[], [], []]
    for step, T in enumerate((4, 1, 1, 2)):
        for layer in range(3):
            k, v = new_tokens(T, seed=10 * step + layer)
            caches.update(layer, k, v)
            given[layer].append(k)
            keys, values = caches.get(layer)
            assert torch.equal(keys, torch.cat(given[layer], dim=-2))
            assert torch.equal(values, -keys)
        caches.advance(T)
    assert caches.length == 8


def test_what_a_model_caches_can_be_kept_here():
    model, caches = tiny_model(per_head=False), LayerCaches(2, StaticCache, 24)
    with torch.no_grad(), kv_cache(model, DynamicCache):
        model(tokens(1, 6), pos=torch.arange(6))
        for layer, block in enumerate(model.blocks):
            caches.update(layer, block.sa.cache.k, block.sa.cache.v)
            keys, values = caches.get(layer)
            assert torch.equal(keys, block.sa.cache.k)
            assert torch.equal(values, block.sa.cache.v)


@pytest.mark.parametrize(("cache", "length"), [(DynamicCache, 5), (StaticCache, ROOM)])
def test_its_bytes_are_those_counted_from_a_config(cache, length):
    caches = LayerCaches(2, cache, ROOM)
    assert caches.get_memory_usage()["total_bytes"] == 0
    for layer in range(2):
        caches.update(layer, *new_tokens(5, (3, 2)))
    usage, counted = caches.get_memory_usage(), GPTConfig(n_layer=2, n_head=2, n_embd=8)
    assert usage["total_bytes"] == counted.cache_bytes(length, batch=3)
    assert usage["total_mb"] == 2 * usage["per_layer_mb"] == usage["total_bytes"] / 1e6
    assert usage["cache_tensors"] == 4


def test_codes_are_given_back_as_numbers():
    caches = LayerCaches(1, Int8Cache)
    caches.update(0, *new_tokens(3))
    assert caches.get(0)[0].is_floating_point()


def test_what_was_missed_is_said():
    caches = LayerCaches(2, StaticCache, ROOM)
    with pytest.raises(ValueError, match="layer 0 holds nothing yet"):
        caches.get(0)
    caches.update(0, *new_tokens(2))
    with pytest.raises(ValueError, match=r"layers hold \[2, 0\], not 2: update each layer once"):
        caches.advance(2)
    with pytest.raises(ValueError, match="layer 0 holds 2 tokens already: call advance"):
        caches.update(0, *new_tokens(1))
    for layer in (2, -1, "a", 0.5):
        with pytest.raises(ValueError, match=f"layer={layer!r}: must be an integer"):
            caches.update(layer, *new_tokens(2))
    with pytest.raises(ValueError, match="advance: n='a'"):
        caches.advance("a")
    with pytest.raises(ValueError, match="n_layer=0"):
        LayerCaches(0)
    with pytest.raises(ValueError, match="capacity=None"):
        LayerCaches(2, StaticCache)
    with pytest.raises(ValueError, match="RollingCache forgets tokens"):
        LayerCaches(2, RollingCache, 8)


@pytest.mark.parametrize("cache", [DynamicCache, StaticCache, PagedCache, Int8Cache])
def test_layers_go_back_together_and_start_again_after_a_reset(cache):
    caches, (k, v) = LayerCaches(2, cache, 12), new_tokens(12)
    for layer in range(2):
        caches.update(layer, k[..., :9, :], v[..., :9, :])
    with pytest.raises(ValueError, match=r"rewind\(2\) at 0 .*layers hold \[9, 9\].*advance"):
        caches.rewind(2)
    caches.advance(9)
    for bad in (10, -1, 1.5):
        with pytest.raises(ValueError, match="rewind"):
            caches.rewind(bad)
    caches.rewind(4)
    assert caches.length == caches.get(1)[0].shape[-2] == 5
    for layer in range(2):
        caches.update(layer, k[..., 5:8, :], v[..., 5:8, :])
    caches.advance(3)
    expected = LayerCaches(1, cache, 12)
    expected.update(0, k[..., :8, :], v[..., :8, :])
    assert torch.equal(caches.get(1)[0], expected.get(0)[0])
    caches.reset()
    caches.update(0, *new_tokens(2, (2,)))  # of another batch and layout
    assert caches.get(0)[0].shape == (2, 2, 4)
