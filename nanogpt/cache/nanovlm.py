"""nanoVLM's cache interface, over any GPT of this package, whose own caches stay off.

In https://github.com/huggingface/nanoVLM the caller holds the cache: `forward(x, kv_cache=None,
start_pos=0)` returns it with its result, a list with {"key": …, "value": …} for each layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attach import require_owners, without_kv_cache


class DictCache:
    """The keys and values of one dictionary, grown by torch.cat, behind `update(k, v, pos)`."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors = tensors

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All tokens, the new ones last, at positions 0, 1, 2, …"""
        held = self.tensors
        for name, new in (("key", k), ("value", v)):
            held[name] = torch.cat([held[name], new], dim=-2) if name in held else new
        k, v = held["key"], held["value"]
        return k, v, torch.arange(k.shape[-2], device=pos.device)


def forward(
    model: nn.Module,
    idx: Tensor,
    kv_cache: list[dict[str, Tensor]] | None = None,
    start_pos: int = 0,
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Logits of new tokens, and the cache with these tokens in it.  (B, T) -> (B, T, V)

        logits, kv_cache = forward(model, prompt)                                    # prefill
        logits, kv_cache = forward(model, token, kv_cache, start_pos=prompt.shape[1])  # decode

    The dictionaries of the list are changed in place. Raises ValueError for a model in training
    mode, for attention that cannot cache, and for a start_pos that is not the number of tokens in
    the cache.
    """
    owners = require_owners(model)
    if model.training:
        raise ValueError("the model is in training mode, where caches are off: call model.eval()")
    kv_cache = [{} for _ in owners] if kv_cache is None else kv_cache
    if len(kv_cache) != len(owners):
        raise ValueError(
            f"kv_cache has {len(kv_cache)} dictionaries, the model {len(owners)} modules that "
            f"cache: pass the list that forward returned"
        )
    held = {tensors["key"].shape[-2] if tensors else 0 for tensors in kv_cache}
    if held != {start_pos}:
        raise ValueError(
            f"start_pos={start_pos!r}, but the cache holds {sorted(held)} tokens: pass their number"
        )
    pos = torch.arange(start_pos, start_pos + idx.shape[1], device=idx.device)
    with without_kv_cache(model):
        try:
            for owner, tensors in zip(owners, kv_cache, strict=True):
                owner.cache = DictCache(tensors)
            logits, _ = model(idx, pos=pos)
        finally:
            for owner in owners:
                owner.cache = None
    return logits, kv_cache
