"""What a user may do with a cache: fill it, see what does not fit refused, count its bytes."""

import pytest
import torch
from conftest import CACHES, name, seeded

from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.int8 import Int8Cache
from nanogpt.cache.paged import PagedCache
from nanogpt.cache.rolling import RollingCache
from nanogpt.cache.static import StaticCache

ROOM = 16
ALL = [DynamicCache, StaticCache, RollingCache, PagedCache, Int8Cache]


def new_tokens(pos, lead=(2, 2), hs=4, dtype=torch.float32, device="cpu"):
    k = torch.randn(*lead, len(pos), hs, generator=seeded(1), dtype=dtype)
    return k.to(device), (-k).to(device), torch.tensor(pos, device=device)


def known(cache) -> dict:
    """All that a cache knows, in copies."""
    return {key: v.clone() if isinstance(v, torch.Tensor) else v for key, v in vars(cache).items()}


def assert_unchanged(cache, before: dict):
    now = vars(cache)
    assert now.keys() == before.keys()
    for key, value in now.items():
        same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a is b or a == b
        assert same(value, before[key]), key


KEYS, VALUES, _ = new_tokens([4])
WRONG = {
    "batch": (new_tokens([4], (3, 2)), "must be alike"),
    "number of heads": (new_tokens([4], (2, 3)), "must be alike"),
    "layout": (new_tokens([4], (2,)), "must be alike"),
    "head size": (new_tokens([4], hs=5), "must be alike"),
    "dtype": (new_tokens([4], dtype=torch.float64), "must be alike.* after casting"),
    "device": (new_tokens([4], device="meta"), "must be alike"),
    "dtype of values": ((KEYS, VALUES.double(), torch.tensor([4])), "must be alike"),
    "shape of values": ((KEYS, VALUES[..., :3], torch.tensor([4])), "must be"),
    "number of positions": ((KEYS, VALUES, torch.tensor([4, 5])), r"must be \(…, T, hs\)"),
    "shape of positions": ((KEYS, VALUES, torch.tensor([[4]])), "must be"),
    "dtype of positions": ((KEYS, VALUES, torch.tensor([4.0])), "integers"),
    "one dimension": ((torch.ones(4), torch.ones(4), torch.tensor(4)), "must be"),
    "an old position": (new_tokens([3]), "position 3 must come after position 3, which is cached"),
    "a chunk that overlaps": (new_tokens([2, 4]), "cached already"),
    "a chunk that descends": (new_tokens([6, 5]), "do not ascend"),
    "a position twice": (new_tokens([5, 5]), "do not ascend"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("cache", ALL)
def test_tokens_that_do_not_fit_are_refused_and_change_nothing(cache, what):
    cache, (wrong, message) = cache(ROOM), WRONG[what]
    cache.update(*new_tokens([0, 1, 2]))
    cache.update(*new_tokens([3]))  # a step: the next like it is checked in two comparisons
    before = known(cache)
    with pytest.raises(ValueError, match=message):
        cache.update(*wrong)
    assert_unchanged(cache, before)
    cache.update(*new_tokens([4]))


@pytest.mark.parametrize("cache", CACHES, ids=name)
def test_a_cache_keeps_its_own_copy(cache):
    cache, more = cache(ROOM), new_tokens([3])
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


def test_a_static_cache_that_is_too_small_says_how_much_it_needs():
    cache = StaticCache(ROOM)
    with pytest.raises(ValueError, match="position 16 does not fit.*least 17"):
        cache.update(*new_tokens([0, 16]))
    cache.update(*new_tokens(range(ROOM)))  # exactly full


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, None])
def test_a_capacity_is_a_positive_integer(capacity):
    with pytest.raises(ValueError, match=f"capacity={capacity}"):
        StaticCache(capacity)
    if capacity is not None:
        with pytest.raises(ValueError, match=f"capacity={capacity}"):
            DynamicCache(capacity)


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
