"""A cache that grows by concatenation."""

from __future__ import annotations

import torch

from .base import KVCache


class DynamicCache(KVCache):
    """Grows by one row per token: easy to read, and every step copies all it has into a new tensor."""

    def update(self, k, v, pos):
        self._check(k, v, pos)
        self._count(k, pos)
        if self.k is not None:
            k, v = torch.cat([self.k, k], dim=-2), torch.cat([self.v, v], dim=-2)
            pos = torch.cat([self.pos, pos])
        self.k, self.v, self.pos = k, v, pos
        return k, v, pos
