"""Operations of newer models whose gradients are written by hand, for training on a CPU.

PyTorch has no CPU kernel for them: it runs a chain of small ones, and autograd a longer one back.
With the gradient as one formula both take about half the time. Everywhere else (on a GPU, in 16
bits, under torch.compile, without gradients) PyTorch computes them, so inference has its bits.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def rms_norm(x: Tensor) -> Tensor:
    """x divided by the root of its mean square (RMSNorm), without weights.  (…, n) -> (…, n)"""
    return _RMSNorm.apply(x) if _by_hand(x) else F.rms_norm(x, x.shape[-1:])


class RMSNorm(nn.Module):
    """RMSNorm over the last numbers, without weights."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x)


class SquaredReLU(nn.Module):
    """ReLU, squared (So et al. 2021, Primer, arXiv 2109.08668)."""

    def forward(self, x: Tensor) -> Tensor:
        return _SquaredReLU.apply(x) if _by_hand(x) else F.relu(x).square()


def _by_hand(x: Tensor) -> bool:
    """Whether the gradient will be asked for, where a formula of its own pays."""
    if not x.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


class _RMSNorm(torch.autograd.Function):
    """y = r x with r = 1 / √(mean x² + ε). Backwards: r (g - y · mean(g y)), for the gradient g."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        mean = torch.linalg.vecdot(x, x)[..., None] / x.shape[-1]
        r = mean.add_(torch.finfo(x.dtype).eps).rsqrt_()
        y = x * r
        ctx.save_for_backward(y, r)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor) -> Tensor:
        y, r = ctx.saved_tensors
        along = torch.linalg.vecdot(g, y)[..., None] / y.shape[-1]
        return torch.addcmul(g, y, along, value=-1).mul_(r)


class _SquaredReLU(torch.autograd.Function):
    """y = max(x, 0)². Backwards: 2 max(x, 0) g."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx, g: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (g * positive).mul_(2)
