"""Decoders with caches, texts without an end, and first weights.

That the cached tokens of every decoder are the uncached ones is tests/test_every_decoder.py.
"""

import pytest
import torch
from conftest import name, seeded, tokens
from decoding_fixtures import build, decoder
from model_fixtures import all_logits
from shapes import COMBINED, DECODERS, ROPE, SMALL, label

from nanogpt.cache import DynamicCache, StaticCache, cache_owners, kv_cache, measured_bytes
from nanogpt.caches.paged import PagedCache
from nanogpt.caches.rolling import RollingCache
from nanogpt.decoder.config import DecoderConfig, beyond_lecture
from nanogpt.decoder.model import Decoder
from nanogpt.decoder.pack import flatten, unpack_heads
from nanogpt.decoder.step import buffers, read
from nanogpt.engines.exact import exact
from nanogpt.engines.generation import complete
from nanogpt.training.recipes import MODERN

BLOCK = 32
WINDOW = 6
WINDOWS = {"window": WINDOW, "full_every": 2, **ROPE, "n_kv_head": 1}


def close(got, expected, atol=1e-10):
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


# ------------------------------------------------------------------ caches


# What a cache sees of a decoder: its window and sinks, and how many heads share keys.
SEEN_BY_CACHES = ["plain", "n_kv_head=1", "window=5", "sinks=2 window=5", "full_every=2 window=5"]


@torch.no_grad()
@pytest.mark.parametrize("row", [*SEEN_BY_CACHES, *COMBINED])
def test_rings_and_pages_give_the_logits_of_the_text_in_one(row):
    """Chunks of one, of several, and around the length of a window."""
    model = decoder(**DECODERS[row])
    idx = tokens(2, BLOCK)
    whole = model(idx)[0]
    n = model.config.window or 4
    for cache in (RollingCache, PagedCache):
        for chunks in ([5, 1, 26], 1, n, n + 1, BLOCK):
            close(all_logits(model, idx, cache, chunks), whole)


# Together they have every operation; 16 bits are summed in another way, 64 in other registers.
# The tokens in exact mode, for each field alone: tests/test_every_decoder.py.
ROUNDED = [(row, torch.float32) for row in ("plain", *COMBINED)]
ROUNDED += [("all at once", dtype) for dtype in (torch.bfloat16, torch.float64)]


@pytest.mark.slow
@pytest.mark.parametrize(("row", "dtype"), ROUNDED, ids=lambda x: x if x in DECODERS else name(x))
def test_in_exact_mode_every_path_gives_the_same_bits(row, dtype):
    idx = tokens(2, BLOCK)
    models = [decoder(dtype, **DECODERS[row])]
    models += [unpack_heads(model) for model in models if not beyond_lecture(model.config)]
    with exact(models[0]), torch.no_grad():
        expected = models[0](idx)[0]
        for model in models:
            assert torch.equal(model(idx[:, :5])[0], expected[:, :5])
            for cache, chunks in ((DynamicCache, [5, 1, 26]), (StaticCache, 1), (PagedCache, 7)):
                assert torch.equal(all_logits(model, idx, cache, chunks), expected)
                assert torch.equal(all_logits(model, idx[1:2], cache, chunks), expected[1:2])
        weights = flatten(models[0])
        held = buffers(models[0].config, 2, BLOCK, dtype=dtype)
        parts = [(start, idx[:, start:end]) for start, end in ((0, 5), (5, 6), (6, BLOCK))]
        found = [read(weights, held, part, start, models[0].config) for start, part in parts]
        assert torch.equal(torch.cat(found, dim=1), expected)


def test_a_text_has_no_end_and_the_ring_does_not_grow():
    model = build(**ROPE, window=WINDOW, sinks=1, n_kv_head=2)
    long = complete(model, tokens(1, 3), 200, cache=RollingCache, generator=seeded(1))
    plain = complete(model, tokens(1, 3), 200, cache=None, generator=seeded(1))
    assert torch.equal(long, plain)
    with kv_cache(model, RollingCache, capacity=10_000):
        sizes = set()
        for places in torch.arange(60).split(7):
            model(tokens(1, 60)[:, places], pos=places)
            sizes.add(measured_bytes(model))
    # K and V, layers, heads of keys, rows, size, bytes
    assert sizes == {2 * 2 * 2 * (WINDOW + 1) * 8 * 8}


def test_only_layers_with_a_window_get_a_ring_and_the_others_say_when_they_are_full():
    model = build(window=WINDOW, full_every=2, **ROPE)
    idx = tokens(1, 40)
    for design, sizes in ((RollingCache, [WINDOW, BLOCK]), (StaticCache, [BLOCK, BLOCK])):
        with kv_cache(model, design):
            assert [owner.cache.capacity for owner in cache_owners(model)] == sizes
    with torch.no_grad(), pytest.raises(ValueError, match=r"StaticCache\(32\) holds positions"):
        all_logits(model, idx, RollingCache, 5)
    close(all_logits(model, idx, RollingCache, 5, capacity=40), all_logits(model, idx))


# ------------------------------------------------------------------ positions


@pytest.mark.parametrize("fields", [{}, {"window": WINDOW}, MODERN, WINDOWS], ids=label)
def test_without_a_position_table_a_text_reads_the_same_anywhere(fields):
    idx = tokens(2, 8)
    for positions, shift in (("rotary", 3), ("rotary", 5000), ("learned", 3)):
        model = build(**fields | {"positions": positions})
        here, there = (model(idx, pos=torch.arange(8) + by)[0] for by in (0, shift))
        alike = positions == "rotary"
        assert torch.allclose(here, there, rtol=0, atol=1e-9) is alike


# ------------------------------------------------------------------ first weights


def test_a_decoder_s_weights_are_drawn_head_by_head_as_in_the_lecture():
    """One after another, in this order, from one generator; heads that share keys draw them once"""
    shape = {"vocab_size": 13, "block_size": 8, "n_layer": 2, "n_embd": 8}
    for n_kv_head in (1, 2, 4):
        config = DecoderConfig(**shape, n_head=4, n_kv_head=n_kv_head)
        state = Decoder(config, generator=seeded(7)).state_dict()
        generator = seeded(7)

        def drawn(*size, generator=generator):
            return torch.empty(size).normal_(std=0.02, generator=generator)

        tables = ["token_embedding_table.weight", "position_embedding_table.weight"]
        assert all(torch.equal(state[table], drawn(*state[table].shape)) for table in tables)
        for layer in range(2):
            queries, keys, values = [], [], []
            for h in range(4):
                if h % (4 // n_kv_head) == 0:
                    keys.append(drawn(2, 8))
                queries.append(drawn(2, 8))
                if h % (4 // n_kv_head) == 0:
                    values.append(drawn(2, 8))
            block = f"blocks.{layer}"
            qkv = torch.cat([*queries, *keys, *values])
            assert torch.equal(state[f"{block}.sa.qkv.weight"], qkv)
            for part in ("sa.proj", "ffwd.up", "ffwd.down"):
                weight = state[f"{block}.{part}.weight"]
                assert torch.equal(weight, drawn(*weight.shape)), part
        assert torch.equal(state["lm_head.weight"], drawn(13, 8))
        assert not any(t.any() for key, t in state.items() if "bias" in key)


def test_building_a_decoder_draws_from_its_own_seed(ambient_rng):
    config = DecoderConfig(**SMALL | DECODERS["all at once"])
    models = [Decoder(config, generator=seed and seeded(seed)) for seed in (None, None, 1337, 1)]
    first, *rest = [torch.cat([p.flatten() for p in m.parameters()]) for m in models]
    assert [torch.equal(first, other) for other in rest] == [True, True, False]
