"""Wrap any model that the referee accepts as a Subject."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..model import LanguageModel
from .contract import Given
from .huggingface import HuggingFace
from .ours import Ours
from .subjects import Subject


def subject_of(model: Any, caches: Sequence[Any] | None = None) -> Subject:
    """Wrap a model as a Subject; `caches` are the classes to try with a GPT. Raises ValueError."""
    if isinstance(model, nn.Module) and any(p.is_meta for p in model.parameters()):
        raise ValueError("the model is on the meta device, without data: load its weights")
    if caches is not None:
        classes = isinstance(caches, (list, tuple)) and caches and all(map(callable, caches))
        if not isinstance(model, LanguageModel) or not classes:
            raise ValueError(f"caches={caches!r}: pass classes, like [DynamicCache], and a GPT")
        return Ours(model, caches)
    if isinstance(model, Subject):
        return model
    reads = any(callable(getattr(model, name, None)) for name in ("start", "cached"))
    if callable(getattr(model, "plain", None)) and reads:
        return Given(model)
    if isinstance(model, LanguageModel) or all(
        hasattr(model, x) for x in ("blocks", "config", "modules")
    ):
        return Ours(model)
    if hasattr(model, "get_output_embeddings") and hasattr(model, "config"):
        return HuggingFace(model)
    raise ValueError(
        f"{type(model).__name__}: pass a GPT, a transformers model, a server's http://…, or an "
        f"object with plain(ids) and start(rows), as described in nanogpt.verify.contract"
    )
