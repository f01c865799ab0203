"""A cache of 8-bit codes: its size, its error, and that it is never asserted to be exact."""

import pytest
import torch
from conftest import seeded, tiny_model, tokens

from nanogpt.cache.tinytorch import LayerCaches
from nanogpt.cache.attach import cache_owners, kv_cache, measured_bytes
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.int8 import Codes, Int8Cache
from nanogpt.config import GPTConfig
from nanogpt.model.gpt import GPT


def rows(*shape):
    return torch.randn(*shape, generator=seeded(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_no_number_is_off_by_more_than_half_a_step(dtype, size):
    x = (rows(2, 3, 50, 16) * size).to(dtype)
    back = Codes.of(x).rows(torch.float64)
    step = x.double().abs().amax(-1, keepdim=True) / 127
    assert ((back - x.double()).abs() <= 0.51 * step + 1e-7 * 127).all()


def test_rows_of_zeros_stay_zeros():
    assert not Codes.of(torch.zeros(2, 3, 4)).rows(torch.float32).any()


def test_it_takes_about_a_quarter():
    cache, plain = Int8Cache(), DynamicCache()
    for start in range(0, 30, 10):
        new = rows(2, 4, 10, 64)
        for design in (cache, plain):
            design.update(new, new, torch.arange(start, start + 10))
    assert cache.nbytes == 2 * 2 * 4 * 30 * (64 + 2)
    assert plain.nbytes / cache.nbytes > 3.8


def test_pieces_are_kept_as_the_whole_is():
    k, v, pos = rows(2, 20, 8), rows(2, 20, 8) + 1, torch.arange(20)
    whole = Int8Cache().update(k, v, pos)
    cache = Int8Cache()
    for part in pos.split(7):
        pieces = cache.update(k[:, part], v[:, part], part)
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


def test_positions_of_another_text_and_of_another_batch_are_refused():
    cache = Int8Cache()
    cache.update(rows(2, 3, 4), rows(2, 3, 4), torch.arange(3))
    with pytest.raises(ValueError, match="cached already"):
        cache.update(rows(2, 1, 4), rows(2, 1, 4), torch.tensor([2]))
    with pytest.raises(
        ValueError, match=r"holds rows of shape \(2, rows, 4\), the new ones are \(3, rows, 4\)"
    ):
        cache.update(rows(3, 1, 4), rows(3, 1, 4), torch.tensor([3]))
    with pytest.raises(ValueError, match="holds torch.float32 .* torch.float64"):
        cache.update(rows(2, 1, 4).double(), rows(2, 1, 4).double(), torch.tensor([3]))
    cache.reset()
    cache.update(rows(3, 1, 4), rows(3, 1, 4), torch.tensor([0]))


@torch.no_grad()
@pytest.mark.parametrize("ngrams", [1, 3])
def test_a_model_s_logits_move_a_little_and_the_characters_of_its_tables_not_at_all(ngrams):
    config = {"rope": True, "ngrams": ngrams, "per_head": False}
    model = GPT(
        GPTConfig(vocab_size=13, block_size=32, n_layer=2, n_head=2, n_embd=32, **config)
    ).eval()
    idx = tokens(2, 20) % 13
    found = {}
    for design in (DynamicCache, Int8Cache):
        with kv_cache(model, design):
            parts = [model(idx[:, p], pos=p)[0] for p in torch.arange(20).split(3)]
            found[design] = torch.cat(parts, dim=1)
            bytes_of = measured_bytes(model)
            text = cache_owners(model)[0].cache if ngrams > 1 else None
            if text is not None:
                assert torch.equal(text.tensors()[0][..., 0], idx)
    difference = (found[Int8Cache] - found[DynamicCache]).abs().max()
    assert 0 < difference < 0.05 * found[DynamicCache].abs().max()
    assert bytes_of < model.cache_bytes(20, 2)


def test_the_interface_of_layers_reads_it_too():
    caches = LayerCaches(1, Int8Cache)
    caches.update(0, rows(2, 3, 4), rows(2, 3, 4))
    k, v = caches.get(0)
    assert k.shape == v.shape == (2, 3, 4)
    assert k.is_floating_point()


def test_it_works_head_by_head():
    model = tiny_model()
    with torch.no_grad(), kv_cache(model, Int8Cache):
        logits, _ = model(tokens(1, 5), pos=torch.arange(5))
    with torch.no_grad():
        assert (logits - model(tokens(1, 5))[0]).abs().max() < 1.0
