"""Caches: storing tokens, refusing invalid updates, capacity."""

import pytest
import torch
from conftest import CACHES, name, seeded, tiny_model

from nanogpt.cache import DynamicCache, StaticCache, enable_kv_cache
from nanogpt.caches.int8 import Int8Cache
from nanogpt.caches.paged import PagedCache
from nanogpt.caches.rolling import RollingCache

ROOM = 16
ALL = [DynamicCache, StaticCache, RollingCache, PagedCache, Int8Cache]


def new_tokens(pos, lead=(2, 2), hs=4, dtype=torch.float32, device="cpu"):
    k = torch.randn(*lead, len(pos), hs, generator=seeded(1), dtype=dtype)
    return k.to(device), (-k).to(device), torch.tensor(pos, device=device)


def known(cache) -> dict:
    """All attributes of a cache, as plain values."""
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in vars(cache).items()}


KEYS, VALUES, _ = new_tokens([4])
WRONG = {
    "batch": (new_tokens([4], (3, 2)), "must match"),
    "head size": (new_tokens([4], hs=5), "must match"),
    "dtype": (new_tokens([4], dtype=torch.float64), "must match.* before changing the dtype"),
    "device": (new_tokens([4], device="meta"), "must match"),
    "length of values": ((KEYS, VALUES[..., :0, :], torch.tensor([4])), "must be"),
    "dtype of positions": ((KEYS, VALUES, torch.tensor([4.0])), "integers"),
    "a chunk that overlaps": (new_tokens([2, 4]), "must come after position 3"),
    "a position twice": (new_tokens([5, 5]), "do not ascend"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("cache", CACHES, ids=name)  # KVCache checks for all of them
def test_an_invalid_update_is_refused_and_changes_nothing(cache, what):
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
def test_a_cache_copies_what_it_stores(cache):
    cache = cache(ROOM)
    more = new_tokens([3])
    cache.update(*new_tokens(range(3)))
    cache.update(*more)
    before = cache.k.clone()
    more[0].zero_()
    assert torch.equal(cache.k, before)


@pytest.mark.parametrize("cache", ALL)
def test_positions_are_int64_or_int32(cache):
    cache, same = cache(ROOM), cache(ROOM)
    for i, places in enumerate((range(3), [3], [4, 5])):
        k, v, pos = new_tokens(places)
        expected = same.update(k, v, pos)
        found = cache.update(k, v, pos.int() if i % 2 else pos)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("cache", ALL)
@pytest.mark.parametrize("emptied", [False, True], ids=["new", "rewound"])
def test_the_tensors_of_an_empty_cache_are_refused_in_one_line(cache, emptied):
    cache = cache(ROOM)
    if emptied:
        cache.update(*new_tokens(range(3)))
        assert all(len(tensor) for tensor in cache.tensors())
        cache.rewind(3)
    with pytest.raises(ValueError, match=rf"this {type(cache).__name__} is empty: store tokens"):
        cache.tensors()


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, None, 2**63])
def test_a_capacity_is_a_positive_integer_of_64_bits(capacity):
    for cache in (StaticCache, DynamicCache) if capacity is not None else (StaticCache,):
        with pytest.raises(ValueError, match=f"capacity={capacity}"):
            cache(capacity)
    model = tiny_model()
    if capacity is not None:  # there it is the model's block
        with pytest.raises(ValueError, match=f"capacity={capacity}"):
            enable_kv_cache(model, StaticCache, capacity)
    assert {cache.capacity for cache in enable_kv_cache(model, StaticCache, 1)} == {1}


@pytest.mark.parametrize("cache", [DynamicCache, StaticCache, RollingCache, Int8Cache])
def test_caches_do_not_read_numbers_from_another_device(cache):
    """Reading a number synchronises with a GPU; the meta device has none to read."""
    cache = cache(ROOM)
    for start, T in ((0, 3), (3, 1), (4, 2)):
        k, _, pos = cache.update(*new_tokens(range(start, start + T), device="meta"))
        assert len(pos) == k.shape[-2] >= start + T
    assert cache.last == 5
    if isinstance(cache, StaticCache):
        with pytest.raises(ValueError, match="does not fit"):
            cache.update(*new_tokens(range(6, 17), device="meta"))
