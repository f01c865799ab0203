"""The decoder as one function over plain tensors: no modules, no checks, only arithmetic.

`step` computes the logits of `Decoder` for every `DecoderConfig`, on the model's own weights. The
caller provides the attention function for new queries, keys and values, so the same code works with
a growing cache, a static cache, a compiler and a CUDA graph.

Shapes: B batch, T tokens, C width, H query heads, Hkv key/value heads, hs head size, V vocabulary.
`…` is (B, T), or (B,) for one token of each text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import too_large
from .config import DecoderConfig, RopeScaling
from .layers import activate, norm, rms_norm, rotation_speeds, turn, visible


class Affine(NamedTuple):
    """The weight and bias of a linear layer or a norm; None if missing."""

    weight: Tensor | None = None
    bias: Tensor | None = None


class Layer(NamedTuple):
    """The weights of one block. Matrices are (out, in), as in nn.Linear."""

    norm1: Affine
    qkv: Affine  # ((H + 2 Hkv) hs, C): queries of all heads, then keys, then values
    query_norm: Affine  # (hs,)
    key_norm: Affine
    proj: Affine  # (C, H hs)
    norm2: Affine
    up: Affine  # (F, C); with gates (2 F, C), the gates' rows first
    down: Affine  # (C, F)


class Weights(NamedTuple):
    """All weights of a decoder."""

    tokens: Tensor  # (V, C)
    positions: Tensor  # (block_size, C); for rotary positions, the result of `rotations`
    embed_norm: Affine
    layers: list[Layer]
    norm: Affine
    head: Affine  # (V, C)


def named_tensors(w: Weights) -> dict[str, Tensor]:
    """All tensors that exist, by names such as layers_0_qkv_weight, in the order of a step."""
    named = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            named[name] = value
        elif isinstance(value, list):
            for i, part in enumerate(value):
                add(f"{name}_{i}", part)
        elif value is not None:
            for field, part in value._asdict().items():
                add(f"{name}_{field}" if name else field, part)

    add("", w)
    return named


def from_names(named: Mapping[str, Tensor | None], n_layer: int) -> Weights:
    """The inverse of named_tensors."""

    def affine(name: str) -> Affine:
        return Affine(named.get(f"{name}_weight"), named.get(f"{name}_bias"))

    layers = [
        Layer(*(affine(f"layers_{i}_{part}") for part in Layer._fields)) for i in range(n_layer)
    ]
    return Weights(
        tokens=named["tokens"],
        positions=named["positions"],
        embed_norm=affine("embed_norm"),
        layers=layers,
        norm=affine("norm"),
        head=affine("head"),
    )


# Keys and values of each layer, (B, Hkv, capacity, hs).
Buffers = list[tuple[Tensor, ...]]

# attend(i, q, k, v) of layer i: stores the new keys and values, and returns the attention output.
# (…, H, hs), (…, Hkv, hs), (…, Hkv, hs) -> (…, H hs)
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def step(
    w: Weights,
    tokens: Tensor,
    places: Tensor,
    attend: Attend,
    c: DecoderConfig,
    linear: Callable[..., Tensor] = F.linear,
) -> Tensor:
    """Read new tokens, return the logits after each.  (…), (…, C) or (…, 2 hs) -> (…, V)

    `places` are the rows of `Weights.positions` at the tokens' positions.
    """
    # 1. What each token is, and where it is. Learned positions are added here; rotary positions
    #    rotate queries and keys in every layer.
    x = F.embedding(tokens, w.tokens)  # (…, C)
    if not c.rotary:
        x = x + places
    if c.embed_norm:
        x = norm(x, *w.embed_norm, c)
    heads = [c.n_head, c.kv_heads, c.kv_heads]  # of queries, keys and values
    for i, layer in enumerate(w.layers):
        # 2. attention: the queries of the new tokens attend to the keys of all tokens so far
        u = norm(x, *layer.norm1, c)
        qkv = linear(u, *layer.qkv).unflatten(-1, (-1, c.head_size))  # (…, H + 2 Hkv, hs)
        q, k, v = qkv.split_with_sizes(heads, dim=-2)
        # Normalise, so that no query or key wins by its length alone.
        if c.qk_norm:
            q = rms_norm(q, layer.query_norm.weight, c.norm_eps)
            k = rms_norm(k, layer.key_norm.weight, c.norm_eps)
        # Rotate keys before caching them: a key's angle depends on its own position and never
        # changes.
        if c.rotary:
            q = turn(q, places[..., None, :])
            k = turn(k, places[..., None, :])
        # The caller's `attend` stores the new keys and values, and attends to all stored ones. The
        # projection mixes the heads.
        x = x + linear(attend(i, q, k, v), *layer.proj)
        # 3. the feed-forward layers: each token separately
        h = linear(norm(x, *layer.norm2, c), *layer.up)
        if c.gated:
            gate, h = h.chunk(2, dim=-1)
            h = activate(gate, c.activation) * h
        else:
            h = activate(h, c.activation)
        x = x + linear(h, *layer.down)
    # 4. a score for every token that could come next
    logits = linear(norm(x, *w.norm, c), *w.head)  # (…, V)
    if c.logit_softcap is not None:
        logits = c.logit_softcap * (logits / c.logit_softcap).tanh()
    return logits


def read(w: Weights, caches: Buffers, tokens: Tensor, start: int, c: DecoderConfig) -> Tensor:
    """Run `step` on tokens at positions start, start + 1, …, over static `caches`.

    Writes the new rows into the caches.  (B, T) -> (B, T, V)
    """
    end = start + tokens.shape[1]
    return step(w, tokens, w.positions[start:end], attend_written(caches, start, end, c), c)


# ------------------------------------------------------------------ helpers of a step


def rotations(length: int, c: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The factors of `layers.turn` at positions 0 … length - 1.  -> (length, 2 hs)

    Do not write into the result: it is cached for other callers. Raises MemoryError if it cannot
    be allocated.
    """
    return _rotations(length, c.head_size, c.rope_base, c.rope_scaling, dtype, device)


@lru_cache(maxsize=16)
def _rotations(
    length: int,
    head_size: int,
    base: float,
    scaling: RopeScaling | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    # Cached for callers in any mode. The angles are in float64, because at far positions they are
    # large numbers, where float32 would lose the digits that matter.
    try:
        with torch.inference_mode(False), torch.no_grad():
            speeds = rotation_speeds(head_size, base, scaling, device)
            angle = torch.arange(length, device=device).double()[:, None] * speeds
            cos = angle.cos().to(dtype)
            sin = angle.sin().to(dtype)
            # In the layout of `turn`: cosines for both halves of a head, then signed sines.
            return torch.cat([cos, cos, -sin, sin], dim=-1)
    except (RuntimeError, MemoryError):
        what = f"block_size={length}: sines and cosines"
        n_bytes = 2 * length * head_size * dtype.itemsize
        advice = "use a smaller block_size, or leave engine out"
        raise too_large(what, n_bytes, advice) from None


def buffers(c: DecoderConfig, batch: int, capacity: int, **kind: Any) -> Buffers:
    """Zeroed keys and values of each layer, (B, Hkv, capacity, hs). `kind`: dtype, device.

    Raises MemoryError if they cannot be allocated.
    """
    shape = (2, batch, c.kv_heads, capacity, c.head_size)
    try:
        return [torch.zeros(shape, **kind).unbind(0) for _ in range(c.n_layer)]
    except (RuntimeError, MemoryError):
        what = f"batch={batch}, capacity={capacity}: keys and values"
        n_bytes = c.n_layer * prod(shape) * kind["dtype"].itemsize
        advice = "build the engine with a smaller capacity, as in Flat(config, capacity=4096)"
        raise too_large(what, n_bytes, advice) from None


def attend_written(caches: Buffers, start: int, end: int, c: DecoderConfig) -> Attend:
    """Attention of the tokens at positions start … end - 1 over static `caches`."""
    # Which keys each token sees depends only on the layer's window: one mask for each window.
    masks = {w: chunk_mask(start, end, w, c.sinks, caches[0][0].device) for w in windows(c)}

    def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # The buffers are (B, Hkv, capacity, hs), the new rows (B, T, Hkv, hs): write them into the
        # slots of their own positions, and attend to all slots written so far.
        keys, values = caches[i]
        keys[:, :, start:end] = k.transpose(1, 2)
        values[:, :, start:end] = v.transpose(1, 2)
        return grouped_attention(q, keys[:, :, :end], values[:, :, :end], masks[c.window_of(i)])

    return attend


def windows(c: DecoderConfig) -> set[int | None]:
    """The distinct windows of the layers."""
    return {c.window_of(layer) for layer in range(c.n_layer)}


def chunk_mask(
    start: int, end: int, window: int | None, sinks: int, device: torch.device
) -> Tensor | bool:
    """The mask of tokens start … end - 1 over keys 0 … end - 1; True: causal, False: none.

    A single token sees all keys, and PyTorch's is_causal covers a prefill. A chunk that starts
    later is neither: PyTorch's causal kernel would align its first query with the first key.
    """
    # A text no longer than the window is fully visible, as if there were no window.
    whole = window is None or end <= window
    if whole and (end - start == 1 or start == 0):
        return end - start > 1
    pos = torch.arange(end, device=device)
    return visible(pos[start:], pos, window, sinks)  # (T, S)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | bool) -> Tensor:
    """softmax(q kᵀ / √hs) v.  (B, T, H, hs), (B, Hkv, S, hs), (B, Hkv, S, hs) -> (B, T, H hs)

    Groups of query heads share a head of keys (GQA, Ainslie et al. 2023, arXiv 2305.13245).
    """
    B, T, H, hs = q.shape
    Hkv = k.shape[1]
    if T == 1:  # treat the queries of a group as rows of one head, so that no keys are copied
        rows = q.view(B, Hkv, H // Hkv, hs)
        allowed = None if mask is False else mask
        return F.scaled_dot_product_attention(rows, k, v, attn_mask=allowed).reshape(B, 1, H * hs)
    # Several queries see different keys, and the kernel needs as many key heads as query heads:
    # copy the shared ones. In decoding T is 1, and nothing is copied.
    q = q.transpose(1, 2)  # (B, H, T, hs)
    if Hkv != H:
        k = k.repeat_interleave(H // Hkv, dim=1)
        v = v.repeat_interleave(H // Hkv, dim=1)
    if mask is True:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return y.transpose(1, 2).reshape(B, T, H * hs)
