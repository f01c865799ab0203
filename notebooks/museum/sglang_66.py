"""https://github.com/kvcache-ai/sglang/pull/66 (storing)

A fused kernel writes the rotated keys into the cache, but the same call attends to the unrotated
keys.
"""

import torch
from parts import Tiny


class NotWrittenBack(Tiny):
    rotary = True

    def turn(self, cache, q, k, pos):
        cache.unturned = k
        return super().turn(cache, q, k, pos)

    def store(self, cache, layer, k, v):
        k, v = super().store(cache, layer, k, v)
        if self.bug and cache.kept:
            k = torch.cat([k[:, :, : cache.t], cache.unturned], 2)
        return k, v
