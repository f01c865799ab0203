"""A cache that grows by concatenation."""

from __future__ import annotations

import torch

from .base import KVCache


class DynamicCache(KVCache):
    """Grows with every token: easy to read, but each step copies all that it holds."""

    def store(self, k, v, pos):
        if self.k is not None:
            k, v = torch.cat([self.k, k], dim=-2), torch.cat([self.v, v], dim=-2)
            pos = torch.cat([self.pos, pos])
        self.k, self.v, self.pos = k, v, pos
        return k, v, pos
