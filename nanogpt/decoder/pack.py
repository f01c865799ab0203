"""Weights from one form of the model to the other: a list of heads, or all heads in one matrix."""

from dataclasses import replace

import torch
from torch import Tensor

from ..config import GPTConfig
from ..model import GPT
from .standard import check_standard


def pack_heads(model: GPT) -> GPT:
    """A batched copy of a per-Head model: the same function, its heads' weights in one matrix.

    Raises ValueError for a batched model, and for one that `not_standard` objects to.
    """
    return _converted(model, per_head=False)


def unpack_heads(model: GPT) -> GPT:
    """A per-Head copy of a batched model: the inverse of pack_heads, to the bit."""
    return _converted(model, per_head=True)


def _converted(model: GPT, per_head: bool) -> GPT:
    check_standard(model)
    if model.config.per_head == per_head:
        form = "per-Head" if per_head else "batched"
        raise ValueError(f"the model is {form} already (config.per_head={per_head})")
    copy = GPT(replace(model.config, per_head=per_head))
    state = convert_state(model.state_dict(), model.config, per_head=per_head)
    copy.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    return copy.train(model.training)


def convert_state(
    state: dict[str, Tensor], config: GPTConfig, *, per_head: bool
) -> dict[str, Tensor]:
    """A state_dict with its attention weights in the form asked for; the rest is unchanged."""
    parts = ("query", "key", "value")
    H = config.n_head
    head = "blocks.{}.sa.heads.{}.{}.weight"
    attention = (".sa.heads.", ".sa.qkv.")
    out = {name: t for name, t in state.items() if not any(part in name for part in attention)}
    for layer in range(config.n_layer):
        packed = f"blocks.{layer}.sa.qkv.weight"  # (3 C, C): queries of all heads, keys, values
        if per_head:
            for part, rows in zip(parts, state[packed].chunk(3), strict=True):
                for h, weight in enumerate(rows.chunk(H)):
                    out[head.format(layer, h, part)] = weight.clone()
        else:
            names = [head.format(layer, h, part) for part in parts for h in range(H)]
            out[packed] = torch.cat([state[name] for name in names])
    return out
