"""https://github.com/ml-explore/mlx-lm/pull/1396 (positions)

A layer reads the keys of another one, and the position of its queries from that one's cache. The
owner has advanced it by then: queries stand a call too far.
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
