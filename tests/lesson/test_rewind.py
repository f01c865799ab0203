"""Rewinding: a cache equals one that never stored the tokens; no page is lost.

Random sequences of calls, for caches that keep all tokens, are in test_sequences.py.
"""

from functools import partial

import pytest
import torch
from conftest import seeded, tiny_model, tokens

from nanogpt.cache import DynamicCache, StaticCache
from nanogpt.caches.int8 import Int8Cache
from nanogpt.caches.paged import PagedCache
from nanogpt.caches.rolling import RollingCache
from nanogpt.generation import SlidingReader


class Pages(PagedCache):
    page = 4


TOTAL = 40
KINDS = {
    "dynamic": DynamicCache,
    "static": partial(StaticCache, TOTAL),
    "ring": partial(RollingCache, 5),
    "ring of 1": partial(RollingCache, 1),
    "ring and sinks": partial(RollingCache, 4, 3),
    "pages": Pages,
    "int8": Int8Cache,
}


def new_tokens(*shape, whole: bool = False, seed: int = 1):
    k = torch.randn(*shape, generator=seeded(seed))
    return (k, -2 * k) if not whole else ((100 * k).long(), (100 * k).long())


def plain(kind, k, v, length):
    """The cache after `length` tokens, one by one."""
    cache = kind()
    for place in range(length):
        cache.update(k[..., place, None, :], v[..., place, None, :], torch.tensor([place]))
    return cache


def assert_no_page_is_lost(cache):
    """Each page is counted once for each text whose table lists it."""
    named = torch.bincount(cache.table.flatten(), minlength=len(cache.users))
    assert torch.equal(named, cache.users)
    assert (cache.users > 0).all()


def assert_same(cache, expected):
    assert (cache.length, cache.last, cache.kind) == (expected.length, expected.last, expected.kind)
    assert cache.nbytes == expected.nbytes
    if expected.length == 0:
        assert cache.k is cache.v is cache.pos is None
        return
    assert torch.equal(cache.pos, expected.pos)
    for found, right in zip(cache.tensors(), expected.tensors(), strict=True):
        assert torch.equal(found, right)
    if isinstance(cache, PagedCache):
        assert_no_page_is_lost(cache)
        left = cache.table.shape[1] * cache.page - cache.length
        assert not left or not cache.k[cache.table[:, -1], -left:].any(), "a rejected one is held"


@pytest.mark.parametrize(("kind", "whole"), [*((kind, False) for kind in KINDS), ("int8", True)])
def test_a_rewound_cache_equals_one_that_never_stored_the_tokens(kind, whole):
    """Chunks of random sizes, each partly rewound, as in speculative decoding."""
    k, v = new_tokens(3, 2, TOTAL, 4, whole=whole)
    wrong = new_tokens(3, 2, TOTAL, 4, whole=whole, seed=9)
    sizes = seeded(5)
    both = list(zip((k, v), wrong, strict=True))
    for trial in range(2):
        cache = KINDS[kind]()
        start = 0
        while start < TOTAL:
            T = min(TOTAL - start, int(torch.randint(2, 9, (), generator=sizes)))
            most = T + (start == 0 or trial % 2) if T > 1 else 1
            n = int(torch.randint(most, (), generator=sizes))
            pos = torch.arange(start, start + T)
            right = torch.arange(T)[:, None] < T - n
            new = [torch.where(right, x[..., pos, :], y[..., pos, :]) for x, y in both]
            cache.update(*new, pos)
            cache.rewind(n)
            start += T - n
            assert_same(cache, plain(KINDS[kind], k, v, start))
        assert cache.length == TOTAL


@pytest.mark.parametrize("kind", KINDS)
def test_an_invalid_rewind_is_refused_and_changes_nothing(kind):
    (k, v) = new_tokens(2, 5, 3)
    cache = KINDS[kind]()
    untouched = KINDS[kind]()
    for one in (cache, untouched):
        one.update(k, v, torch.arange(5))
    for n in (-1, 6, 2.0, None):
        with pytest.raises(ValueError, match=f"of 5 tokens: rewind={n!r}: must be an integer"):
            cache.rewind(n)
        assert_same(cache, untouched)


def test_a_ring_rewinds_only_its_last_update_of_several_tokens():
    (k, v) = new_tokens(1, 20, 3)
    ring = RollingCache(4)
    start = 0
    for T, back, left in ((7, 0, 7), (3, 1, 2), (0, 2, 0), (1, 0, 0), (3, 0, 3), (1, 0, 0)):
        if T:
            pos = torch.arange(start, start + T)
            ring.update(k[:, pos], v[:, pos], pos)
        ring.rewind(back)
        start += T - back
        assert ring.rewindable == left
        with pytest.raises(ValueError, match=rf"of {start} tokens: rewind={left + 1}: .*0, {left}"):
            ring.rewind(left + 1)
        assert_same(ring, plain(partial(RollingCache, 4), k, v, start))


def test_tensors_returned_by_a_ring_survive_a_rewind():
    ring = RollingCache(3)
    (k, v) = new_tokens(1, 9, 2)
    ring.update(k[:, :4], v[:, :4], torch.arange(4))
    returned = ring.update(k[:, 4:8], v[:, 4:8], torch.arange(4, 8))
    before = [x.clone() for x in returned]
    ring.rewind(3)
    ring.update(k[:, 5:9], v[:, 5:9], torch.arange(5, 9))
    assert all(torch.equal(a, b) for a, b in zip(before, returned, strict=True))


@pytest.mark.parametrize("back", [1, 3, 5, 7, 12])
def test_texts_with_shared_pages_diverge_after_a_rewind(back):
    """Ten tokens in common, then five of each of three texts; some rewound; then others."""
    (k, v) = new_tokens(1, 10, 3)
    (own, own_v) = new_tokens(3, 5, 3, seed=2)
    cache = Pages()
    cache.update(k, v, torch.arange(10))
    cache.fork(3)
    cache.update(own, own_v, torch.arange(10, 15))
    cache.rewind(back)
    left = 15 - back
    whole = torch.cat([k.expand(3, -1, -1), own], dim=1)[:, :left]
    assert torch.equal(cache.tensors()[0], whole)
    assert_no_page_is_lost(cache)
    new, new_v = new_tokens(3, 6, 3, seed=3)
    cache.update(new, new_v, torch.arange(left, left + 6))
    assert torch.equal(cache.tensors()[0], torch.cat([whole, new], dim=1))
    assert_no_page_is_lost(cache)
    shared = min(left, 10) // 4  # full pages of the common beginning: still held once
    assert cache.users.tolist()[:shared] == [3] * shared
    assert len(cache.users) == shared + 3 * (-(-(left + 6) // 4) - shared)


# ------------------------------------------------------------------ a reader


@pytest.mark.parametrize("cache", [None, DynamicCache, StaticCache])
def test_a_rewound_sliding_reader_equals_one_that_never_read_the_tokens(cache):
    """Before the end of the position table, past it, and back again; block_size is 24."""
    model = tiny_model()
    text = tokens(2, 40, seed=3)
    wrong = tokens(2, 40, seed=4)
    reader = SlidingReader(model, cache)
    length = 0
    # Tokens to read and to forget: within the table, over its end, and back from past it.
    for read, forget in ((5, 2), (12, 0), (14, 9), (3, 0), (5, 14), (2, 0), (9, 9), (1, 0)):
        pos = torch.arange(length, length + read)
        length += read - forget
        reader.read(torch.where(pos < length, text[:, pos], wrong[:, pos]))
        reader.rewind(forget)
        assert reader.length == length
        next_token = text[:, length : length + 1]
        got = reader.read(next_token)[:, -1]
        length += 1
        fresh = SlidingReader(model, None)
        torch.testing.assert_close(got, fresh.read(text[:, :length])[:, -1])
