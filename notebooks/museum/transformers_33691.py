"""https://github.com/huggingface/transformers/issues/33691 (positions)

When the window moves, the kept keys get new positions, counted from its start. The incoming key
keeps its position in the whole text.
"""

import torch
from parts import Tiny, rotate


class Moved(Tiny):
    rotary, window = True, 8

    def turn(self, cache, q, k, pos):
        if not cache.kept:
            return super().turn(cache, q, k, pos)
        first = max(0, cache.t - self.window)
        return rotate(q, torch.arange(cache.t, cache.t + q.shape[2])[None] - first), k

    def store(self, cache, layer, k, v):
        k, v = super().store(cache, layer, k, v)
        if cache.kept:
            place, first = torch.arange(k.shape[2])[None], max(0, cache.t - self.window)
            new = place >= cache.t
            k = rotate(k, place - torch.where(new & self.bug, 0, first))
        return k, v
