"""The model as one function over plain tensors: no module, no check, arithmetic only.

A step computes what `model.GPT` computes, on the model's own weights. Compilers work best on this
form: `compiled` translates it, `native` writes it out in C++.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config.shapes import GPTConfig
from ..model.attention import visible
from ..model.gpt import GPT, Block, CausalSelfAttention


class Layer(NamedTuple):
    """The weights of one block, all (out, in) as nn.Linear keeps them."""

    ln1_weight: Tensor
    ln1_bias: Tensor
    qkv: Tensor  # (3 C, C): all heads' queries, then keys, then values
    proj_weight: Tensor
    proj_bias: Tensor
    ln2_weight: Tensor
    ln2_bias: Tensor
    up_weight: Tensor  # (4 C, C)
    up_bias: Tensor
    down_weight: Tensor  # (C, 4 C)
    down_bias: Tensor


class Weights(NamedTuple):
    """All weights of a model."""

    tokens: Tensor  # (V, C)
    positions: Tensor  # (block_size, C)
    ln_weight: Tensor
    ln_bias: Tensor
    head_weight: Tensor  # (V, C)
    head_bias: Tensor
    layers: list[Layer]


@torch.no_grad()
def flatten(model: GPT) -> Weights:
    """The model's own tensors; only the matrices of single Heads are copied, into one a layer.

    For a model made of the package's own modules only: an engine asks `not_standard` first.
    """
    tables = model.token_embedding_table, model.position_embedding_table
    weights = [table.weight for table in tables]
    for module in (model.ln_f, model.lm_head):
        weights += [module.weight, module.bias]
    return Weights(*(w.detach() for w in weights), [_layer(block) for block in model.blocks])


def _layer(block: Block) -> Layer:
    if isinstance(block.sa, CausalSelfAttention):
        qkv = block.sa.qkv.weight
    else:
        parts, heads = ("query", "key", "value"), block.sa.heads
        single = [getattr(head, part).weight for part in parts for head in heads]
        if len({weight.dtype for weight in single}) > 1:  # torch.cat would convert them in silence
            raise ValueError("the heads' weights are not of one dtype: cast the whole model")
        qkv = torch.cat(single)
    up, _, down, _ = block.ffwd.net
    weights = [block.ln1.weight, block.ln1.bias, qkv]
    for module in (block.sa.proj, block.ln2, up, down):
        weights += [module.weight, module.bias]
    return Layer(*(w.detach() for w in weights))


def in_order(weights: Weights) -> list[Tensor]:
    """All tensors, layer after layer."""
    return [*weights[:-1], *chain(*weights.layers)]


def buffers(config: GPTConfig, batch: int, capacity: int, **kind) -> list:
    """Zeroed keys and values of every layer, each (B, H, capacity, hs). `kind`: dtype, device."""
    shape = (2, batch, config.n_head, capacity, config.head_size)
    return [torch.zeros(shape, **kind).unbind(0) for _ in range(config.n_layer)]


def chunk_mask(start: int, end: int, device: torch.device) -> dict:
    """The mask of tokens start … end - 1 over keys 0 … end - 1, for scaled_dot_product_attention.

    A single token sees all keys, and a prefill is what PyTorch calls causal. A chunk at a later
    start is neither: is_causal would align its first query with the first key.
    """
    if end - start == 1 or start == 0:
        return {"is_causal": end - start > 1}
    pos = torch.arange(end, device=device)
    return {"attn_mask": visible(pos[start:], pos)}


def step(w: Weights, caches: list, tokens: Tensor, start: int, n_head: int) -> Tensor:
    """Read tokens at positions start, start + 1, …; logits behind each.  (B, T) -> (B, T, V)

    `caches` is what `buffers` returns; the new rows are written into it.
    """
    (B, T), C, end = tokens.shape, w.tokens.shape[1], start + tokens.shape[1]
    mask = chunk_mask(start, end, tokens.device)
    x = F.embedding(tokens, w.tokens) + w.positions[start:end]  # (B, T, C)
    for layer, (keys, values) in zip(w.layers, caches, strict=True):
        qkv = F.linear(F.layer_norm(x, (C,), layer.ln1_weight, layer.ln1_bias), layer.qkv)
        q, k, v = qkv.view(B, T, 3, n_head, -1).permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, hs)
        keys[:, :, start:end], values[:, :, start:end] = k, v
        y = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], **mask)
        x = x + F.linear(y.transpose(1, 2).reshape(B, T, C), layer.proj_weight, layer.proj_bias)
        h = F.layer_norm(x, (C,), layer.ln2_weight, layer.ln2_bias)
        h = F.relu(F.linear(h, layer.up_weight, layer.up_bias))
        x = x + F.linear(h, layer.down_weight, layer.down_bias)
    return F.linear(F.layer_norm(x, (C,), w.ln_weight, w.ln_bias), w.head_weight, w.head_bias)


def step_at(
    w: Weights, token: Tensor, pos: Tensor, n_head: int, attend: Callable, linear=F.linear
) -> Tensor:
    """`step` for one token of each text at a position that is a tensor, so no shape depends on it.

    (B,), (1,) -> (B, V). attend(i, q, k, v) keeps the new key and value of layer i and returns what
    the query gathers, all (B, H, hs).
    """
    B, C = len(token), w.tokens.shape[1]
    x = F.embedding(token, w.tokens) + F.embedding(pos, w.positions)  # (B, C)
    for i, layer in enumerate(w.layers):
        u = F.layer_norm(x, (C,), layer.ln1_weight, layer.ln1_bias)
        q, k, v = linear(u, layer.qkv).view(B, 3, n_head, -1).unbind(1)  # (B, H, hs)
        y = attend(i, q, k, v).reshape(B, C)
        x = x + linear(y, layer.proj_weight, layer.proj_bias)
        u = F.layer_norm(x, (C,), layer.ln2_weight, layer.ln2_bias)
        u = F.relu(linear(u, layer.up_weight, layer.up_bias))
        x = x + linear(u, layer.down_weight, layer.down_bias)
    return linear(F.layer_norm(x, (C,), w.ln_weight, w.ln_bias), w.head_weight, w.head_bias)
