"""Wrap any model that the referee accepts as a Subject."""

from __future__ import annotations

from typing import Any

from torch import nn

from .contract import Given
from .huggingface import HuggingFace
from .subjects import Subject


def subject_of(model: Any) -> Subject:
    """Wrap a model as a Subject. Raises ValueError."""
    if isinstance(model, nn.Module) and any(p.is_meta for p in model.parameters()):
        raise ValueError("the model is on the meta device, without data: load its weights")
    if isinstance(model, Subject):
        return model
    reads = any(callable(getattr(model, name, None)) for name in ("start", "cached"))
    if callable(getattr(model, "plain", None)) and reads:
        return Given(model)
    if hasattr(model, "get_output_embeddings") and hasattr(model, "config"):
        return HuggingFace(model)
    raise ValueError(
        f"{type(model).__name__}: pass a model of transformers, or an object with plain(ids) and "
        f"start(rows), as described in kv_referee/contract.py"
    )
