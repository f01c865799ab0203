"""A cache that keeps keys and values in 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import KVCache


@dataclass(frozen=True)
class Codes:
    """Vectors of numbers as 8-bit codes, with one scale for each vector: x ≈ codes · scale."""

    codes: Tensor  # (…, S, hs) int8
    scale: Tensor  # (…, S, 1) float16

    @classmethod
    def of(cls, x: Tensor) -> Codes:
        """The nearest codes, from -127 to 127."""
        x = x if x.dtype == torch.float64 else x.float()
        least = torch.finfo(torch.float16).smallest_normal  # for vectors of zeros, and nearly
        scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(least, 65504).to(torch.float16)
        return cls((x / scale).round().clamp(-127, 127).to(torch.int8), scale)

    def decoded(self, dtype: torch.dtype) -> Tensor:
        """The numbers that the codes stand for."""
        return self.codes.to(dtype) * self.scale.to(dtype)

    def __getitem__(self, index) -> Codes:
        """Some of the vectors: codes[..., :5, :]"""
        return Codes(self.codes[index], self.scale[index])

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


class Int8Cache(KVCache):
    """Grows like DynamicCache, in about a quarter of float32's bytes: 8-bit codes and scales.

    What it returns is rounded, so its tokens need not be those of an uncached model: do not use it
    where equality is promised. Integers (the characters of n-gram tables) are kept exactly.
    """

    def store(self, k, v, pos):
        self.dtype = k.dtype
        self.k, self.v = _appended(self.k, k), _appended(self.v, v)
        self.pos = pos if self.pos is None else torch.cat([self.pos, pos])
        return *self.tensors(), self.pos

    def tensors(self):
        held = (self.k, self.v)
        return tuple(x.decoded(self.dtype) if isinstance(x, Codes) else x for x in held)


def _appended(old: Codes | Tensor | None, new: Tensor) -> Codes | Tensor:
    new = Codes.of(new) if new.is_floating_point() else new
    if old is None:
        return new
    if not isinstance(old, Codes):
        return torch.cat([old, new], dim=-2)
    codes = torch.cat([old.codes, new.codes], dim=-2)
    return Codes(codes, torch.cat([old.scale, new.scale], dim=-2))
