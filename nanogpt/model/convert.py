"""Weights from one form of the model to the other, and to and from Karpathy's own class."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn as nn
from torch import Tensor

from ..config.shapes import GPTConfig
from .gpt import GPT


def pack_heads(model: GPT) -> GPT:
    """A batched copy of a per-Head model: the same function, its heads' weights stacked into one matrix."""
    return _converted(model, per_head=False)


def unpack_heads(model: GPT) -> GPT:
    """A per-Head copy of a batched model: the inverse of pack_heads, to the bit."""
    return _converted(model, per_head=True)


def _converted(model: GPT, per_head: bool) -> GPT:
    check_standard(model)
    if model.config.per_head == per_head:
        form = "per-Head" if per_head else "batched"
        raise ValueError(f"the model is {form} already (config.per_head={per_head})")
    twin = GPT(replace(model.config, per_head=per_head))
    twin.to(device=model.lm_head.weight.device, dtype=model.lm_head.weight.dtype)
    twin.load_state_dict(convert_state(model.state_dict(), model.config, per_head=per_head))
    return twin.train(model.training)


def check_standard(model: nn.Module) -> None:
    """Raises ValueError for a model that `not_standard` has an answer for."""
    if why := not_standard(model):
        raise ValueError(why)


def not_standard(model: nn.Module) -> str | None:
    """Why this model is not made of the package's own modules as they were built; None when it is.

    Whatever computes the model's function in another way has to know that it is this function.
    """
    expected = _layout(model.config) if hasattr(model, "config") else [(GPT, None)]
    found = [module for _, module in model.named_modules(remove_duplicate=False)]
    for module, (kind, eps) in zip(found, expected, strict=False):
        if type(module) is not kind:
            return _only_its_own(f"{_name(type(module))} where {_name(kind)} is expected")
        if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
            return _only_its_own(f"a hook on, or another forward of, a {_name(kind)}")
        if getattr(module, "eps", None) != eps:
            return _only_its_own(f"a {kind.__name__} with eps={module.eps}")
    if len(found) != len(expected):
        return _only_its_own(f"{len(found)} modules where {len(expected)} are expected")
    return None


@lru_cache(maxsize=16)
def _layout(config: GPTConfig) -> list[tuple[type, float | None]]:
    """The class and eps of each of a GPT's modules, read off a model without memory."""
    with torch.device("meta"):
        modules = [module for _, module in GPT(config).named_modules(remove_duplicate=False)]
    return [(type(module), getattr(module, "eps", None)) for module in modules]


def own_classes(model: nn.Module) -> list[str]:
    """The classes of modules that are not this package's model's, such as a Head of the reader's own."""
    known = {kind for kind, _ in _layout(model.config)}
    return sorted({_name(type(module)) for module in model.modules() if type(module) not in known})


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _only_its_own(what: str) -> str:
    return (
        f"this model has {what}: only the model's own code knows what that computes, so use generate "
        f"without an engine, or with Uncached or PerHead on a per-Head model"
    )


def convert_state(
    state: dict[str, Tensor], config: GPTConfig, *, per_head: bool
) -> dict[str, Tensor]:
    """A state_dict with its attention weights in the form asked for; all else is passed through."""
    parts, H = ("query", "key", "value"), config.n_head
    head = "blocks.{}.sa.heads.{}.{}.weight"
    out = {
        name: t for name, t in state.items() if ".sa.heads." not in name and ".sa.qkv." not in name
    }
    for layer in range(config.n_layer):
        packed = (
            f"blocks.{layer}.sa.qkv.weight"  # (3 C, C): all heads' queries, then keys, then values
        )
        if per_head:
            for part, rows in zip(parts, state[packed].chunk(3), strict=True):
                for h, weight in enumerate(rows.chunk(H)):
                    out[head.format(layer, h, part)] = weight.clone()
        else:
            out[packed] = torch.cat(
                [state[head.format(layer, h, part)] for part in parts for h in range(H)]
            )
    return out


def lecture_state_dict(model: GPT) -> dict[str, Tensor]:
    """A state_dict that Karpathy's own class loads as it is: per-Head, with his `tril` buffers.

    Raises ValueError for an architecture that is not his.
    """
    if other := model.config.beyond_lecture:
        raise ValueError(
            f"the lecture's class has no {', '.join(other)}: it cannot load this model's weights"
        )
    state = dict(model.state_dict())
    if not model.config.per_head:
        state = convert_state(state, model.config, per_head=True)
    T = model.config.block_size
    for layer in range(model.config.n_layer):
        for h in range(model.config.n_head):
            state[f"blocks.{layer}.sa.heads.{h}.tril"] = torch.ones(T, T).tril()
    return state
