"""https://github.com/ikawrakow/ik_llama.cpp/issues/2186 (masks)

The cells of a cache belong to several texts. Only the last cells, one window of them, are read:
that is enough for one text, but too few if texts alternate.
"""

import torch
from parts import Tiny


class LastCells(Tiny):
    window = 8

    def sees(self, cache, ids, mask):
        see, (B, T) = super().sees(cache, ids, mask), ids.shape
        new = torch.arange(B * T).view(B, T) + B * cache.t  # the cells of this call
        cache.cells = torch.cat([getattr(cache, "cells", new)[:, : cache.t], new], 1)
        if self.bug and cache.kept:
            see = see & (cache.cells >= B * mask.shape[1] - self.window - T)[:, None]
        return see | (cache.cells[:, None] == new[..., None])
