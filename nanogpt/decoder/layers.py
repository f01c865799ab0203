"""Norms, rotary positions and activations: the parts in which decoders differ.

Shapes: T tokens, hs head size, n any width. Any leading dimensions work.
"""

import math
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .config import Activation, DecoderConfig, Norm, RopeScaling

# ------------------------------------------------------------------ masks and attention
# `visible` repeats the lesson's rule, because notebook 08 shows and changes all of it in one cell;
# tests/decoder/test_layers.py compares the two.


def visible(q_pos: Tensor, k_pos: Tensor, window: int | None = None, sinks: int = 0) -> Tensor:
    """True where the query at q_pos may attend to the key at k_pos.  (…, T), (…, S) -> (…, T, S)

    Like `nanogpt.attention.visible`, but with `window` a query sees only the last `window`
    positions, including its own, and the first `sinks` positions of the text (Xiao et al. 2023,
    arXiv 2309.17453).
    """
    # Queries become rows and keys columns, so one comparison fills the whole (T, S) table.
    q_pos = q_pos[..., :, None]  # (…, T, 1)
    k_pos = k_pos[..., None, :]  # (…, 1, S)
    # A query sees itself and everything before it, but no empty slot.
    mask = (k_pos <= q_pos) & (k_pos >= 0)
    if window is None:
        return mask
    # With a window, it sees only the nearest of these and the first positions of the text.
    return mask & ((k_pos > q_pos - window) | (k_pos < sinks))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    """softmax(q kᵀ / √hs) v in PyTorch's fused kernels.  (…, T, hs), (…, S, hs) -> (…, T, hs)

    A faster `nanogpt.attention.attend`. With `mask` None each query sees the keys up to its own.
    """
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=dropout
    )


# ------------------------------------------------------------------ rotary positions


def rotation_speeds(
    head_size: int, base: float, scaling: RopeScaling | None, device: torch.device | None = None
) -> Tensor:
    """Radians by which each pair of a head rotates from one position to the next.  -> (hs / 2,)

    In float64, because float32 loses precision at far positions.
    """
    # The first pair rotates by one radian per position and distinguishes neighbours. Each further
    # pair is slower, and the last, at about 1 / base, distinguishes far positions.
    half = head_size // 2
    speed = base ** -(torch.arange(half, dtype=torch.float64, device=device) / half)
    if scaling is None:
        return speed
    # Llama 3: the number of turns within the original context decides how much a pair slows down.
    turns = scaling.original_context * speed / (2 * math.pi)
    low = scaling.low_freq_factor
    high = scaling.high_freq_factor
    keeps = ((turns - low) / (high - low)).clamp(0, 1)  # 1: its speed, 0: divided by the factor
    return speed * keeps + speed / scaling.factor * (1 - keeps)


def rotate(x: Tensor, pos: Tensor, c: DecoderConfig) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864).  (…, T, hs), (…, T) -> (…, T, hs)

    Element i of the first half and element i of the second half are the coordinates of a point,
    which rotates by an angle proportional to the position. The dot product of a rotated query and a
    rotated key then depends on positions only through the distance between them.
    """
    speeds = rotation_speeds(c.head_size, c.rope_base, c.rope_scaling, x.device)
    # In float64, then rounded: at far positions the angles are large numbers.
    angle = pos.double()[..., None] * speeds  # (…, T, hs / 2)
    cos = angle.cos().to(x.dtype)
    sin = angle.sin().to(x.dtype)
    return turn(x, torch.cat([cos, cos, -sin, sin], dim=-1))


def turn(x: Tensor, factors: Tensor) -> Tensor:
    """`rotate` with precomputed cos, cos, -sin and sin.  (…, hs), (…, 2 hs) -> (…, hs)"""
    cos, sin = factors.chunk(2, dim=-1)  # (cos, cos) and (-sin, sin), each (…, hs)
    # The halves of x are a and b. Rolling x by half its length gives b and a, so the result is
    # a cos - b sin and b cos + a sin: the point (a, b) rotated by the angle.
    other = x.roll(x.shape[-1] // 2, dims=-1)
    return x * cos + other * sin


# ------------------------------------------------------------------ norms


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, c: DecoderConfig) -> Tensor:
    """The config's norm over the last dimension, with or without weights.  (…, n) -> (…, n)"""
    if c.norm is Norm.RMS:
        return rms_norm(x, weight, c.norm_eps)
    return F.layer_norm(x, (x.shape[-1],), weight, bias, c.norm_eps)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x divided by its root mean square, times the weight.  (…, n), (n,) -> (…, n)"""
    if not _by_hand(x):
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    # If the config gives no eps, use PyTorch's default: the machine epsilon of the dtype.
    y = _RMSNorm.apply(x, torch.finfo(x.dtype).eps if eps is None else eps)
    return y if weight is None else y * weight


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension. Without `weights` it has no parameters."""

    def __init__(self, n: int, eps: float | None = None, weights: bool = True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(n)) if weights else None

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def build_norm(c: DecoderConfig, n: int) -> nn.Module:
    """A new norm over n numbers, of the config's kind."""
    if c.norm is Norm.RMS:
        return RMSNorm(n, c.norm_eps, c.norm_weights)
    return nn.LayerNorm(n, c.norm_eps, elementwise_affine=c.norm_weights, bias=c.norm_shifts)


# ------------------------------------------------------------------ activations


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The activation function of the feed-forward layers.  (…, n) -> (…, n)"""
    match activation:
        case Activation.RELU:
            return F.relu(x)
        case Activation.RELU2:
            return _SquaredReLU.apply(x) if _by_hand(x) else F.relu(x).square()
        case Activation.GELU:
            return F.gelu(x)
        case Activation.GELU_TANH:
            return F.gelu(x, approximate="tanh")
        case Activation.SILU:
            return F.silu(x)


# ------------------------------------------------------------------ gradients written by hand
# On a CPU a training step takes 9 to 13 % less time with these two.


def _by_hand(x: Tensor) -> bool:
    """Whether a gradient is needed that our own formula computes faster."""
    if not x.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


class _RMSNorm(torch.autograd.Function):
    """y = r x with r = 1 / √(mean x² + ε). Backwards: r (g - y · mean(g y)), for the gradient g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        mean = torch.linalg.vecdot(x, x)[..., None] / x.shape[-1]
        r = mean.add_(eps).rsqrt_()
        y = x * r
        ctx.save_for_backward(y, r)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        y, r = ctx.saved_tensors
        along = torch.linalg.vecdot(g, y)[..., None] / y.shape[-1]
        return torch.addcmul(g, y, along, value=-1).mul_(r), None


class _SquaredReLU(torch.autograd.Function):
    """y = max(x, 0)². Backwards: 2 max(x, 0) g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (g * positive).mul_(2)
