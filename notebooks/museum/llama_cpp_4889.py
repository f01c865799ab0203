"""https://github.com/ggml-org/llama.cpp/issues/4889 (positions)

When the context is full, the remaining keys are rotated back to lower positions. Only half of each
key is rotated, but all of it is rotated back.
"""

import torch
from parts import Tiny, rotate


class Shifted(Tiny):
    rotary, rewinds = True, False

    def turn(self, cache, q, k, pos):
        pos = pos - getattr(cache, "shift", 0)
        return rotate(q, pos, 4), rotate(k, pos, 4)

    def step(self, cache, ids, mask):
        if cache.kept and cache.t > 20 and not hasattr(cache, "shift"):
            cache.shift = 10
            for layer, k in cache.k.items():
                back = torch.full((1, 1), -cache.shift)
                cache.k[layer] = rotate(k, back, 8 if self.bug else 4)
        return super().step(cache, ids, mask)
