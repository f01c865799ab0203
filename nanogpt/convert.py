"""Weights from one form of the model to the other, and to and from Karpathy's own class."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn as nn
from torch import Tensor

from .config import GPTConfig
from .model import GPT


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


def check_standard(model: nn.Module) -> None:
    """Raises ValueError, with the reason, for a model that `not_standard` objects to."""
    difference = not_standard(model)
    if difference:
        raise ValueError(difference)


def not_standard(model: nn.Module) -> str | None:
    """The first difference of a model from GPT(model.config), with a cure; None without one.

    A model that differs may compute another function. Code that computes a model's function without
    the `forward` of its modules must ask this first.
    """
    expected = _layout(model.config) if type(model) is GPT else [(GPT, None)]
    modules = list(_modules(model))
    for module, (kind, eps) in zip(modules, expected, strict=False):
        if type(module) is not kind:
            return _only_its_own(f"{_name(type(module))} where {_name(kind)} is expected")
        if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
            return _only_its_own(f"a hook on, or another forward of, a {_name(kind)}")
        if vars(module).get("eps") != eps:
            return _only_its_own(f"a {kind.__name__} with eps={module.eps}")
    if len(modules) != len(expected):
        return _only_its_own(f"{len(modules)} modules where {len(expected)} are expected")
    return None


@lru_cache(maxsize=16)
def _layout(config: GPTConfig) -> list[tuple[type, float | None]]:
    """The class of each of a GPT's modules, and the eps of norms."""
    narrow = replace(config, vocab_size=1, block_size=1, n_embd=2 * config.n_head)
    return [(type(module), vars(module).get("eps")) for module in _modules(GPT(narrow))]


def _modules(module: nn.Module) -> Iterator[nn.Module]:
    """Every module, each time it occurs. `named_modules` takes as long as decoding ten tokens."""
    yield module
    for child in module._modules.values():
        if child is not None:
            yield from _modules(child)


def own_classes(model: nn.Module) -> list[str]:
    """The classes of modules that GPT(model.config) does not have, such as a Head of your own."""
    known = {kind for kind, _ in _layout(model.config)}
    return sorted({_name(type(module)) for module in model.modules() if type(module) not in known})


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _only_its_own(difference: str) -> str:
    cure = "use generate without an engine, or with Uncached or PerHead on a per-Head model"
    return f"this model has {difference}: only its own code knows the result, so {cure}"


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
