"""The ring buffer: what a query sees of it, and how many slots it reserves."""

import hypothesis.strategies as st
import pytest
import torch
from conftest import tokens
from decoding_fixtures import build
from hypothesis import given
from model_fixtures import all_logits
from shapes import ROPE

from nanogpt.cache import StaticCache, cache_owners, kv_cache, measured_bytes
from nanogpt.caches.rolling import RollingCache
from nanogpt.decoder.layers import visible


@given(
    chunks=st.lists(st.sampled_from([1, 1, 1, 2, 3, 5, 9]), max_size=9),
    window=st.integers(1, 5),
    sinks=st.integers(0, 3),
)
def test_a_query_sees_the_keys_it_would_see_in_the_whole_text(chunks, window, sinks):
    ring = RollingCache(window, sinks)
    start = 0
    for T in chunks:
        pos = torch.arange(start, start + T)
        k, v, k_pos = ring.update(pos[None, :, None].float(), -pos[None, :, None].float(), pos)
        start += T
        every = torch.arange(start)
        sees = visible(pos, k_pos, window, sinks)
        for query, row in zip(pos, sees, strict=True):
            expected = every[visible(query[None], every, window, sinks)[0]]
            assert sorted(k_pos[row].tolist()) == expected.tolist()
        held = k_pos >= 0
        assert torch.equal(k[0, held, 0], k_pos[held].float())
        assert torch.equal(v, -k)
        kept = {*range(min(sinks, start)), *range(max(0, start - window), start)}
        if start >= sinks + window:
            assert sorted(ring.pos.tolist()) == sorted(kept)
        assert ring.nbytes == 2 * (window + sinks) * 4


@pytest.mark.parametrize("bad", [{"window": 0}, {"window": None}, {"window": 4, "sinks": -1}])
def test_window_and_sinks_are_checked(bad):
    with pytest.raises(ValueError, match=list(bad)[-1]):
        RollingCache(**bad)


@torch.no_grad()
def test_many_sinks_reserve_only_what_the_text_needs():
    """Witness: a billion sinks and a text of 20 tokens reserved 137 GB."""
    model = build(window=4, sinks=10**9, **ROPE)
    idx = tokens(1, 20)
    expected = all_logits(model, idx)
    found = all_logits(model, idx, RollingCache, 3, capacity=20)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    with kv_cache(model, RollingCache, capacity=20):
        model(idx, pos=torch.arange(20))
        assert measured_bytes(model) == model.cache_bytes(20)
        assert {type(owner.cache) for owner in cache_owners(model)} == {StaticCache}
