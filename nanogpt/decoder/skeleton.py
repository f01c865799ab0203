"""A new model without numbers: its modules, names and shapes, in no time and no memory."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..config import GPTConfig
from ..model import GPT
from .config import DecoderConfig
from .model import Decoder


def class_of(config: GPTConfig | DecoderConfig) -> type[GPT] | type[Decoder]:
    """The package's model class for a config."""
    return Decoder if isinstance(config, DecoderConfig) else GPT


@overload
def skeleton(config: GPTConfig) -> GPT: ...


@overload
def skeleton(config: DecoderConfig) -> Decoder: ...


def skeleton(config: GPTConfig | DecoderConfig) -> GPT | Decoder:
    """The package's model of this config, on the meta device, with nothing drawn."""
    with torch.device("meta"), _Unfilled():
        return class_of(config)(config)


class _Unfilled(TorchFunctionMode):
    """A with-block that skips weight initialisation, because only the shapes are needed."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        fills = (Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_)
        if func in fills or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
