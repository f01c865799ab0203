"""The mode itself: PyTorch hands it every call of its functions, and the tables say what happens.

Any function that is in no table and returns floating-point numbers raises ValueError with its name.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...config import check_type
from ...decoder import standard
from .functions import unknown
from .tables import ADDING, AS_USUAL, OUR_ORDER


class _Inside(threading.local):
    """The with-blocks of exact mode that this thread is in: whether gradients were on before."""

    def __init__(self) -> None:
        self.grad_before: list[bool] = []


_inside = _Inside()


class exact(TorchFunctionMode):
    """`with exact(model):` everything inside computes each row bit-identically in any batch.

        with exact(model):
            report = compare(model, prompt, 100, a=None, b=StaticCache)
        report.max_logit_diff  # 0.0

    It covers GPT and Decoder, your own Head if it is written with the functions in the tables of
    nanogpt/engines/exact/tables.py, every cache that keeps rows in text order (not RollingCache;
    Int8Cache rounds), and the engines up to Flat. Any other function, such as a convolution, raises
    ValueError with its name, and so do compiled modules, compiled and native engines,
    torch.autocast and torch.vmap. No gradients are computed. Like torch.no_grad(), it applies where
    the work is done: in this thread, and for a generator, where it is consumed. Slower: notebook 12
    measures by how much. Slower still on a GPU, where each term of a product is a separate
    operation.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        check_type("model", model, nn.Module)
        for part in model.modules():
            # How torch.compile(part) and part.compile() mark a module: its graph calls no function.
            if vars(part).get("_compiled_call_impl") or "_orig_mod" in part._modules:
                raise ValueError(
                    "exact mode has no effect inside torch.compile: "
                    "build the model without compile()"
                )
        for name, weight in model.named_parameters():
            # A tensor of another class may compute in its own way, which a function cannot tell.
            if type(weight) not in standard.WEIGHT_CLASSES or weight.layout is not torch.strided:
                raise ValueError(
                    f"exact mode multiplies plain dense weights, and {name} is a "
                    f"{type(weight).__name__}, {weight.layout}: build the model with plain ones"
                )
        # Where autocast can be on: the devices of the weights, and the CPU.
        devices = {"cpu"} | {weight.device.type for weight in model.parameters()}
        self.devices = [device for device in devices if torch.amp.is_autocast_available(device)]

    def __enter__(self) -> exact:
        self.check_autocast()
        _inside.grad_before.append(torch.is_grad_enabled())
        torch.set_grad_enabled(False)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_grad_enabled(_inside.grad_before.pop())

    def check_autocast(self) -> None:
        """Raises ValueError if autocast is on: it rounds what some kernels get, and not others."""
        if any(torch.is_autocast_enabled(device) for device in self.devices):
            raise ValueError(
                "exact mode does not work with torch.autocast, which is on: leave its with-block, "
                "or cast the whole model, as in model.bfloat16()"
            )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute one call of a PyTorch function. Inside of here the mode is off."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        # 0. what changes every function: asked in every call, because a head may enter it itself
        self.check_autocast()
        check_transforms((*args, *kwargs.values()))
        # 1. nothing is added up, or an option asks for a sum on top
        if name in AS_USUAL and not (kwargs and ADDING & kwargs.keys()):
            return func(*args, **kwargs)
        # 2. a sum, or an elementwise function with a polynomial inside: computed in our own order
        if name in OUR_ORDER or name.removesuffix("_") in OUR_ORDER:
            if torch.is_grad_enabled():
                raise ValueError(
                    f"exact mode computes no gradients, and they are on for {name}: "
                    f"use torch.no_grad(), or leave exact mode"
                )
            if name in OUR_ORDER:
                return called(name, args, kwargs)
            # exp_ and the like write their result into the first argument
            return args[0].copy_(called(name.removesuffix("_"), args, kwargs))
        # 3. Results without floating-point numbers, such as shapes, comparisons and indices, are
        #    the same in any order. So all functions that return them are allowed.
        result = func(*args, **kwargs)
        if has_floats(result):
            raise unknown(name)
        return result


def in_exact_mode() -> bool:
    """Whether this thread is inside a `with exact(model):`."""
    return bool(_inside.grad_before)


def has_floats(result: object) -> bool:
    """Whether a result of a function is or contains a tensor of numbers that can be rounded."""
    if isinstance(result, Tensor):
        return result.is_floating_point() or result.is_complex()
    return isinstance(result, (tuple, list)) and any(has_floats(part) for part in result)


def check_transforms(values: Iterable[object]) -> None:
    """Raises ValueError if a tensor among these arguments belongs to a transform of torch.func.

    Such a tensor is one text of several, or carries a derivative: a kernel gets another shape than
    the one seen here, and pads and splits it in its own way.
    """
    for value in values:
        if isinstance(value, (tuple, list)):
            check_transforms(value)
        elif isinstance(value, Tensor) and torch.func.debug_unwrap(value) is not value:
            raise ValueError(
                "exact mode does not work inside torch.vmap and other transforms of torch.func: "
                "compute the whole batch at once, as in q @ k.mT"
            )


def called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The result of a function of OUR_ORDER. Raises ValueError for arguments it does not take."""
    function = OUR_ORDER[name]
    # An activation hands other arguments on to PyTorch's function, for one part of x at a time.
    if "out" in kwargs:
        raise ValueError(f"exact mode computes {name} without out=: assign the result instead")
    try:
        return function(*args, **kwargs)
    except TypeError:
        # A mistake in the arguments that PyTorch itself would find is its own error.
        names = inspect.signature(function).parameters
        others = ", ".join(f"{key}=" for key in kwargs if key not in names)
        if not others:
            raise
        takes = ", ".join(key for key in names if not key.startswith("_"))
        raise ValueError(f"exact mode computes {name} without {others}: it takes {takes}") from None
