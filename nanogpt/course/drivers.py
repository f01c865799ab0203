"""What the drivers of several pages use: arguments, random numbers, and values in words."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from .page import Answer, Case, Pairs


def run_count(answer: Answer, **given: Any) -> Pairs:
    """One call, with these arguments in this order."""
    yield "the number", number(answer(*given.values()))


def calls(names: str, *rows: tuple[Any, ...]) -> list[Case]:
    """A case for each row of arguments; a row may be shorter than their names."""
    return [Case(run_count, **dict(zip(names.split(), row, strict=False))) for row in rows]


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal random numbers of that shape, the same in every run."""
    generator = torch.Generator().manual_seed(seed + 7919 * sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def form(value: Any) -> str:
    """A tensor's shape, or another object's type, in words."""
    if value is None:
        return "None"
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def gradient(total: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of each input, by name; zeros if the total does not depend on it."""
    found = torch.autograd.grad(total, [*inputs.values()], allow_unused=True)
    pairs = zip(inputs.items(), found, strict=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs}


class Arguments:
    """A call's tensors, with copies that show which ones an answer has modified."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors
        self.before = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def changes(self) -> Pairs:
        """What a call must leave unchanged: its arguments, and whether gradients are on."""
        for name, tensor in self.tensors.items():
            old = self.before[name]
            same = tensor.shape == old.shape and torch.equal(tensor.detach(), old)
            yield f"your code changes `{name}`, which belongs to the caller", not same
        yield "your code returns while gradients are off", not torch.is_grad_enabled()


def number(value: Any) -> Any:
    """A number of any kind, such as NumPy's or a tensor of one, as Python's; else what it is."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return "None" if value is None else f"a {type(value).__name__} instead of a number"
    try:
        return operator.index(value)
    except TypeError:
        found = float(value)
        return "NaN" if math.isnan(found) else found


def whole(value: Any) -> Any:
    """An integer of any kind, such as NumPy's, as a Python integer; anything else as it is."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError):
        return value


def kind(value: Any) -> str:
    """The name of a value's type."""
    return type(value).__name__
