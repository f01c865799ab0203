"""A cache of 8-bit codes: its size, its error, and that it is never asserted to be exact."""

import pytest
import torch
from conftest import seeded, tokens

from nanogpt.cache.attach import cache_owners, kv_cache, measured_bytes
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.int8 import Codes, Int8Cache
from nanogpt.config import GPTConfig
from nanogpt.model.gpt import GPT


def random(*shape):
    return torch.randn(*shape, generator=seeded(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_no_number_is_off_by_more_than_half_a_step(dtype, size):
    x = (random(2, 3, 50, 16) * size).to(dtype)
    back = Codes.of(x).decoded(torch.float64)
    step = x.double().abs().amax(-1, keepdim=True) / 127
    assert ((back - x.double()).abs() <= 0.51 * step + 1e-7 * 127).all()


def test_zeros_stay_zeros():
    assert not Codes.of(torch.zeros(2, 3, 4)).decoded(torch.float32).any()


def test_it_takes_about_a_quarter():
    cache, plain = Int8Cache(), DynamicCache()
    for start in range(0, 30, 10):
        new = random(2, 4, 10, 64)
        for cache_kind in (cache, plain):
            cache_kind.update(new, new, torch.arange(start, start + 10))
    assert cache.nbytes == 2 * 2 * 4 * 30 * (64 + 2)
    assert plain.nbytes / cache.nbytes > 3.8


def test_pieces_are_kept_as_the_whole_is():
    k, v, pos = random(2, 20, 8), random(2, 20, 8) + 1, torch.arange(20)
    whole = Int8Cache().update(k, v, pos)
    cache = Int8Cache()
    for part in pos.split(7):
        pieces = cache.update(k[:, part], v[:, part], part)
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("ngrams", [1, 3])
def test_a_model_s_logits_move_a_little_and_the_characters_of_its_tables_not_at_all(ngrams):
    config = {"rope": True, "ngrams": ngrams, "per_head": False}
    model = GPT(
        GPTConfig(vocab_size=13, block_size=32, n_layer=2, n_head=2, n_embd=32, **config)
    ).eval()
    idx = tokens(2, 20) % 13
    found = {}
    for cache_kind in (DynamicCache, Int8Cache):
        with kv_cache(model, cache_kind):
            parts = [model(idx[:, p], pos=p)[0] for p in torch.arange(20).split(3)]
            found[cache_kind] = torch.cat(parts, dim=1)
            bytes_of = measured_bytes(model)
            text = cache_owners(model)[0].cache if ngrams > 1 else None
            if text is not None:
                assert torch.equal(text.tensors()[0][..., 0], idx)
    difference = (found[Int8Cache] - found[DynamicCache]).abs().max()
    assert 0 < difference < 0.05 * found[DynamicCache].abs().max()
    assert bytes_of < model.cache_bytes(20, 2)
