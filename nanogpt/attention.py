"""Attention as pure functions of queries, keys, values and positions. Knows no cache.

Shapes: B batch, H heads, T queries, S keys, hs head size. The leading dimensions are free, so
one function serves the lecture's heads (B, T, hs) and the batched ones (B, H, T, hs).
"""

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import wrap_torch_function

from .config import GPTConfig


def visible(q_pos: Tensor, k_pos: Tensor, window: int | None = None, sinks: int = 0) -> Tensor:
    """True where the query at q_pos may look at the key at k_pos.  (…, T), (…, S) -> (…, T, S)

    Position -1 marks an empty cache slot, which no query sees. With `window`, a query sees the
    last `window` positions, its own included, and the first `sinks` of the text (Xiao et al. 2023,
    arXiv 2309.17453). Prefill, decode and any chunk between are the same rule: there is no square
    mask to slice and no "decoding needs no mask". Texts of a batch may stand at other positions.
    """
    q_pos = q_pos[..., :, None]
    k_pos = k_pos[..., None, :]
    gap = q_pos - k_pos  # how far back each key lies
    mask = (gap >= 0) & (k_pos >= 0)
    if window is None:
        return mask
    return mask & ((gap < window) | (k_pos < sinks))


def check_ascending(pos: Tensor) -> None:
    """Raise ValueError unless the positions of each text ascend.  (…, T), on the CPU

    Attention itself needs positions in no order. The causal kernel, a ring and a rewind rely on it.
    """
    if pos.shape[-1] > 1 and not (pos.diff() > 0).all():
        raise ValueError(f"positions {pos.tolist()} do not ascend: pass tokens in the text's order")


def is_causal(rule: Callable, window: int | None) -> bool:
    """Whether that is `visible` with no window, as PyTorch's causal kernel computes it."""
    return rule is visible and window is None


def rotate(x: Tensor, pos: Tensor, base: float) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864).  (…, T, hs), (…, T) -> (…, T, hs)

    Number i of the first half and number i of the second are the coordinates of a point. The point
    turns by an angle that grows with the position. The product of a query and a key that were both
    turned depends on the distance between them, and no longer on their positions.
    """
    half = x.shape[-1] // 2
    speed = base ** -(torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = pos.double()[..., None] * speed  # (…, T, hs / 2); float32 loses digits of far ones
    cos = angle.cos().to(x.dtype)
    sin = angle.sin().to(x.dtype)
    other = x.roll(half, dims=-1)  # a, b becomes b, a; then a cos - b sin, b cos + a sin
    return x * torch.cat([cos, cos], dim=-1) + other * torch.cat([-sin, sin], dim=-1)


def norm_and_rotate(x: Tensor, pos: Tensor, config: GPTConfig) -> Tensor:
    """qk_norm and rotary positions, where the config has them.  (…, T, hs), (…, T) -> (…, T, hs)

    The lecture has neither. A key is rotated before it is cached: its angle never changes.
    """
    if config.qk_norm:
        x = rms_norm(x)
    return rotate(x, pos, config.rope_base) if config.rope else x


def attention_weights(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """How much each query takes of each value.  (…, T, hs), (…, S, hs), (…, T, S) -> (…, T, S)"""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # divided by √hs
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    """softmax(q kᵀ / √hs) v over the visible keys.  (…, T, hs), (…, S, hs) -> (…, T, hs)

    `mask` (…, T, S) is what `visible` returns. None stands for visible(pos, pos) of ascending
    positions: each query sees the keys up to its own, as in PyTorch's fused causal kernel.
    """
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    weights = attention_weights(q, k, mask)  # (…, T, S)
    return F.dropout(weights, dropout, training=dropout > 0) @ v


# Exact mode computes it in another way, as it does with PyTorch's own functions.
attend = wrap_torch_function(lambda q, *args, **kwargs: (q,))(attend)


def attend_shared(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """attend, where each head of keys serves a group of heads of queries.

    (B, H, T, hs), (B, Hkv, S, hs), (B, Hkv, S, hs), (…, T, S) -> (B, H, T, hs). With a mask, as in
    decoding, the queries of a group become more queries of one head, so no key is copied for them.
    """
    B, H, T, hs = q.shape
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return attend(q, k, v, mask, dropout)
    if mask is None:  # PyTorch's causal kernel needs a key for each query
        k = k.repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
        return attend(q, k, v, None, dropout)
    mask = torch.cat([mask] * group, dim=-2)
    y = attend(q.reshape(B, H // group, group * T, hs), k, v, mask, dropout)
    return y.view(B, H, T, hs)


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
