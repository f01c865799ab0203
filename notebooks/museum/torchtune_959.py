"""https://github.com/meta-pytorch/torchtune/pull/959 (plain pass)

The reference is at fault: the causal mask is created when the caches are set up, so without a cache
there is none.
"""

import torch
from parts import Tiny


class MaskOfCaches(Tiny):
    def sees(self, cache, ids, mask):
        see = super().sees(cache, ids, mask)
        return see if cache.kept or not self.bug else torch.ones_like(see)
