"""The KV cache of nanoVLM's language model around ours: one dictionary for each layer, and start_pos.

In https://github.com/huggingface/nanoVLM the caller holds the cache: `forward(x, kv_cache=None,
start_pos=0)` returns it with its result, a list with {"key": …, "value": …} for each layer, grown by
torch.cat. Here the same loop runs over any GPT of this package, whose own caches stay off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .model import GPT, cache_owners, without_kv_cache


class DictCache:
    """The rows of one dictionary, behind `update(k, v, pos)`."""

    def __init__(self, rows: dict[str, Tensor]):
        self.rows = rows

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.rows.values())

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All rows, the new ones last; they stand at 0, 1, 2, … of the text."""
        for name, new in (("key", k), ("value", v)):
            self.rows[name] = torch.cat([self.rows[name], new], dim=-2) if name in self.rows else new
        return (
            self.rows["key"],
            self.rows["value"],
            torch.arange(self.rows["key"].shape[-2], device=pos.device),
        )


def forward(
    model: GPT, idx: Tensor, kv_cache: list[dict[str, Tensor]] | None = None, start_pos: int = 0
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Logits of new tokens, and the cache with them in it.  (B, T) -> (B, T, V)

        logits, kv_cache = forward(model, prompt)                                    # prefill
        logits, kv_cache = forward(model, token, kv_cache, start_pos=prompt.shape[1])  # decode

    The list is the one given, its dictionaries are filled in place. Raises ValueError for a model
    in training mode, and for a start_pos that is not the number of rows that the cache holds.
    """
    owners = cache_owners(model)
    if model.training:
        raise ValueError("the model is in training mode, where no cache is looked at: call model.eval()")
    if kv_cache is None:
        kv_cache = [{} for _ in owners]
    if len(kv_cache) != len(owners):
        raise ValueError(f"kv_cache has {len(kv_cache)} dictionaries, the model {len(owners)} modules that "
                         f"cache: pass the list that forward returned")  # fmt: skip
    held = {rows["key"].shape[-2] if rows else 0 for rows in kv_cache}
    if held != {start_pos}:
        raise ValueError(f"start_pos={start_pos!r}, but the cache holds {sorted(held)} rows: it is "
                         f"where the new tokens stand, the number of those before")  # fmt: skip
    with without_kv_cache(model):
        try:
            for owner, rows in zip(owners, kv_cache, strict=True):
                owner.cache = DictCache(rows)
            logits, _ = model(idx, pos=torch.arange(start_pos, start_pos + idx.shape[1], device=idx.device))
        finally:
            for owner in owners:
                owner.cache = None
    return logits, kv_cache
