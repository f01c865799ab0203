"""Pages: texts with a common prefix share them until one of the texts writes."""

import pytest
import torch
from conftest import seeded

from nanogpt.caches.paged import PagedCache


def random(*shape):
    return torch.randn(*shape, generator=seeded(1))


class Pages(PagedCache):
    page = 4


@pytest.mark.parametrize("length", [8, 10])
def test_a_common_prefix_is_stored_once_and_copied_on_write(length):
    """Two full pages, or two and a half."""
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


def test_fork_needs_a_single_text():
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


def test_a_step_within_a_page_does_not_copy_the_pool():
    k = random(2, 1, 5)
    cache = Pages()
    cache.update(k, k, torch.tensor([0]))
    pool = cache.k.data_ptr()
    cache.update(k, k, torch.tensor([1]))
    assert cache.k.data_ptr() == pool
