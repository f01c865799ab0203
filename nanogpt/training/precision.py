"""The precision of a training step's matrix products."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ..device import Device


def precision(device: Device, bf16: bool) -> AbstractContextManager[object]:
    """A context manager for a forward pass, which may be entered any number of times.

    On a GPU, autocast multiplies in the device's own dtype. On a CPU, `bf16` multiplies linear
    layers in bfloat16; without it everything stays in the weights' dtype.
    """
    if device.device.type == "cpu" and bf16:
        return BFloat16Linear()
    reduced = device.dtype != torch.float32
    return torch.autocast(device.device.type, dtype=device.dtype, enabled=reduced)


class BFloat16Linear(TorchFunctionMode):
    """Context manager: linear layers multiply in bfloat16, and all else stays in float32.

    On a CPU with bfloat16 instructions, products take about half the time. The attention kernel is
    slower in bfloat16 than in float32, so autocast, which changes both, gains nothing.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # Every torch function that is called inside the block comes here first.
        if func is not F.linear:
            return func(*args, **kwargs)
        # A linear layer's inputs and weights are rounded, its output is float32 again. Gradients
        # pass through both conversions, so the weights and their gradients stay float32.
        x, weight, bias = (*args, kwargs.get("bias"))[:3]
        bias = None if bias is None else bias.bfloat16()
        return func(x.bfloat16(), weight.bfloat16(), bias).float()
