"""https://github.com/TransformerLensOrg/TransformerLens/issues/1617 (masks)

The padding mask is passed only to the first forward pass. From the second on, a shorter text
attends to its padding, and its positions count it.
"""

import torch
from parts import Tiny


class MaskedOnce(Tiny):
    def step(self, cache, ids, mask):
        return super().step(cache, ids, torch.ones_like(mask) if self.bug and cache.t else mask)
