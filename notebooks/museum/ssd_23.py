"""https://github.com/tanishqkumar/ssd/issues/23 (reuse)

After a prefix-cache hit the kernel gets the block pool without the table that orders it, and reads
the pool from the front.
"""

import torch
from parts import Paged, Session, empty


class NoTable(Session, Paged):
    blocks = 512

    def reuse(self, cache, ids):
        n = super().reuse(cache, ids)
        cache.hit = self.bug and n > 0
        return n

    def begin(self):
        return empty()

    def slots(self, cache, table):
        slots = super().slots(cache, table)
        return torch.arange(slots.numel()).view(slots.shape) if cache.hit else slots

    def step(self, cache, ids, mask):
        cache.hit = getattr(cache, "hit", False)
        logits = super().step(cache, ids, mask)
        cache.hit = False
        return logits
