"""Attention as pure functions of queries, keys, values and positions. Knows no cache.

Shapes: B batch, H heads, T queries, S keys, hs head size. The leading dimensions are free, so
one function serves the lecture's heads (B, T, hs) and packed ones (B, H, T, hs).
"""

import torch.nn.functional as F
from torch import Tensor


def visible(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """True where the query at q_pos may look at the key at k_pos.  (…, T), (…, S) -> (…, T, S)

    Position -1 marks an empty cache slot, which no query sees. Prefill, decode and any chunk
    between are the same rule: there is no square mask to slice and no "decoding needs no mask".
    The texts of a batch may be at different positions.
    """
    # Queries become rows and keys columns, so that one comparison fills the whole (T, S) table.
    q_pos = q_pos[..., :, None]  # (…, T, 1)
    k_pos = k_pos[..., None, :]  # (…, 1, S)
    # A query sees itself and what came before it, and no slot that holds no token yet.
    return (k_pos <= q_pos) & (k_pos >= 0)


def check_ascending(pos: Tensor) -> None:
    """Raise ValueError unless the positions of each text ascend.  (…, T), on the CPU

    Attention itself needs positions in no order. The causal kernel, a ring and a rewind rely on it.
    """
    # A single token, as in decoding, is always in order, and needs no look at its position.
    if pos.shape[-1] > 1 and not (pos.diff() > 0).all():
        raise ValueError(f"positions {pos.tolist()} do not ascend: pass tokens in the text's order")


def attention_weights(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """How much each query takes of each value.  (…, T, hs), (…, S, hs), (…, T, S) -> (…, T, S)"""
    # 1. How well does each query match each key? A dot product of hs numbers grows like √hs.
    #    Divided by it, the scores of wide heads do not push the softmax towards a single winner.
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (…, T, S)
    # 2. Hidden keys score -inf, so that softmax gives them a weight of exactly 0. The other weights
    #    are positive and add up to 1 for each query.
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    """softmax(q kᵀ / √hs) v over the visible keys.  (…, T, hs), (…, S, hs) -> (…, T, hs)

    `mask` (…, T, S) is what `visible` returns. None stands for visible(pos, pos) of ascending
    positions: each query sees the keys up to its own, as in PyTorch's fused causal kernel.
    """
    # The fused kernel never stores the (T, S) weights, which saves memory and time in training.
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    weights = attention_weights(q, k, mask)  # (…, T, S)
    # Each query gets the mean of the values by its weights. Dropout leaves some of them out.
    return F.dropout(weights, dropout, training=dropout > 0) @ v
