"""How does a generation run a model without disturbing it? In a copy of the model's modules.

The copy shares the weights, and has its own caches and eval mode.
"""

from inspect import getclosurevars
from types import FunctionType, MethodType

import torch.nn as nn


def replica(model: nn.Module) -> nn.Module:
    """A copy of the model's modules that shares its weights: in eval mode, without caches.

    Code running in the replica neither sees nor changes the model's modes and caches, so threads
    cannot interfere. A module that is used twice becomes two, because each use needs its own cache.
    Raises ValueError for a forward set on a module instance, because it would run the original, and
    for an attribute that hides one of the model's modules.
    """
    # 1. Copy the module tree. Parameters stay the same tensors, so no memory is copied.
    copies: dict[int, nn.Module] = {}  # by the id of the original, its first copy
    copied = _copied_tree(model, copies)
    for module in copied.modules():
        for name, value in vars(module).items():
            if name in TORCHS_OWN:
                continue
            # 2. A plain attribute may also refer to a module, alone or in a list. It must refer to
            #    the copy: the original has no cache, and may be in training mode.
            if type(value) in (list, tuple):
                value = type(value)(copies.get(id(part), part) for part in value)
            elif type(value) is dict:
                value = {key: copies.get(id(part), part) for key, part in value.items()}
            vars(module)[name] = copies.get(id(value), value)
            # 3. In anything deeper the original would still run, and give other tokens.
            if _refers_to(value, copies, set()):
                raise ValueError(
                    f"{type(module).__name__}.{name} is a {type(value).__name__} that refers to a "
                    f"module of the model, which a copy of the model cannot follow: keep modules "
                    f"in attributes or in an nn.ModuleList"
                )
    return copied


# Attributes of every nn.Module: their modules are copied separately, their hooks are kept.
TORCHS_OWN = frozenset(vars(nn.Module()))


def _copied_tree(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    """A shallow copy of a module and its submodules, with the same tensors."""
    if "forward" in vars(module):
        kind = type(module).__name__
        raise ValueError(
            f"a {kind} has another forward, set on the instance: define it in a class, or remove it"
        )
    # Skip __init__, which would draw new weights. All attributes stay the same objects.
    copied = type(module).__new__(type(module))
    own = vars(copied)
    own.update(vars(module))
    # Replaced, not changed: this dictionary is still the original's.
    parts = module._modules.items()
    own["_modules"] = {
        name: None if part is None else _copied_tree(part, copies) for name, part in parts
    }
    # The replica differs in two things: eval mode, and no cache.
    own["training"] = False
    own.pop("_compiled_call_impl", None)  # set by model.compile(): it would run the original
    if "cache" in own:
        own["cache"] = None
    copies.setdefault(id(module), copied)
    return copied


def _refers_to(value, modules: dict[int, nn.Module], seen: set[int]) -> bool:
    """Whether a value leads to one of the modules, through what PyTorch users keep modules in."""
    # A function that calls itself is in its own closure, and a list may contain itself.
    if id(value) in seen:
        return False
    seen.add(id(value))
    parts = _parts(value)
    return any(id(part) in modules or _refers_to(part, modules, seen) for part in parts)


def _parts(value) -> list:
    """What a container, a bound method or a function with a closure refers to."""
    if isinstance(value, (list, tuple, set)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, MethodType):  # accelerate keeps a module's own forward in `_old_forward`
        return [value.__self__]
    if isinstance(value, FunctionType):  # what it uses of an outer function: self, in a lambda
        return list(getclosurevars(value).nonlocals.values())
    return []
