"""https://github.com/Mikyx-1/TinyLLM/issues/17 (masks)

The causal mask is applied only if there is no cache. A prefill into a cache looks ahead, and the
keys of the second layer keep what it saw. Notebook 04's first trap.
"""

import torch
from parts import Tiny


class NoMask(Tiny):
    def sees(self, cache, ids, mask):
        see = super().sees(cache, ids, mask)
        return torch.ones_like(see) if self.bug and cache.kept else see
