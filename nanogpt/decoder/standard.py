"""Whether a model computes exactly what the package's own classes compute: an allowlist."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import isfunction
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.overrides import TorchFunctionMode

from .. import attention as lesson_attention
from .. import model as lesson
from ..config import GPTConfig
from ..model import GPT, LanguageModel
from . import layers
from . import model as general
from .config import DecoderConfig
from .model import Decoder


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be computed, and what to do about it, as one line of text."""

    reason: str
    instead: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.instead}"


def check_standard(model: nn.Module) -> None:
    """Raises ValueError, with the reason, for a model that `not_standard` rejects."""
    refusal = not_standard(model)
    if refusal:
        raise ValueError(str(refusal))


# ------------------------------------------------------------------ the package's own arithmetic?


def not_standard(model: nn.Module) -> Refusal | None:
    """The first difference from the package's model with this config, with advice; None if none.

    A model that differs may compute another function. Code that computes a model's output without
    calling its modules' `forward` must check this first. It is an allowlist, so anything unexpected
    counts as a difference: every module's class, names, settings, shapes and hooks must match those
    of a new model. Of the functions that they call, only those in `CODE`, a selected list, are
    checked for replacement. Weights may be shared.
    """
    difference = first_difference(model)
    if difference is None:
        return None
    return Refusal(
        f"this model has {difference}, so only its own code can compute it",
        "use generate without an engine, or with Uncached or PerHead if it is a list of heads",
    )


def first_difference(model: nn.Module) -> str | None:
    """The difference that `not_standard` finds, in a few words and without advice."""
    return _replaced_code() or _different_module(model)


PLAIN = (Tensor, nn.Parameter)  # allowed classes of weights: subclasses may compute differently
# A model decodes in eval mode. These make no difference there, or are checked separately.
NOT_COMPARED = {
    *("training", "cache", "dropout", "attn_dropout", "p", "inplace", "config"),
    *("_parameters", "_buffers", "_modules"),
}


class Expected(NamedTuple):
    """What a module of a new model consists of."""

    path: str
    kind: type
    names: frozenset[str]  # of all its attributes
    settings: list[tuple[str, object]]  # plain attributes that its arithmetic reads
    # Of its parameters; None: there is no such parameter.
    shapes: list[tuple[str, tuple[int, ...] | None]]
    children: tuple[str, ...]


@lru_cache(maxsize=16)
def _expected(config: GPTConfig | DecoderConfig) -> list[Expected]:
    """The modules of a new model with this config, in the order of `_modules`."""
    kind = class_of(config)
    shape = type("Shape", (kind,), {"_init_weights": lambda self, generator: None})
    with torch.device("meta"), Unfilled():  # shapes without data
        model = shape(config)
    found = []
    for path, module in _modules(model):
        own = vars(module)
        settings = [(name, value) for name, value in own.items() if _is_setting(name)]
        parameters = module._parameters.items()
        shapes = [(name, None if p is None else tuple(p.shape)) for name, p in parameters]
        parts = tuple(module._modules)
        of = kind if module is model else type(module)
        found.append(Expected(path, of, frozenset(own), settings, shapes, parts))
    return found


def class_of(config: GPTConfig | DecoderConfig) -> type[GPT] | type[Decoder]:
    """The package's model class for a config."""
    return Decoder if isinstance(config, DecoderConfig) else GPT


class Unfilled(TorchFunctionMode):
    """A with-block that skips weight initialisation, because only the shapes are needed."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        fills = (Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_)
        if func in fills or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _different_module(model: nn.Module) -> str | None:
    """How the modules differ from those of a new model, in words."""
    config = getattr(model, "config", None)
    if not isinstance(config, (GPTConfig, DecoderConfig)):
        return f"the class {_name(type(model))}, whose config is not one of the package's"
    if type(model) is not class_of(config):
        return f"the class {_name(type(model))} where {_name(class_of(config))} is expected"
    modules = _modules(model)
    kind = model.dtype, model.device
    for expected in _expected(inference_config(config)):
        path, module = next(modules, ("", None))
        where = path or "the model"
        if type(module) is not expected.kind:
            if module is None:
                return f"no {expected.path}"
            return f"{_name(type(module))} as {where}, where {_name(expected.kind)} is expected"
        difference = _difference(module, expected, config, kind)
        if difference:
            return f"{difference} of {where}"
    return None


def _difference(
    module: nn.Module,
    expected: Expected,
    whole: GPTConfig | DecoderConfig,
    kind: tuple[torch.dtype, torch.device],
) -> str | None:
    """How one module differs from its counterpart in a new model, in words."""
    own = vars(module)
    if own.keys() != expected.names:
        for name in own.keys() - expected.names:
            # Other attributes are harmless: the package's own code does not read them. A compiled
            # module computes the same as before.
            if hasattr(type(module), name) and name != "_compiled_call_impl":
                return f"another {name}, set on the instance,"
        missing = expected.names - own.keys()
        if missing:
            return f"no {min(missing)}"
    if own["_forward_hooks"] or own["_forward_pre_hooks"]:
        return "a forward hook"
    for name, value in expected.settings:
        if type(own[name]) is not type(value) or own[name] != value:
            return f"{name}={own[name]!r:.40} instead of {value!r:.40}"
    config = own.get("config")
    if config is not whole and config is not None and not _decodes_alike(config, whole):
        return "another config"
    if tuple(own["_modules"]) != expected.children:
        return f"{len(own['_modules'])} modules instead of {len(expected.children)} as parts"
    parameters = own["_parameters"]
    if len(parameters) != len(expected.shapes) or own["_buffers"]:
        return f"{len(parameters) + len(own['_buffers'])} tensors, not {len(expected.shapes)},"
    dtype, device = kind
    for name, shape in expected.shapes:
        tensor = parameters.get(name)
        if tensor is None:
            if shape is not None:
                return f"no {name}"
        elif type(tensor) not in PLAIN:
            return f"a {name} of the class {type(tensor).__name__}"
        elif tensor.shape != shape:
            return f"a {name} of the shape {tuple(tensor.shape)}"
        elif tensor.dtype is not dtype or tensor.device != device:
            where = f"{tensor.dtype} on {tensor.device}"
            return f"a {name} of {where} (other weights are {dtype} on {device})"
        elif tensor.layout is not torch.strided:
            return f"a {name} whose layout is {tensor.layout}"
    return None


def _is_setting(name: str) -> bool:
    """Whether a module's arithmetic may read the attribute of this name."""
    return not name.startswith("_") and name not in NOT_COMPARED


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its path, each time it occurs; `named_modules` skips repeats."""
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        yield path, module
        prefix = f"{path}." if path else ""
        for name, child in reversed(module._modules.items()):
            if child is not None:
                waiting.append((prefix + name, child))


def _code() -> Iterator[tuple[object, str, object]]:
    """The functions that the modules run: (where it is looked up, its name, the function)."""
    for owner in (lesson, lesson_attention, general, layers):
        for name, value in vars(owner).items():
            if isfunction(value):
                yield owner, name, value
    owners: list[type] = [nn.Linear, nn.LayerNorm, nn.Embedding, nn.ReLU, nn.Sequential, nn.Dropout]
    for file in (lesson, general, layers):
        own = (value for value in vars(file).values() if isinstance(value, type))
        owners += [part for part in own if issubclass(part, nn.Module)]
    methods = ("forward", "checked_positions", "visible", "attend", "is_causal", "__call__")
    for kind in owners:
        for name in methods:
            if name in vars(kind):
                yield kind, name, vars(kind)[name]
    for name in ("__call__", "_call_impl", "_wrapped_call_impl"):
        yield nn.Module, name, vars(nn.Module)[name]
    for name in ("linear", "layer_norm", "rms_norm", "embedding", "relu", "gelu", "silu"):
        yield F, name, getattr(F, name)
    yield F, "scaled_dot_product_attention", F.scaled_dot_product_attention
    for name in ("__matmul__", "softmax", "masked_fill", "split", "chunk", "roll", "tanh"):
        yield Tensor, name, vars(Tensor).get(name)  # None: inherited from C++


OURS = Path(__file__).parents[1]
TORCH = Path(torch.__file__).parent
PYTHON = Path(copy.__file__).parent


def _as_shipped(value: Any) -> object:
    """The value; None for a function that is not part of this package, torch or Python.

    This module is imported late, so a function may already have been replaced.
    """
    function = value.__func__ if isinstance(value, staticmethod) else value
    if not isfunction(function):
        return value  # from C++
    file = Path(function.__code__.co_filename)
    if OURS in file.parents or TORCH in file.parents:
        return value
    standard = PYTHON in file.parents and "site-packages" not in file.parts
    return value if standard or file.name.startswith("<frozen") else None


# The original functions: where each is looked up, its name, the function, its owner.
CODE = [(vars(owner), name, _as_shipped(value), owner) for owner, name, value in _code()]


def _replaced_code() -> str | None:
    """A function that has been replaced, or a hook on all modules, in words."""
    if _global_forward_hooks or _global_forward_pre_hooks:
        return "a forward hook on all modules"
    for names, name, value, owner in CODE:
        if names.get(name) is not value:
            return f"another {owner.__name__}.{name}"
    return None


def _decodes_alike(a: object, b: GPTConfig | DecoderConfig) -> bool:
    return type(a) is type(b) and inference_config(a) == inference_config(b)


def inference_config(config: GPTConfig | DecoderConfig) -> GPTConfig | DecoderConfig:
    """The config without dropout, which makes no difference in decoding."""
    return replace(config, dropout=0.0) if config.dropout else config


def computes_as_standard(model: LanguageModel) -> bool:
    """Whether the package's model with this config computes the same with these weights.

    For your own classes that compute what the package's do. Tested in float64 on randomly perturbed
    weights, because new weights may be zero and hide what they are multiplied by. False for a model
    whose tensors have other names or shapes.
    """
    if _replaced_code():  # both models would run it here, but neither elsewhere
        return False
    if len({weight.dtype for weight in model.parameters()}) > 1:
        return False
    if any(type(weight) not in PLAIN for weight in model.parameters()):
        return False
    config = model.config
    try:
        theirs = copy.deepcopy(model).to("cpu", torch.float64).eval()
        plain = class_of(config)(replace(config, dropout=0.0)).double().eval()
        idx = torch.arange(min(config.block_size, 48))[None] * 7 % config.vocab_size
        with torch.no_grad():
            generator = torch.Generator().manual_seed(1337)
            for weight in theirs.parameters():
                drawn = torch.empty(weight.shape, dtype=torch.float64, device="cpu")
                weight.add_(drawn.normal_(std=0.1, generator=generator))
            plain.load_state_dict(theirs.state_dict())
            right = plain(idx)[0]
            logits = theirs(idx)[0]
            if logits.shape != right.shape:
                return False
            apart = (logits - right).abs().max()
    except Exception:  # user code may raise anything
        return False
    return bool(apart <= 1e-9 * (1 + right.abs().max()))


def own_classes(model: nn.Module) -> list[str]:
    """The module classes that a new model does not have, such as your own Head."""
    known = {expected.kind for expected in _expected(inference_config(model.config))}
    return sorted({_name(type(module)) for module in model.modules() if type(module) not in known})


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"
