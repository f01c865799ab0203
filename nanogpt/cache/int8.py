"""A cache that keeps its rows in 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import KVCache


@dataclass(frozen=True)
class Codes:
    """Rows of numbers as 8-bit codes with one scale for each row: x ≈ codes · scale."""

    codes: Tensor  # (…, S, hs) int8
    scale: Tensor  # (…, S, 1) float16

    @classmethod
    def of(cls, x: Tensor) -> Codes:
        """The nearest codes, from -127 to 127."""
        x = x if x.dtype == torch.float64 else x.float()
        least = torch.finfo(torch.float16).smallest_normal  # rows of zeros, and nearly
        scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(least, 65504).to(torch.float16)
        return cls((x / scale).round().clamp(-127, 127).to(torch.int8), scale)

    def rows(self, dtype: torch.dtype) -> Tensor:
        """The numbers that the codes stand for."""
        return self.codes.to(dtype) * self.scale.to(dtype)

    def then(self, new: Codes) -> Codes:
        """These rows, then the new ones."""
        parts = ((self.codes, new.codes), (self.scale, new.scale))
        return Codes(*(torch.cat(pair, dim=-2) for pair in parts))

    def __getitem__(self, some) -> Codes:
        """Some of the rows: codes[..., :5, :]"""
        return Codes(self.codes[some], self.scale[some])

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


class Int8Cache(KVCache):
    """Grows like DynamicCache, but keeps each row as 8-bit codes and a scale: about a quarter of float32.

    What it gives back is rounded, so its tokens need not be those of an uncached model: never take it
    where equality is promised. Rows of integers are kept as they are.
    """

    def update(self, k, v, pos):
        self._check(k, v, pos)
        self._count(k, pos)
        new = (Codes.of(x) if x.is_floating_point() else x for x in (k, v))
        self.k, self.v = (
            x if old is None else _joined(old, x)
            for old, x in zip((self.k, self.v), new, strict=True)
        )
        self.pos = pos if self.pos is None else torch.cat([self.pos, pos])
        return *self.rows(), self.pos

    def rows(self):
        return tuple(x.rows(self.kind[2]) if isinstance(x, Codes) else x for x in (self.k, self.v))

    def _forget(self, n):
        self.k, self.v, self.pos = self.k[..., :-n, :], self.v[..., :-n, :], self.pos[:-n]


def _joined(old, new):
    return old.then(new) if isinstance(old, Codes) else torch.cat([old, new], dim=-2)
