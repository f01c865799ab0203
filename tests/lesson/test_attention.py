"""visible and attend against plain loops."""

import math

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded
from hypothesis import given

from nanogpt.attention import attend, visible

positions = st.lists(st.integers(-1, 12), min_size=1, max_size=8)


def slow_attend(q, k, v, mask):
    """Softmax over the visible keys, one query at a time."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for t in range(q.shape[-2]):
        keys = [s for s in range(k.shape[-2]) if mask[t][s]]
        scores = torch.stack(
            [(q[..., t, :] * k[..., s, :]).sum(-1) / math.sqrt(q.shape[-1]) for s in keys]
        )
        weights = scores.exp() / scores.exp().sum(0)
        out[..., t, :] = sum(
            w[..., None] * v[..., s, :] for w, s in zip(weights, keys, strict=True)
        )
    return out


@given(q=positions, k=positions)
def test_visible_compares_every_pair_of_positions(q, k):
    """A key is visible if its slot is filled and it is not later than the query."""
    expected = [[0 <= key <= query for key in k] for query in q]
    assert visible(torch.tensor(q), torch.tensor(k)).tolist() == expected


def test_visible_with_positions_of_each_text_in_a_batch():
    q = torch.tensor([[3, 4], [0, 1]])
    k = torch.tensor([[2, 3, 4, -1], [0, 1, -1, -1]])
    alone = [visible(q[i], k[i]) for i in range(2)]
    assert torch.equal(visible(q, k), torch.stack(alone))
    assert visible(q[:, None], k[:, None]).shape == (2, 1, 2, 4)


@given(
    layout=st.sampled_from([(), (2,), (2, 3)]),
    T=st.integers(1, 5),
    S=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
def test_attend_equals_a_loop_over_queries(layout, T, S, seed):
    generator = seeded(seed)
    q, k, v = (
        torch.randn(*layout, rows, 4, generator=generator, dtype=torch.float64)
        for rows in (T, S, S)
    )
    k_pos = torch.randperm(S, generator=generator)  # keys may stand in any order
    q_pos = k_pos[
        torch.randint(S, (T,), generator=generator)
    ]  # a query sees its own place at least
    mask = visible(q_pos, k_pos)
    torch.testing.assert_close(
        attend(q, k, v, mask), slow_attend(q, k, v, mask), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("layout", [(2,), (2, 3)], ids=["heads", "batched"])
@pytest.mark.parametrize("T", [1, 2, 7])
@pytest.mark.parametrize("start", [0, 5])
def test_attend_without_a_mask_is_causal(layout, T, start):
    q, k, v = torch.randn(3, *layout, T, 4, generator=seeded(), dtype=torch.float64)
    pos = torch.arange(start, start + T)
    slow = attend(q, k, v, visible(pos, pos))
    torch.testing.assert_close(attend(q, k, v, None), slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_dropout_zeroes_attention_weights_only_if_given(fused):
    q, k, v = torch.randn(3, 64, 8, 4, generator=seeded())
    mask = None if fused else visible(torch.arange(8), torch.arange(8))
    torch.manual_seed(0)
    assert torch.equal(attend(q, k, v, mask), attend(q, k, v, mask)), (
        "no dropout, yet not deterministic"
    )
    dropped = attend(q, k, v, mask, 0.5)
    assert not torch.equal(attend(q, k, v, mask), dropped)
    # A first query sees one key, at weight 1: dropout leaves either nothing or twice the value.
    nothing = (dropped[:, 0] == 0).all(-1)
    twice = torch.isclose(dropped[:, 0], 2 * v[:, 0]).all(-1)
    assert (nothing | twice).all()
    assert nothing.any()
    assert twice.any()
