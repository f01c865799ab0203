"""A model's weights as bytes, for an engine in another language: the live page's JavaScript."""

from __future__ import annotations

from torch import Tensor, nn

from ..decoder.pack import as_decoder
from ..model import LanguageModel
from .native import quantize


def packed(model: LanguageModel) -> bytes:
    """The tensors of a model in the order in which live_model.js reads them.

    Matrices are rounded to 8 bits as in Native8: codes, and a scale for each row. Everything else
    is float32.
    """
    model = as_decoder(model)
    parts: list[Tensor] = []
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            tensor = parameter.detach()
            if isinstance(module, nn.Linear) and tensor.ndim == 2:
                parts += quantize(tensor)
            else:
                parts.append(tensor)
    return b"".join(part.numpy().tobytes() for part in parts)
