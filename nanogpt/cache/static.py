"""A cache that is allocated once."""

from __future__ import annotations

from .base import KVCache


class StaticCache(KVCache):
    """Allocated once for positions 0 to capacity - 1; each token is written at its own position.

    Slots not yet written have position -1, so `visible` hides them, and hold zeros, because a
    weight of 0 times an uninitialised NaN would still be NaN.
    """

    limited = True

    def store(self, k, v, pos):
        if self.k is None:
            self.reserve(k, v, pos)
        self.k.index_copy_(-2, pos, k)
        self.v.index_copy_(-2, pos, v)
        self.pos.index_copy_(0, pos, pos)
        return self.k, self.v, self.pos

    def forget(self, n):
        slots = self.pos.topk(n).indices
        self.k.index_fill_(-2, slots, 0)
        self.v.index_fill_(-2, slots, 0)
        self.pos.index_fill_(0, slots, -1)
