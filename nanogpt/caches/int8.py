"""A cache that keeps keys and values in 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache import DynamicCache


class Int8Cache(DynamicCache):
    """Grows like DynamicCache, in about a quarter of float32's bytes: 8-bit codes and scales.

    What it returns is rounded, so its tokens need not be those of an uncached model: do not use it
    where equality is promised.
    """

    def store(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # A DynamicCache of codes: rows of hs + 2 bytes. Attention gets them decoded, all S at each
        # step.
        self.dtype = k.dtype
        super().store(encoded(k), encoded(v), pos)
        return *self.tensors(), self.pos

    def tensors(self) -> tuple[Tensor, Tensor]:
        return decoded(self.k, self.dtype), decoded(self.v, self.dtype)


def encoded(x: Tensor) -> Tensor:
    """Each vector as codes from -127 to 127 and a scale in two bytes.  (…, hs) -> (…, hs + 2) int8

    A number is about its code times the scale of its vector.
    """
    # 1. One scale for each vector: its largest number becomes 127. A scale for a whole tensor would
    #    leave small vectors a few codes only.
    x = x if x.dtype == torch.float64 else x.float()
    least = torch.finfo(torch.float16).smallest_normal  # for vectors of zeros, and nearly
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(least, 65504).to(torch.float16)
    # 2. Divided by the scale as it is kept, rounded to 16 bits, so that decoding undoes just that.
    codes = (x / scale).round().clamp(-127, 127).to(torch.int8)
    # 3. The scale's two bytes ride along as two more codes, so that a row is one tensor of int8.
    return torch.cat([codes, scale.view(torch.int8)], dim=-1)


def decoded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that were encoded, but for rounding.  (…, hs + 2) -> (…, hs)"""
    scale = x[..., -2:].contiguous().view(torch.float16)
    return x[..., :-2].to(dtype) * scale.to(dtype)
