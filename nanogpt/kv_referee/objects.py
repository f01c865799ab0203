"""Objects of other libraries: the modules that they hold, copies, train mode, memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .errors import NotOffered, first_line
from .memory import available_memory


def modules_in(given: Any) -> Iterator[nn.Module]:
    """The nn.Modules that an adapter is or holds in its attributes."""
    if isinstance(given, nn.Module):
        yield given
        return
    for value in getattr(given, "__dict__", {}).values():
        if isinstance(value, nn.Module):
            yield value


@contextmanager
def eval_mode(adapter: Any) -> Iterator[bool]:
    """In a with-block, the modules of an adapter are in eval mode. Yields whether any was not."""
    modules = [part for held in modules_in(adapter) for part in held.modules()]
    modes = [(module, module.training) for module in modules]
    for module in modules:
        module.training = False
    try:
        yield any(training for _, training in modes)
    finally:
        for module, training in modes:
            module.training = training


def untouched(given: Any) -> Any:
    """A copy of an object that nobody has used, which shares its weights.

    Buffers are copied: they may be a cache. Raises NotOffered for an object that cannot be copied.
    """
    shared: dict[int, Any] = {}
    for module in modules_in(given):
        shared |= {id(weight): weight for weight in module.parameters()}
    try:
        return copy.deepcopy(given, shared)
    except Exception as error:  # of any type: it depends on the object
        raise NotOffered(f"it cannot be copied: {first_line(error)}") from None


def check_memory(model: nn.Module, dtype: torch.dtype) -> None:
    """Raise NotOffered if a copy of the model in this dtype would not fit in memory."""
    need = sum(p.numel() for p in model.parameters()) * dtype.itemsize * 1.2
    free = available_memory()
    if free is not None and need > free:
        raise NotOffered(
            f"{dtype} needs {need / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are available"
        )


def zero_weights(module: nn.Module | None) -> list[str]:
    """The names of a module's all-zero weight matrices."""
    if module is None:
        return []
    return [n for n, p in module.named_parameters() if p.ndim > 1 and p.numel() and not p.any()]
