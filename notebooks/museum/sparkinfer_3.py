"""https://github.com/gittensor-ai-lab/sparkinfer/issues/3 (masks)

A query of a chunk sees only as many keys as its index in the chunk allows, although others are
already cached. Single tokens take another code path, which is correct.
"""

import torch
from parts import Tiny


class CountedInChunk(Tiny):
    def sees(self, cache, ids, mask):
        see = super().sees(cache, ids, mask)
        return torch.ones_like(see).tril() if self.bug and cache.t and ids.shape[1] > 1 else see
