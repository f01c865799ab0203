"""A ring: whatever the chunks, each query gets all that its window and sinks let it see."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from nanogpt.cache.rolling import RollingCache
from nanogpt.model.attention import visible


@given(
    chunks=st.lists(st.sampled_from([1, 1, 1, 2, 3, 5, 9]), max_size=9),
    window=st.integers(1, 5),
    sinks=st.integers(0, 3),
)
def test_a_query_sees_what_it_would_see_of_the_whole_text(chunks, window, sinks):
    ring, start = RollingCache(window, sinks), 0
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
def test_a_ring_needs_its_window(bad):
    with pytest.raises(ValueError, match=list(bad)[-1]):
        RollingCache(**bad)
