"""Whatever a model returns, normalised to logits: (B, T, V), a tensor on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .errors import NoLogits


def logits_of(out: Any, ids: Tensor, call: str) -> Tensor:
    """Normalise what `call` returned to logits.  -> (B, T, V)

    If it returned those of the last token only, the earlier positions are +inf. Raises NoLogits
    for anything that is not logits.
    """
    # 1. The tensor.
    logits = _tensor_in(out)
    if logits is None:
        raise NoLogits(
            f"{call} returned {type(out).__name__}: logits must be a tensor or an array, "
            f"(B, T, V), by itself, first in a tuple, or as `logits` in a dict or on an object"
        )
    # 2. Its dimensions: (V,) for one token, (T, V) for one text, (B, V) for each one's last token.
    rows, n = ids.shape
    if logits.ndim == 1 and rows == 1:
        logits = logits[None, None]
    elif logits.ndim == 2:
        logits = logits[None] if rows == 1 and len(logits) == n else logits[:, None]
    if logits.ndim != 3 or not logits.is_floating_point():
        raise NoLogits(
            f"{call} returned {tuple(logits.shape)} of {logits.dtype} for {rows} texts of {n} "
            f"tokens: logits must be floats, (B, T, V), (T, V) or (B, V)"
        )
    if len(logits) != rows or logits.shape[1] not in (1, n):
        raise NoLogits(
            f"{call} returned {tuple(logits.shape)} for {rows} texts of {n} tokens: logits must be "
            f"(B, T, V), batch first, of all tokens or of the last"
        )
    # 3. Earlier tokens than the last one, if they have none.
    if n > 1 and logits.shape[1] == 1:
        before = logits.new_full((rows, n - 1, logits.shape[-1]), torch.inf)
        return torch.cat([before, logits], 1)
    return logits


def _tensor_in(out: Any) -> Tensor | None:
    """Extract the logits from what a model returned; None if there are none."""
    if isinstance(out, dict) and "logits" in out:
        out = out["logits"]
    elif getattr(out, "logits", None) is not None:
        out = out.logits
    elif isinstance(out, (tuple, list)) and out:
        out = out[0]
    if isinstance(out, Tensor):
        return out.detach().to("cpu")
    if hasattr(out, "__array__") and not isinstance(out, nn.Module):
        return torch.as_tensor(out.__array__())
    return None
