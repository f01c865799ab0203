"""Cache interfaces of other projects, as they stand in cells of the notebooks, over our model."""

import pytest
import torch
from decoding_fixtures import build, text
from notebook_fixtures import cells_of

from nanogpt.cache.attach import cache_owners, disable_kv_cache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.paged import PagedCache
from nanogpt.cache.static import StaticCache

CHUNKS = (5, 1, 1, 3, 1)


TOOLS = (
    "import torch; from nanogpt import DynamicCache; from nanogpt.cache.attach import cache_owners"
)


def cell(notebook: int, id: str) -> dict:
    return cells_of(notebook, id, imports=TOOLS)


class Layer:
    """One layer of TinyTorch's object, behind the method that our attention calls."""

    def __init__(self, caches, layer: int):
        self.caches, self.layer = caches, layer

    def update(self, k, v, pos):
        self.caches.update(self.layer, k, v)
        k, v = self.caches.get(self.layer)
        return k, v, torch.arange(k.shape[-2])


def chunks(idx):
    start = 0
    for T in CHUNKS:
        yield idx[:, start : start + T], torch.arange(start, start + T)
        start += T


@torch.no_grad()
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache, PagedCache])
def test_all_layers_as_one_object_give_the_logits_of_the_whole_text(cache):
    model, idx = build(), text(sum(CHUNKS), 2)
    caches, logits = cell(6, "layer-caches")["LayerCaches"](2, cache, 24), []
    for _ in range(2):  # again after a reset
        for layer, owner in enumerate(cache_owners(model)):
            owner.cache = Layer(caches, layer)
        logits = []
        for part, pos in chunks(idx):
            logits.append(model(part, pos=pos)[0])
            caches.advance(len(pos))
        disable_kv_cache(model)
        torch.testing.assert_close(torch.cat(logits, 1), model(idx)[0], rtol=0, atol=1e-9)
        caches.reset()
