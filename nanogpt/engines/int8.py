"""Rung 7 with 8-bit weights, and what rounding does to a model."""

from __future__ import annotations

import ctypes
from copy import deepcopy

import torch
from torch import Tensor

from ..model.gpt import GPT
from . import toolchain
from .functional import qkv_of
from .native import Native
from .native_library import FLOAT, library


class Native8(Native):
    """Rung 7 with 8-bit weights: a quarter of the bytes, and not quite the same model any more.

    Every row of every matrix is rounded to 255 steps of its own size when a generation begins;
    embeddings, LayerNorms and biases stay as they are. Its tokens need not be those of float32.
    """

    bits = 8

    def matrix(self, weight):
        codes, scales = quantize(weight.detach(), self.library)
        return [codes, scales]


class Rough8(Native8):
    """Native8 that rounds the vectors to 8 bits as well: whole numbers times whole numbers.

    Sooner again, and further from the model: good for guessing what it will say (Small), and no more.
    """

    rough = True


def quantize(weight: Tensor, lib: ctypes.CDLL | None = None) -> tuple[Tensor, Tensor]:
    """8-bit codes and a scale for each row: weight ≈ codes * scales[:, None].  (n, k) -> (n, k), (n,)"""
    weight = weight.contiguous()
    n, k = weight.shape
    try:
        lib = lib or library(64, 4, 65)
    except toolchain.CannotBuild:  # the same arithmetic, in more passes over the numbers
        top = weight.abs().amax(1)
        return (weight * (127 / top.clamp(min=1e-38))[:, None]).round().to(torch.int8), top / 127
    codes, scales = torch.empty(n, k, dtype=torch.int8, device="cpu"), torch.empty(2 * n, **FLOAT)
    lib.quantize(
        *(ctypes.c_void_p(t.data_ptr()) for t in (weight,)),
        n,
        k,
        ctypes.c_void_p(codes.data_ptr()),
        ctypes.c_void_p(scales.data_ptr()),
    )
    return codes, scales[:n]  # the rest, in the same memory, is for Rough8


def rounded(model: GPT) -> GPT:
    """A copy of the model whose matrices are what Native8 reads: rounded to 8 bits, held as float32."""
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
