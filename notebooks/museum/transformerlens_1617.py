"""https://github.com/TransformerLensOrg/TransformerLens/issues/1617 (masks)

The padding mask is given to the first forward pass only. From the second on, a shorter text looks
at its padding, and its positions count it.
"""

import torch
from parts import Tiny


class MaskedOnce(Tiny):
    def step(self, cache, ids, mask):
        return super().step(cache, ids, torch.ones_like(mask) if self.bug and cache.t else mask)
