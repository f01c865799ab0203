"""https://github.com/turboderp/exllama/issues/101 (positions)

In the prefill of a batch the positions are counted on from row to row.
"""

import torch
from parts import Tiny


class CountedOn(Tiny):
    rotary = True

    def turn(self, cache, q, k, pos):
        if self.bug and cache.kept and cache.t == 0:
            pos = torch.arange(pos.numel()).view(pos.shape)
        return super().turn(cache, q, k, pos)
