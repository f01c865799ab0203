"""Rung 7 with 8-bit weights, and what rounding does to a model."""

from __future__ import annotations

import ctypes
from copy import deepcopy

import torch
from torch import Tensor

from ..model.gpt import GPT
from .base import check_float32
from .functional import qkv_of
from .native import FLOAT, Native, library
from .toolchain import CannotBuild


class Native8(Native):
    """Rung 7 with 8-bit weights: a quarter of the bytes, and no longer quite the same model.

    When a generation begins, every row of every matrix is rounded to 255 steps of its own size;
    embeddings, LayerNorms and biases stay as they are. Its tokens may differ from those of float32.
    """

    bits = 8

    def matrix(self, weight):
        return [*quantize(weight.detach(), self.library)]


class Rough8(Native8):
    """Native8 that rounds the vectors to 8 bits as well: integers times integers.

    Faster again, and further from the model: good for guessing what it will say (DraftModel).
    """

    int8_inputs = True


def quantize(weight: Tensor, lib: ctypes.CDLL | None = None) -> tuple[Tensor, Tensor]:
    """8-bit codes and row scales, weight ≈ codes * scales[:, None].  (n, k) -> (n, k), (n,)

    The weight is float32 on the CPU. Raises ValueError.
    """
    if weight.device.type != "cpu":
        raise ValueError(f"the weight is on {weight.device}: it is rounded on the CPU, so move it")
    check_float32([weight])
    weight = weight.contiguous()
    n, k = weight.shape
    try:
        lib = lib or library(64, 4, 65)
    except CannotBuild:  # the same arithmetic, in more passes over the numbers
        top = weight.abs().amax(1)
        return (weight * (127 / top.clamp(min=1e-38))[:, None]).round().to(torch.int8), top / 127
    codes = torch.empty(n, k, dtype=torch.int8, device="cpu")
    scales = torch.empty(2 * n, **FLOAT)  # the second half is for Rough8
    lib.quantize(weight.data_ptr(), n, k, codes.data_ptr(), scales.data_ptr())
    return codes, scales[:n]


def rounded(model: GPT) -> GPT:
    """A copy of the model with the matrices of Native8: rounded to 8 bits, held as float32."""
    copy = deepcopy(model)
    with torch.no_grad():
        for block in copy.blocks:
            up, _, down, _ = block.ffwd.net
            for layer in (*qkv_of(block), block.sa.proj, up, down):
                _round(layer.weight)
        _round(copy.lm_head.weight)
    return copy


def _round(weight: Tensor) -> None:
    codes, scales = quantize(weight.detach())
    weight.copy_(codes * scales[:, None])
