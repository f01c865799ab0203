"""https://github.com/ml-explore/mlx-lm/pull/1396 (positions)

A layer shares the keys of another layer and takes its queries' positions from that layer's cache.
By then the owner has advanced, so the positions are one call too far.
"""

import torch
from parts import Tiny, rotate


class SharedKeys(Tiny):
    rotary = True

    def turn(self, cache, q, k, pos):
        q, k = super().turn(cache, q, k, pos)
        if self.bug and cache.kept and cache.layer == 1:
            q = rotate(q, torch.full_like(pos, q.shape[2]))  # rotations add up
        return q, k

    def store(self, cache, layer, k, v):
        return super().store(cache, 0, k, v) if layer == 0 else (cache.k[0], cache.v[0])
