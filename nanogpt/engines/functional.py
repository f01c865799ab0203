"""The model as one function over plain tensors: no module, no check, arithmetic only.

A step computes the logits of `model.GPT`, on the model's own weights. Compilers work best on this
form: `compiled` translates it, `native` writes it out in C++. It knows the lecture's architecture
and the one of the recipe `keeper`, and no groups or windows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import rms_norm, rotate, visible
from ..config import GPTConfig
from ..model import GPT, Block, CausalSelfAttention


class Layer(NamedTuple):
    """The weights of one block, all (out, in) as nn.Linear keeps them; None: it has none."""

    ln1_weight: Tensor | None
    ln1_bias: Tensor | None
    qkv: Tensor  # (3 C, C): all heads' queries, then keys, then values
    proj_weight: Tensor
    proj_bias: Tensor | None
    ln2_weight: Tensor | None
    ln2_bias: Tensor | None
    up_weight: Tensor  # (4 C, C)
    up_bias: Tensor | None
    down_weight: Tensor  # (C, 4 C)
    down_bias: Tensor | None


class Weights(NamedTuple):
    """All weights of a model."""

    tokens: Tensor  # (V, C)
    positions: Tensor  # (block_size, C); with rotary positions the result of `rotations`
    ln_weight: Tensor | None
    ln_bias: Tensor | None
    head_weight: Tensor  # (V, C)
    head_bias: Tensor | None
    layers: list[Layer]


@torch.no_grad()
def flatten(model: GPT) -> Weights:
    """The model's own tensors; only the matrices of single Heads are copied, into one a layer.

    For a model made of the package's own modules only: an engine asks `not_standard` first.
    """
    c = model.config
    head = model.lm_head.weight
    if c.rope:
        positions = rotations(c.block_size, c.head_size, c.rope_base, head.dtype, head.device)
    else:
        positions = model.position_embedding_table.weight.detach()
    rest = _weights_of(model.ln_f, model.lm_head)
    layers = [_layer(block) for block in model.blocks]
    return Weights(model.token_embedding_table.weight.detach(), positions, *rest, layers)


@lru_cache(maxsize=16)
def rotations(
    length: int, head_size: int, base: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The factors of `attention.rotate` at positions 0 … length - 1.  -> (length, 2 hs)

    cos, cos, -sin and sin, each half a head wide. Nobody writes into it: it is kept.
    """
    with torch.inference_mode(False), torch.no_grad():
        unit = torch.zeros(length, head_size, dtype=dtype, device=device)
        unit[:, : head_size // 2] = 1.0  # the point (1, 0) turns to (cos, sin)
        turned = rotate(unit, torch.arange(length, device=device), base)
        cos, sin = turned.chunk(2, dim=-1)
        return torch.cat([cos, cos, -sin, sin], dim=-1)


def _weights_of(*modules) -> list[Tensor | None]:
    """Weight and bias of each module; None for one that it has not."""
    tensors = []
    for module in modules:
        for name in ("weight", "bias"):
            tensor = getattr(module, name, None)
            tensors.append(None if tensor is None else tensor.detach())
    return tensors


def _layer(block: Block) -> Layer:
    if isinstance(block.sa, CausalSelfAttention):
        qkv = block.sa.qkv.weight
    else:
        parts = ("query", "key", "value")
        heads = block.sa.heads
        matrices = [getattr(head, part).weight for part in parts for head in heads]
        if (
            len({matrix.dtype for matrix in matrices}) > 1
        ):  # torch.cat would convert them in silence
            raise ValueError("the heads' weights are not of one dtype: cast the whole model")
        qkv = torch.cat(matrices)
    up, _, down, _ = block.ffwd.net
    rest = _weights_of(block.sa.proj, block.ln2, up, down)
    return Layer(*_weights_of(block.ln1), qkv.detach(), *rest)


def in_order(weights: Weights) -> list[Tensor]:
    """All tensors that there are, layer after layer."""
    return [w for w in (*weights[:-1], *chain(*weights.layers)) if w is not None]


def buffers(config: GPTConfig, batch: int, capacity: int, **kind) -> list:
    """Zeroed keys and values of every layer, each (B, H, capacity, hs). `kind`: dtype, device."""
    shape = (2, batch, config.n_head, capacity, config.head_size)
    return [torch.zeros(shape, **kind).unbind(0) for _ in range(config.n_layer)]


def chunk_mask(start: int, end: int, device: torch.device) -> dict:
    """The mask of tokens start … end - 1 over keys 0 … end - 1, for scaled_dot_product_attention.

    A single token sees all keys, and PyTorch calls a prefill causal. A chunk at a later
    start is neither: is_causal would align its first query with the first key.
    """
    if end - start == 1 or start == 0:
        return {"is_causal": end - start > 1}
    pos = torch.arange(end, device=device)
    return {"attn_mask": visible(pos[start:], pos)}


def embed(table: Tensor, tokens: Tensor, places: Tensor, c: GPTConfig) -> Tensor:
    """The input of the first block; `places` are the rows of Weights.positions."""
    x = F.embedding(tokens, table)
    x = x if c.rope else x + places
    return rms_norm(x) if c.rms_norm else x


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """LayerNorm, or RMSNorm, which has no weights."""
    return rms_norm(x) if weight is None else F.layer_norm(x, weight.shape, weight, bias)


def placed(x: Tensor, places: Tensor, c: GPTConfig) -> Tensor:
    """`attention.norm_and_rotate`, with rotations that are known.  (…, T, hs), (T, 2 hs)"""
    x = rms_norm(x) if c.qk_norm else x
    if not c.rope:
        return x
    cos, sin = places.chunk(2, dim=-1)
    return x * cos + x.roll(c.head_size // 2, dims=-1) * sin


def relu(x: Tensor, c: GPTConfig) -> Tensor:
    """ReLU, or its square."""
    return F.relu(x).square() if c.relu2 else F.relu(x)


def step(w: Weights, caches: list, tokens: Tensor, start: int, c: GPTConfig) -> Tensor:
    """Read tokens at positions start, start + 1, …; logits behind each.  (B, T) -> (B, T, V)

    `caches` is the result of `buffers`; the new rows are written into it.
    """
    B, T = tokens.shape
    end = start + tokens.shape[1]
    mask = chunk_mask(start, end, tokens.device)
    places = w.positions[start:end]
    x = embed(w.tokens, tokens, places, c)  # (B, T, C)
    for layer, (keys, values) in zip(w.layers, caches, strict=True):
        qkv = F.linear(norm(x, layer.ln1_weight, layer.ln1_bias), layer.qkv)
        q, k, v = qkv.view(B, T, 3, c.n_head, -1).permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, hs)
        # The next two lines change nothing in the lecture's model.
        q = placed(q, places, c)
        k = placed(k, places, c)
        keys[:, :, start:end] = k
        values[:, :, start:end] = v
        y = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], **mask)
        y = y.transpose(1, 2).reshape(B, T, c.n_embd)
        x = x + F.linear(y, layer.proj_weight, layer.proj_bias)
        h = norm(x, layer.ln2_weight, layer.ln2_bias)
        h = relu(F.linear(h, layer.up_weight, layer.up_bias), c)
        x = x + F.linear(h, layer.down_weight, layer.down_bias)
    return F.linear(norm(x, w.ln_weight, w.ln_bias), w.head_weight, w.head_bias)


def step_at(
    w: Weights, token: Tensor, pos: Tensor, c: GPTConfig, attend: Callable, linear=F.linear
) -> Tensor:
    """`step` for one token of each text at a position that is a tensor, so no shape depends on it.

    (B,), (1,) -> (B, V). attend(i, q, k, v) keeps the new key and value of layer i and returns the
    mean that the query gathers, all (B, H, hs).
    """
    B = len(token)
    places = F.embedding(pos, w.positions)  # one row
    x = embed(w.tokens, token, places, c)  # (B, C)
    for i, layer in enumerate(w.layers):
        u = norm(x, layer.ln1_weight, layer.ln1_bias)
        q, k, v = linear(u, layer.qkv).view(B, 3, c.n_head, -1).unbind(1)  # (B, H, hs)
        y = attend(i, placed(q, places, c), placed(k, places, c), v).reshape(B, -1)
        x = x + linear(y, layer.proj_weight, layer.proj_bias)
        u = norm(x, layer.ln2_weight, layer.ln2_bias)
        u = relu(linear(u, layer.up_weight, layer.up_bias), c)
        x = x + linear(u, layer.down_weight, layer.down_bias)
    return linear(norm(x, w.ln_weight, w.ln_bias), w.head_weight, w.head_bias)
