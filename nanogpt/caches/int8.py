"""A cache that stores keys and values in 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache import DynamicCache


class Int8Cache(DynamicCache):
    """Grows like DynamicCache, in about a quarter of float32's bytes: 8-bit codes and scales.

    The keys and values it returns are rounded, so tokens may differ from those of an uncached
    model: do not use it where identical output is promised.
    """

    def store(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # A DynamicCache of codes: rows of hs + 2 bytes. Each step decodes all S rows for attention.
        self.dtype = k.dtype
        super().store(encoded(k), encoded(v), pos)
        return *self.held(), self.pos

    def held(self) -> tuple[Tensor, Tensor]:
        return decoded(self.k, self.dtype), decoded(self.v, self.dtype)


def encoded(x: Tensor) -> Tensor:
    """Each vector as codes from -127 to 127 and a 2-byte scale.  (…, hs) -> (…, hs + 2) int8

    A number is approximately its code times its vector's scale.
    """
    # 1. A scale for each vector: its largest number becomes 127. With one scale for a whole tensor,
    #    small vectors would get only a few codes.
    x = x if x.dtype == torch.float64 else x.float()
    least = torch.finfo(torch.float16).smallest_normal  # for vectors that are all zeros, or nearly
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(least, 65504).to(torch.float16)
    # 2. Divide by the stored scale, which is rounded to 16 bits, because decoding multiplies by it.
    codes = (x / scale).round().clamp(-127, 127).to(torch.int8)
    # 3. Append the scale's two bytes as two more codes, so that a row is a single int8 tensor.
    return torch.cat([codes, scale.view(torch.int8)], dim=-1)


def decoded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `encoded`, up to rounding.  (…, hs + 2) -> (…, hs)"""
    # A copy, so that the two bytes begin at an even address, also in a row of odd length.
    scale = x[..., -2:].clone(memory_format=torch.contiguous_format).view(torch.float16)
    return x[..., :-2].to(dtype) * scale.to(dtype)
