"""Is this the package's own arithmetic? Asked before other code than a model's own computes it.

Engines, `pack_heads`, the trainer, checkpoints and exports read a model's weights and do not call
its modules' `forward`. That gives the model's own output only if the model is what the package's
constructor makes. So each module is compared with its counterpart in a new model of the same
config, and anything unexpected is a difference: this is an allowlist.

Replaced functions of torch or of this package are not looked for (see SUPPORT.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from ..config import GPTConfig
from .config import DecoderConfig
from .skeleton import skeleton

Config = GPTConfig | DecoderConfig

# The allowed classes of weights: subclasses may compute differently.
WEIGHT_CLASSES = (Tensor, nn.Parameter)
# A model decodes in eval mode. These make no difference there, or are compared separately.
NOT_SETTINGS = {"training", "cache", "dropout", "attn_dropout", "p", "inplace", "config"}
# Each of these dictionaries holds functions that change an output, or what a checkpoint says.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks")


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be computed, and what to do about it, as one line of text."""

    reason: str
    instead: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.instead}"


def not_standard(model: nn.Module) -> Refusal | None:
    """The first difference from the package's model with this config, with advice; None if none."""
    difference = first_difference(model)
    if difference is None:
        return None
    return Refusal(
        f"this model has {difference}, so only its own code can compute it",
        "use generate without an engine, or with Uncached or PerHead if it is a list of heads",
    )


def check_standard(model: nn.Module) -> None:
    """Raises ValueError, with the reason, for a model that `not_standard` refuses."""
    refusal = not_standard(model)
    if refusal:
        raise ValueError(str(refusal))


def inference_config(config: Config) -> Config:
    """The config without dropout, which makes no difference in decoding."""
    return replace(config, dropout=0.0) if config.dropout else config


# ------------------------------------------------------------------ what is expected


@dataclass(frozen=True)
class _Expected:
    """What a module of the package's model has: all that is compared."""

    path: str
    kind: type[nn.Module]
    attributes: frozenset[str]  # names in its __dict__
    settings: dict[str, object]  # the plain attributes that its arithmetic reads
    parts: list[str]  # names of its modules
    shapes: dict[str, torch.Size | None]  # of its parameters; None where it has no such parameter


@lru_cache(maxsize=16)
def _expected_modules(config: Config) -> list[_Expected]:
    """The modules of a new model with this config, in the order of `modules_with_paths`."""
    found = []
    for path, module in modules_with_paths(skeleton(config)):
        settings = {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("_") and name not in NOT_SETTINGS
        }
        shapes = {
            name: None if parameter is None else parameter.shape
            for name, parameter in module._parameters.items()
        }
        attributes = frozenset(vars(module))
        parts = list(module._modules)
        found.append(_Expected(path, type(module), attributes, settings, parts, shapes))
    return found


def modules_with_paths(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its path, each time it occurs; `named_modules` skips repeats."""
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        yield path, module
        prefix = f"{path}." if path else ""
        for name, child in reversed(module._modules.items()):
            if child is not None:
                waiting.append((prefix + name, child))


# ------------------------------------------------------------------ the first difference


def first_difference(model: nn.Module) -> str | None:
    """The difference that `not_standard` finds, in a few words and without advice."""
    # 1. Whatever runs after every module's forward may change every output.
    if _global_forward_hooks or _global_forward_pre_hooks:
        return "a forward hook on all modules"
    # 2. The class of the model follows from its config.
    config = getattr(model, "config", None)
    if not isinstance(config, (GPTConfig, DecoderConfig)):
        return f"the class {class_name(type(model))}, whose config is not one of the package's"
    # 3. Walk through both trees in the same order. A module more or less shows in its parent.
    modules = modules_with_paths(model)
    dtype = model.dtype
    device = model.device
    for expected in _expected_modules(inference_config(config)):
        _, module = next(modules, ("", None))
        where = expected.path or "the model"
        if module is None:
            return f"no {expected.path}"
        if type(module) is not expected.kind:
            kinds = class_name(type(module)), class_name(expected.kind)
            return f"{kinds[0]} as {where}, where {kinds[1]} is expected"
        difference = (
            _other_attributes(module, expected)
            or _any_hook(module)
            or _other_settings(module, expected, config)
            or _other_parts(module, expected)
            or _other_tensors(module, expected, dtype, device)
        )
        if difference:
            return f"{difference} of {where}"
    return None


def _other_attributes(module: nn.Module, expected: _Expected) -> str | None:
    """A method, a weight or a module that an attribute of the instance hides; or one too few."""
    own = vars(module)
    if own.keys() == expected.attributes:
        return None
    # Python finds an attribute of the instance before nn.Module looks into its dictionaries, so
    # `object.__setattr__(layer, "weight", t)` computes with t, and layer.parameters() has another.
    hidden = own.keys() & (module._parameters.keys() | module._modules.keys())
    if hidden:
        return f"an attribute {min(hidden)} that hides the {min(hidden)}"
    for name in own.keys() - expected.attributes:
        # An attribute of any other name is harmless, because the package's code does not read it.
        # `model.compile()` sets one, and computes the same as before.
        if hasattr(type(module), name) and name != "_compiled_call_impl":
            return f"another {name}, set on the instance,"
    missing = expected.attributes - own.keys()
    return f"no {min(missing)}" if missing else None


def _any_hook(module: nn.Module) -> str | None:
    own = vars(module)
    for kind in HOOKS:
        if own[kind]:
            name = kind.strip("_").removesuffix("s").replace("_hook", " hook")
            return f"a {name}"
    return None


def _other_settings(module: nn.Module, expected: _Expected, whole: Config) -> str | None:
    """An attribute such as `eps` or `window` that has another value."""
    own = vars(module)
    for name, value in expected.settings.items():
        if type(own[name]) is not type(value) or own[name] != value:
            return f"{name}={own[name]!r:.40} instead of {value!r:.40}"
    # A module may keep the config. It need not be the same object.
    config = own.get("config")
    if config is None or config is whole:
        return None
    alike = type(config) is type(whole) and inference_config(config) == inference_config(whole)
    return None if alike else "another config"


def _other_parts(module: nn.Module, expected: _Expected) -> str | None:
    names = list(module._modules)
    if names == expected.parts:
        return None
    return f"{len(names)} modules instead of {len(expected.parts)} as parts"


def _other_tensors(
    module: nn.Module, expected: _Expected, dtype: torch.dtype, device: torch.device
) -> str | None:
    """A weight more or less, or one that other code cannot read from memory as plain numbers."""
    count = len(module._parameters) + len(module._buffers)
    if count != len(expected.shapes):
        return f"{count} tensors, not {len(expected.shapes)},"
    for name, shape in expected.shapes.items():
        tensor = module._parameters.get(name)
        if tensor is None:
            if shape is not None:
                return f"no {name}"
        elif type(tensor) not in WEIGHT_CLASSES:
            return f"a {name} of the class {type(tensor).__name__}"
        elif tensor.shape != shape:
            return f"a {name} of the shape {tuple(tensor.shape)}"
        elif tensor.dtype is not dtype or tensor.device != device:
            where = f"{tensor.dtype} on {tensor.device}"
            return f"a {name} of {where} (other weights are {dtype} on {device})"
        elif tensor.layout is not torch.strided:
            return f"a {name} whose layout is {tensor.layout}"
        elif not in_memory(tensor):
            return f"a {name} whose numbers are not in memory as they are"
    return None


def in_memory(tensor: Tensor) -> bool:
    """Whether each number is where the tensor's address, strides and dtype say it is."""
    # A view with a negative or conjugate bit holds other numbers than its memory does.
    if tensor.is_neg() or tensor.is_conj():
        return False
    if tensor.is_meta or tensor.numel() == 0:
        return True
    # The memory may have been freed (`untyped_storage().resize_(0)`), or never allocated.
    end = tensor.storage_offset() + tensor.numel()
    if not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        end = tensor.storage_offset() + 1 + sum((size - 1) * stride for size, stride in steps)
    enough = tensor.untyped_storage().nbytes() >= end * tensor.itemsize
    return enough and tensor.data_ptr() != 0


def class_name(kind: type) -> str:
    """The name of a class, with its module."""
    return f"{kind.__module__}.{kind.__name__}"
