"""Attention as pure functions of queries, keys, values and positions, without a cache.

Shapes: B batch, H heads, T queries, S keys, hs head size. Any leading dimensions work, so the same
functions serve the lecture's heads (B, T, hs) and packed heads (B, H, T, hs).
"""

import torch.nn.functional as F
from torch import Tensor


def visible(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """True where the query at q_pos may attend to the key at k_pos.  (…, T), (…, S) -> (…, T, S)

    Position -1 marks an empty cache slot, which no query sees. One rule covers prefill, decode and
    chunked prefill: there is no square mask to slice, and no special case for decoding. The
    sequences of a batch may be at different positions.
    """
    # Queries become rows and keys columns, so one comparison fills the whole (T, S) table.
    q_pos = q_pos[..., :, None]  # (…, T, 1)
    k_pos = k_pos[..., None, :]  # (…, 1, S)
    # A query sees itself and everything before it, but no empty slot.
    return (k_pos <= q_pos) & (k_pos >= 0)


def check_ascending(pos: Tensor) -> None:
    """Raise ValueError unless the positions of each sequence ascend.  (…, T), on the CPU

    Attention itself works in any order. The causal kernel, ring caches and rewind need ascending
    positions.
    """
    # A single token, as in decoding, is always in order: nothing to check.
    if pos.shape[-1] > 1 and not (pos.diff() > 0).all():
        raise ValueError(f"positions {pos.tolist()} do not ascend: pass tokens in the text's order")


def attention_weights(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """The weight of each value for each query.  (…, T, hs), (…, S, hs), (…, T, S) -> (…, T, S)"""
    # 1. How well does each query match each key? A dot product of hs numbers grows like √hs.
    #    Divide by √hs, or the scores of wide heads would push the softmax towards a single winner.
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (…, T, S)
    # 2. Masked keys score -inf, so softmax gives them a weight of exactly 0. The other weights are
    #    positive and add up to 1 for each query.
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    """softmax(q kᵀ / √hs) v over the visible keys.  (…, T, hs), (…, S, hs) -> (…, T, hs)

    `mask` (…, T, S) comes from `visible`. None means visible(pos, pos) with ascending positions:
    each query sees the keys up to its own, as in PyTorch's fused causal kernel.
    """
    # The fused kernel never stores the (T, S) weights, which saves memory and time in training.
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    weights = attention_weights(q, k, mask)  # (…, T, S)
    # Each query gets the weighted mean of the values. Dropout zeroes some of the weights.
    return F.dropout(weights, dropout, training=dropout > 0) @ v
