"""Attention as pure functions of queries, keys, values and positions. Know no module, no cache.

Shapes: B batch, H heads, T queries, S keys, hs head size. The leading dimensions are free, so
one function serves the lecture's heads (B, T, hs) and the batched ones (B, H, T, hs).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from ..config.shapes import GPTConfig


def visible(q_pos: Tensor, k_pos: Tensor, window: int | None = None, sinks: int = 0) -> Tensor:
    """True where the query at q_pos may look at the key at k_pos.  (T,), (S,) -> (T, S)

    Position -1 marks an empty cache slot, which nobody sees. With `window`, a query sees the
    last `window` positions, its own included, and the first `sinks` of the text (Xiao et al. 2023,
    arXiv 2309.17453). Prefill, decode and any chunk between are the same rule: there is no square
    mask to slice and no "decoding needs no mask".
    """
    gap = q_pos[:, None] - k_pos[None, :]  # how far back each key lies
    seen = (gap >= 0) & (k_pos >= 0)
    if window is None:
        return seen
    return seen & ((gap < window) | (k_pos < sinks))


def is_causal(pattern: Callable, window: int | None) -> bool:
    """Whether that is this module's `visible` with no window: what PyTorch's causal kernel computes."""
    return pattern is visible and window is None


def rotate(x: Tensor, pos: Tensor, base: float) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864).  (…, T, hs), (T,) -> (…, T, hs)

    Number i of the first half and number i of the second are the two coordinates of a point, which
    turns by an angle that grows with the position. The product of a query and a key that were
    turned so depends on how far they are apart, and no longer on where they stand.
    """
    half = x.shape[-1] // 2
    speed = base ** -(torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = (
        pos.double()[:, None] * speed
    )  # in float32 the angles of far positions lose their last digits
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.split(half, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def placed(x: Tensor, pos: Tensor, config: GPTConfig) -> Tensor:
    """Queries or keys as the config wants them before a cache and attention see them.  (…, T, hs), (T,)"""
    if config.qk_norm:
        x = F.rms_norm(x, x.shape[-1:])
    return rotate(x, pos, config.rope_base) if config.rope else x


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, dropout: float = 0.0) -> Tensor:
    """softmax(q kᵀ / √hs) v over the visible keys.  (…, T, hs), (…, S, hs) -> (…, T, hs)

    `seen` is what `visible` returns. None stands for visible(pos, pos) of ascending positions:
    each query sees the keys up to its own, for which PyTorch's fused causal kernel is the same function.
    """
    if has_torch_function((q, k, v)):  # inside `with exact(model):`
        return handle_torch_function(attend, (q, k, v), q, k, v, seen, dropout)
    if seen is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (…, T, S)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return F.dropout(weights, dropout, training=dropout > 0) @ v


def attend_shared(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """attend, where each head of keys serves a group of heads of queries.

    (B, H, T, hs), (B, Hkv, S, hs), (B, Hkv, S, hs), (T, S) -> (B, H, T, hs). With a mask, as in
    decoding, the queries of a group are so many more queries of one head: no key is copied for them.
    """
    (B, H, T, hs), group = q.shape, q.shape[1] // k.shape[1]
    if group == 1:
        return attend(q, k, v, seen, dropout)
    if seen is None:  # PyTorch's causal kernel wants a key for each query
        return attend(q, *(x.repeat_interleave(group, dim=1) for x in (k, v)), None, dropout)
    y = attend(q.reshape(B, H // group, group * T, hs), k, v, seen.repeat(group, 1), dropout)
    return y.view(B, H, T, hs)
