"""https://github.com/turboderp/exllama/issues/101 (positions)

In the prefill of a batch, positions continue from one row to the next.
"""

import torch
from parts import Tiny


class CountedOn(Tiny):
    rotary = True

    def turn(self, cache, q, k, pos):
        if self.bug and cache.kept and cache.t == 0:
            pos = torch.arange(pos.numel()).view(pos.shape)
        return super().turn(cache, q, k, pos)
