"""Pages: equal tokens, at most one partly empty page a text, and a beginning that is held once."""

import pytest
import torch
from conftest import seeded, tiny_model, tokens

from nanogpt.cache.attach import cache_owners, kv_cache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.paged import PagedCache


class Small(PagedCache):
    page = 4


def random(*shape, seed=1):
    return torch.randn(*shape, generator=seeded(seed))


def test_what_is_wasted_is_the_rest_of_last_pages():
    cache = Small()
    for length in range(1, 14):
        new = random(3, 2, 1, 8)
        cache.update(new, new, torch.tensor([length - 1]))
        pages = -(-length // 4)
        row = 2 * 2 * 8 * 4  # K and V, heads, size, bytes
        assert cache.nbytes == 3 * pages * 4 * row
        assert cache.wasted == 3 * (pages * 4 - length) * row


def test_a_common_beginning_is_held_once_and_copied_where_texts_part():
    cache, k = Small(), random(1, 2, 10, 8)
    cache.update(k, -k, torch.arange(10))  # two full pages, and half of a third
    one = cache.nbytes
    cache.fork(5)
    assert cache.nbytes == one
    assert cache.tensors()[0].shape[0] == 5
    new = random(5, 2, 1, 8)
    cache.update(new, -new, torch.tensor([10]))
    assert cache.nbytes == one // 3 * (2 + 5), "the full pages are shared, the third is not"
    found = cache.tensors()[0]
    for text in range(5):
        assert torch.equal(found[text], torch.cat([k[0], new[text]], dim=-2))
    assert cache.users.tolist()[:2] == [5, 5]
    assert set(cache.users.tolist()[2:]) == {1}


def test_a_fork_at_the_end_of_a_page_copies_nothing():
    cache, k = Small(), random(1, 8, 8)
    cache.update(k, k, torch.arange(8))
    cache.fork(3)
    new = random(3, 1, 8)
    cache.update(new, new, torch.tensor([8]))
    assert len(cache.users) == 2 + 3
    assert torch.equal(cache.tensors()[0][1], torch.cat([k[0], new[1]]))


@torch.no_grad()
@pytest.mark.parametrize("length", [7, 8])
def test_texts_that_share_a_beginning_go_on_as_if_each_had_its_own(length):
    model, start, rest = tiny_model(), tokens(1, length), tokens(4, 6)
    with kv_cache(model, Small):
        model(start, pos=torch.arange(length))
        for owner in cache_owners(model):
            owner.cache.fork(4)
        shared = [model(rest[:, i : i + 1], pos=torch.tensor([length + i]))[0] for i in range(6)]
    with kv_cache(model, DynamicCache):
        model(start.expand(4, -1), pos=torch.arange(length))
        own = [model(rest[:, i : i + 1], pos=torch.tensor([length + i]))[0] for i in range(6)]
    torch.testing.assert_close(torch.cat(shared), torch.cat(own), rtol=0, atol=1e-4)


def test_a_fork_of_many_texts_and_a_text_too_long_are_refused():
    cache = Small(6)
    with pytest.raises(ValueError, match="a cache of one text, and there are 0"):
        cache.fork(2)
    cache.update(random(1, 5, 8), random(1, 5, 8), torch.arange(5))
    with pytest.raises(
        ValueError, match="2 more tokens do not fit.*holds 5.*capacity of at least 7"
    ):
        cache.update(random(1, 2, 8), random(1, 2, 8), torch.tensor([5, 6]))
    with pytest.raises(ValueError, match="fork: n=0"):
        cache.fork(0)
    cache.fork(2)
    with pytest.raises(ValueError, match="there are 2"):
        cache.fork(2)
    assert cache.length == 5
    cache.update(random(2, 1, 8), random(2, 1, 8), torch.tensor([5]))
    cache.reset()
    assert cache.nbytes == cache.wasted == 0
    cache.update(random(3, 1, 8), random(3, 1, 8), torch.tensor([0]))


def test_a_step_within_a_page_copies_no_pool():
    k, cache = random(2, 1, 5), Small()
    cache.update(k, k, torch.tensor([0]))
    pool = cache.k.data_ptr()
    cache.update(k, k, torch.tensor([1]))
    assert cache.k.data_ptr() == pool
