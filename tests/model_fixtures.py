"""How the tests of the model get logits."""

import torch

from nanogpt.cache import kv_cache


@torch.no_grad()
def all_logits(model, idx, cache=None, chunks=1, capacity=None):
    """The logits at every position: from one call, or from a cache that is fed chunk by chunk.

    `chunks` is the size of all chunks, or a list of sizes.
    """
    if cache is None:
        return model(idx)[0]
    with kv_cache(model, cache, capacity):
        parts = torch.arange(idx.shape[1]).split(chunks)
        return torch.cat([model(idx[:, pos], pos=pos)[0] for pos in parts], dim=1)
