"""Whether a model computes what the package's own classes compute: a list of what is allowed."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from inspect import isfunction
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.overrides import TorchFunctionMode

from .. import attention
from .. import model as model_module
from ..config import GPTConfig
from ..model import GPT, Block, CausalSelfAttention, FeedForward, Head, MultiHeadAttention


def check_standard(model: nn.Module) -> None:
    """Raises ValueError, with the reason, for a model that `not_standard` objects to."""
    difference = not_standard(model)
    if difference:
        raise ValueError(difference)


# ------------------------------------------------------------------ the package's own arithmetic?


def not_standard(model: nn.Module) -> str | None:
    """The first difference of a model from GPT(model.config), with a cure; None without one.

    A model that differs may compute another function. Code that computes a model's function without
    the `forward` of its modules must ask this first. It is a list of what is allowed, so what
    nobody thought of is a difference: every module's class, names, settings, shapes and hooks are
    those of a new GPT, and no function that they call was replaced. Weights may be shared.
    """
    difference = first_difference(model)
    if difference is None:
        return None
    cure = "use generate without an engine, or with Uncached or PerHead on a per-Head model"
    return f"this model has {difference}: only its own code knows the result, so {cure}"


def first_difference(model: nn.Module) -> str | None:
    """The difference that `not_standard` finds, in a few words and without a cure."""
    return _replaced_code() or _different_module(model)


# A model decodes in eval mode. These make no difference there, or are looked at by themselves.
NOT_COMPARED = {
    *("training", "cache", "dropout", "attn_dropout", "p", "inplace", "config"),
    *("_parameters", "_buffers", "_modules"),
}


class Expected(NamedTuple):
    """What a module of GPT(config) is made of."""

    path: str
    kind: type
    names: frozenset[str]  # of all its attributes
    settings: list[tuple[str, object]]  # plain attributes that its arithmetic reads
    shapes: list[tuple[str, tuple | None]]  # of its parameters; None: it has none of that name
    children: tuple[str, ...]


@lru_cache(maxsize=16)
def _expected(config: GPTConfig) -> list[Expected]:
    """The modules of GPT(config), as `_modules` lists them."""
    with torch.device("meta"), Unfilled():  # shapes without numbers
        model = _Shape(config)
    found = []
    for path, module in _modules(model):
        own = vars(module)
        settings = [(name, value) for name, value in own.items() if _is_setting(name)]
        parameters = module._parameters.items()
        shapes = [(name, None if p is None else tuple(p.shape)) for name, p in parameters]
        kind = GPT if module is model else type(module)
        parts = tuple(module._modules)
        found.append(Expected(path, kind, frozenset(own), settings, shapes, parts))
    return found


class Unfilled(TorchFunctionMode):
    """A with-block in which new weights are not filled; their shapes are all that is asked for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        fills = (Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_)
        if func in fills or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


class _Shape(GPT):
    """A GPT whose weights are not drawn."""

    def _init_weights(self, generator):
        pass


def _different_module(model: nn.Module) -> str | None:
    """Where the modules differ from those of a new GPT, in words."""
    if type(model) is not GPT:
        return f"the class {_name(type(model))} where {_name(GPT)} is expected"
    modules = _modules(model)
    kind = model.dtype, model.device
    for expected in _expected(inference_config(model.config)):
        path, module = next(modules, ("", None))
        where = path or "the model"
        if type(module) is not expected.kind:
            if module is None:
                return f"no {expected.path}"
            return f"{_name(type(module))} as {where}, where {_name(expected.kind)} is expected"
        difference = _difference(module, expected, model.config, kind)
        if difference:
            return f"{difference} of {where}"
    return None


def _difference(module: nn.Module, expected: Expected, whole: GPTConfig, kind: tuple) -> str | None:
    """What one module has that its counterpart in a new GPT has not, or the reverse."""
    own = vars(module)
    if own.keys() != expected.names:
        for name in own.keys() - expected.names:
            # Others are remarks: code that is the package's own does not read them. A compiled
            # module computes what it did before.
            if hasattr(type(module), name) and name != "_compiled_call_impl":
                return f"another {name}, set on the instance,"
        missing = expected.names - own.keys()
        if missing:
            return f"no {min(missing)}"
    if own["_forward_hooks"] or own["_forward_pre_hooks"]:
        return "a forward hook"
    for name, value in expected.settings:
        if type(own[name]) is not type(value) or own[name] != value:
            return f"{name}={own[name]!r:.40} in place of {value!r:.40}"
    config = own.get("config")
    if config is not whole and config is not None and not _decodes_alike(config, whole):
        return "another config"
    if tuple(own["_modules"]) != expected.children:
        return f"{len(own['_modules'])} modules in place of {len(expected.children)} as parts"
    parameters = own["_parameters"]
    if len(parameters) != len(expected.shapes) or own["_buffers"]:
        return f"{len(parameters) + len(own['_buffers'])} tensors, not {len(expected.shapes)},"
    dtype, device = kind
    for name, shape in expected.shapes:
        tensor = parameters.get(name)
        if tensor is None:
            if shape is not None:
                return f"no {name}"
        elif tensor.shape != shape:
            return f"a {name} of the shape {tuple(tensor.shape)}"
        elif tensor.dtype is not dtype or tensor.device != device:
            where = f"{tensor.dtype} on {tensor.device}"
            return f"a {name} of {where} (other weights are {dtype} on {device})"
        elif tensor.layout is not torch.strided:
            return f"a {name} whose layout is {tensor.layout}"
    return None


def _is_setting(name: str) -> bool:
    """Whether that attribute of a module is one that its arithmetic may read."""
    return not name.startswith("_") and name not in NOT_COMPARED


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module and its path, each time it occurs: `named_modules` leaves out the second."""
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        yield path, module
        prefix = f"{path}." if path else ""
        for name, child in reversed(module._modules.items()):
            if child is not None:
                waiting.append((prefix + name, child))


def _code() -> Iterator[tuple[object, str, object]]:
    """The functions that the modules of a GPT run: where each is looked up, its name, itself."""
    for owner in (model_module, attention):
        for name, value in vars(owner).items():
            if isfunction(value):
                yield owner, name, value
    layers = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.ReLU, nn.Sequential, nn.Dropout)
    own = (Head, MultiHeadAttention, CausalSelfAttention, FeedForward, Block, GPT)
    for owner in (*own, attention.RMSNorm, attention.SquaredReLU, *layers):
        for name in ("forward", "embed", "_positions", "visible", "attend", "__call__"):
            if name in vars(owner):
                yield owner, name, vars(owner)[name]
    yield nn.Module, "__call__", nn.Module.__call__
    for name in ("linear", "layer_norm", "rms_norm", "embedding", "relu"):
        yield F, name, getattr(F, name)
    yield F, "scaled_dot_product_attention", F.scaled_dot_product_attention


# As it is when the package is imported: where a function is looked up, its name, and itself.
CODE = [(vars(owner), name, value, owner) for owner, name, value in _code()]


def _replaced_code() -> str | None:
    """A function that somebody replaced since, or a hook on all modules, in words."""
    if _global_forward_hooks or _global_forward_pre_hooks:
        return "a forward hook on all modules"
    for names, name, value, owner in CODE:
        if names.get(name) is not value:
            return f"another {owner.__name__}.{name}"
    return None


def _decodes_alike(a: GPTConfig, b: GPTConfig) -> bool:
    return inference_config(a) == inference_config(b)


def inference_config(config: GPTConfig) -> GPTConfig:
    """The config without what makes no difference in decoding: dropout."""
    return replace(config, dropout=0.0) if config.dropout else config


def computes_as_standard(model: GPT) -> bool:
    """Whether GPT(model.config) with these weights computes the logits of this model.

    For classes of a reader that compute what the package's do. Tried in float64, on weights that
    are moved at random, as new ones may be zero and hide what they are multiplied by. False for a
    model whose tensors have other names or shapes.
    """
    if _replaced_code():  # here both would run it, elsewhere neither
        return False
    config = model.config
    try:
        theirs = deepcopy(model).to("cpu", torch.float64).eval()
        plain = GPT(replace(config, dropout=0.0)).double().eval()
        idx = torch.arange(min(config.block_size, 48))[None] * 7 % config.vocab_size
        with torch.no_grad():
            generator = torch.Generator().manual_seed(1337)
            for weight in theirs.parameters():
                drawn = torch.empty(weight.shape, dtype=torch.float64, device="cpu")
                weight.add_(drawn.normal_(std=0.1, generator=generator))
            plain.load_state_dict(theirs.state_dict())
            right = plain(idx)[0]
            apart = (theirs(idx)[0] - right).abs().max()
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False
    return bool(apart <= 1e-9 * (1 + right.abs().max()))


def own_classes(model: nn.Module) -> list[str]:
    """The classes of modules that GPT(model.config) does not have, such as a Head of your own."""
    known = {expected.kind for expected in _expected(inference_config(model.config))}
    return sorted({_name(type(module)) for module in model.modules() if type(module) not in known})


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"
