"""What a user may do with a cache: fill it, see what does not fit refused, count its bytes."""

import hypothesis.strategies as st
import pytest
import torch
from conftest import CACHES, name, seeded, tiny_model, tokens
from decoding_fixtures import build
from hypothesis import given
from shapes import ROPE

from nanogpt.cache import DynamicCache, StaticCache, enable_kv_cache, kv_cache, measured_bytes
from nanogpt.caches.int8 import Int8Cache, decoded, encoded
from nanogpt.caches.paged import PagedCache
from nanogpt.caches.rolling import RollingCache
from nanogpt.decoder.layers import visible

ROOM = 16
ALL = [DynamicCache, StaticCache, RollingCache, PagedCache, Int8Cache]


def new_tokens(pos, lead=(2, 2), hs=4, dtype=torch.float32, device="cpu"):
    k = torch.randn(*lead, len(pos), hs, generator=seeded(1), dtype=dtype)
    return k.to(device), (-k).to(device), torch.tensor(pos, device=device)


def known(cache) -> dict:
    """All that a cache knows, as plain values."""
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in vars(cache).items()}


def random(*shape):
    return torch.randn(*shape, generator=seeded(1))


KEYS, VALUES, _ = new_tokens([4])
WRONG = {
    "batch": (new_tokens([4], (3, 2)), "must match"),
    "number of heads": (new_tokens([4], (2, 3)), "must match"),
    "head size": (new_tokens([4], hs=5), "must match"),
    "dtype": (new_tokens([4], dtype=torch.float64), "must match.* before changing the dtype"),
    "device": (new_tokens([4], device="meta"), "must match"),
    "length of values": ((KEYS, VALUES[..., :0, :], torch.tensor([4])), "must be"),
    "dtype of values": ((KEYS, VALUES.double(), torch.tensor([4])), "must match"),
    "shape of positions": ((KEYS, VALUES, torch.tensor([[4]])), "must be"),
    "dtype of positions": ((KEYS, VALUES, torch.tensor([4.0])), "integers"),
    "an old position": (new_tokens([3]), "position 3 must come after position 3, which is cached"),
    "a chunk that overlaps": (new_tokens([2, 4]), "must come after position 3"),
    "a position twice": (new_tokens([5, 5]), "do not ascend"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("cache", ALL)
def test_tokens_that_do_not_fit_are_refused_and_change_nothing(cache, what):
    cache = cache(ROOM)
    (wrong, message) = WRONG[what]
    cache.update(*new_tokens([0, 1, 2]))
    cache.update(*new_tokens([3]))  # a step: the next like it is checked in two comparisons
    before = str(known(cache))
    with pytest.raises(ValueError, match=message):
        cache.update(*wrong)
    assert str(known(cache)) == before
    cache.update(*new_tokens([4]))


@pytest.mark.parametrize("cache", CACHES, ids=name)
def test_a_cache_keeps_its_own_copy(cache):
    cache = cache(ROOM)
    more = new_tokens([3])
    cache.update(*new_tokens(range(3)))
    cache.update(*more)
    before = cache.k.clone()
    more[0].zero_()
    assert torch.equal(cache.k, before)


@pytest.mark.parametrize("cache", ALL)
def test_positions_may_be_of_either_integer_type(cache):
    cache, same = cache(ROOM), cache(ROOM)
    for i, places in enumerate((range(3), [3], [4, 5])):
        k, v, pos = new_tokens(places)
        expected = same.update(k, v, pos)
        found = cache.update(k, v, pos.int() if i % 2 else pos)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, None])
def test_a_capacity_is_a_positive_integer(capacity):
    for cache in (StaticCache, DynamicCache) if capacity is not None else (StaticCache,):
        with pytest.raises(ValueError, match=f"capacity={capacity}"):
            cache(capacity)
    model = tiny_model()
    if capacity is not None:  # there it is the model's block
        with pytest.raises(ValueError, match=f"capacity={capacity}"):
            enable_kv_cache(model, StaticCache, capacity)
    assert {cache.capacity for cache in enable_kv_cache(model, StaticCache, 1)} == {1}


@pytest.mark.parametrize("cache", [DynamicCache, StaticCache, RollingCache, Int8Cache])
def test_caches_work_where_numbers_cannot_be_looked_at(cache):
    """On a GPU looking at a position would stop the queue; the meta device has no numbers."""
    cache = cache(ROOM)
    for start, T in ((0, 3), (3, 1), (4, 2)):
        k, _, pos = cache.update(*new_tokens(range(start, start + T), device="meta"))
        assert len(pos) == k.shape[-2] >= start + T
    assert cache.last == 5
    if isinstance(cache, StaticCache):
        with pytest.raises(ValueError, match="does not fit"):
            cache.update(*new_tokens(range(6, 17), device="meta"))


# ------------------------------------------------------------------ a ring


@given(
    chunks=st.lists(st.sampled_from([1, 1, 1, 2, 3, 5, 9]), max_size=9),
    window=st.integers(1, 5),
    sinks=st.integers(0, 3),
)
def test_a_query_sees_what_it_would_see_of_the_whole_text(chunks, window, sinks):
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
def test_a_ring_needs_its_window(bad):
    with pytest.raises(ValueError, match=list(bad)[-1]):
        RollingCache(**bad)


# ------------------------------------------------------------------ pages of 4 tokens


class Pages(PagedCache):
    page = 4


@pytest.mark.parametrize("length", [8, 10])
def test_a_common_beginning_is_held_once_and_copied_where_texts_part(length):
    """Two full pages, or half of a third one beside them."""
    cache = Pages()
    k = random(1, 2, length, 8)
    cache.update(k, -k, torch.arange(length))
    one = cache.nbytes
    cache.fork(5)
    assert cache.nbytes == one
    assert cache.tensors()[0].shape[0] == 5
    new = random(5, 2, 1, 8)
    cache.update(new, -new, torch.tensor([length]))
    assert cache.users.tolist() == [5, 5, 1, 1, 1, 1, 1], "the full pages are shared, no other"
    assert cache.nbytes == one // -(-length // 4) * (2 + 5)
    for found, text in zip(cache.tensors()[0], new, strict=True):
        assert torch.equal(found, torch.cat([k[0], text], dim=-2))


def test_a_fork_of_many_texts_is_refused():
    cache = Pages()
    with pytest.raises(ValueError, match="a cache of one text, but this one has 0"):
        cache.fork(2)
    cache.update(random(1, 5, 8), random(1, 5, 8), torch.arange(5))
    with pytest.raises(ValueError, match="fork: n=0"):
        cache.fork(0)
    cache.fork(2)
    with pytest.raises(ValueError, match="this one has 2"):
        cache.fork(2)
    cache.reset()
    assert cache.nbytes == 0
    cache.update(random(3, 1, 8), random(3, 1, 8), torch.tensor([0]))


def test_a_step_within_a_page_copies_no_pool():
    k = random(2, 1, 5)
    cache = Pages()
    cache.update(k, k, torch.tensor([0]))
    pool = cache.k.data_ptr()
    cache.update(k, k, torch.tensor([1]))
    assert cache.k.data_ptr() == pool


# ------------------------------------------------------------------ 8-bit codes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_no_number_is_off_by_more_than_half_a_step(dtype, size):
    x = (random(2, 3, 50, 16) * size).to(dtype)
    back = decoded(encoded(x), torch.float64)
    step = x.double().abs().amax(-1, keepdim=True) / 127
    assert ((back - x.double()).abs() <= 0.51 * step + 1e-7 * 127).all()
    assert not decoded(encoded(0 * x), dtype).any()


@torch.no_grad()
def test_a_model_s_logits_move_a_little():
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
