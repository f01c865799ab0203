"""The cache interfaces of two other projects, TinyTorch's and nanoVLM's, on top of ours.

In https://github.com/huggingface/nanoVLM the caller holds the cache: `forward(x, kv_cache=None,
start_pos=0)` returns it with its result, a list with {"key": …, "value": …} for each layer, grown by
torch.cat. Here the same loop runs over any GPT of this package, whose own caches stay off."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attach import cache_owners, without_kv_cache
from .base import KVCache
from .dynamic import DynamicCache


class LayerCaches:
    """The caches of all layers as one object: update, get, advance, reset, get_memory_usage.

    The interface of the KV cache in TinyTorch (https://mlsysbook.ai/tinytorch), on top of either
    design. There is no position to pass: rows go to the place that `advance` has reached.

        for layer in range(n_layer):
            caches.update(layer, k, v)  # (…, T, hs), T new rows
            k, v = caches.get(layer)    # (…, S, hs), all rows so far, the new ones included
        caches.advance(T)               # once for all layers, when the step is done
    """

    def __init__(self, n_layer: int, design=DynamicCache, max_len: int | None = None):
        if not isinstance(n_layer, int) or n_layer < 1:
            raise ValueError(f"n_layer={n_layer!r}: a whole number of at least 1 is needed")
        if getattr(design, "rolls", False):
            raise ValueError(
                f"{design.__name__} forgets rows, and get() gives all of them: take another design"
            )
        self.caches = [design(max_len) for _ in range(n_layer)]
        self.reset()

    def update(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the new rows of one layer. Raises ValueError for a layer that has had its rows."""
        cache = self._cache(layer)
        if not isinstance(k, Tensor) or k.ndim < 2:
            raise ValueError("the new rows are tensors of shape (…, T, hs), keys and values")
        if cache.length > self.length:
            raise ValueError(
                f"layer {layer} has rows up to {cache.length} already: call advance() after a step"
            )
        cache.update(k, v, torch.arange(self.length, self.length + k.shape[-2], device=k.device))

    def get(self, layer: int) -> tuple[Tensor, Tensor]:
        """All rows of one layer, the present step's too. Raises ValueError when there are none."""
        cache = self._cache(layer)
        if cache.k is None:
            raise ValueError(f"layer {layer} holds nothing yet: update it first")
        return tuple(x[..., : cache.length, :] for x in cache.rows())

    def advance(self, n: int = 1) -> None:
        """The step is done: n more places are filled in every layer. Raises ValueError if they are not."""
        if not isinstance(n, int):
            raise ValueError(f"advance({n!r}): a whole number of rows is needed")
        lengths = [cache.length for cache in self.caches]
        if set(lengths) != {self.length + n}:
            raise ValueError(
                f"advance({n}) from {self.length}, but the layers hold {lengths} rows: update "
                f"each layer once, with {n} rows"
            )
        self.length += n

    def rewind(self, n: int) -> None:
        """Forget the last n places in every layer. Raises ValueError in the middle of a step."""
        lengths = [cache.length for cache in self.caches]
        if set(lengths) != {self.length}:
            raise ValueError(
                f"rewind({n!r}) at {self.length}, but the layers hold {lengths} rows: advance() "
                f"first"
            )
        for cache in self.caches:
            cache.rewind(n)  # all hold as many rows: what the first refuses, nobody has done
        self.length -= n

    def reset(self) -> None:
        """Forget everything, for another text."""
        for cache in self.caches:
            cache.reset()
        self.length = 0

    def get_memory_usage(self) -> dict[str, float]:
        """What K and V of all layers take, held or reserved, measured from the tensors (MB = 10⁶ bytes)."""
        total = sum(cache.nbytes for cache in self.caches)
        return {
            "total_bytes": total,
            "total_mb": total / 1e6,
            "per_layer_mb": total / 1e6 / len(self.caches),
            "cache_tensors": 2 * sum(cache.k is not None for cache in self.caches),
        }

    def _cache(self, layer: int) -> KVCache:
        if not isinstance(layer, int) or not 0 <= layer < len(self.caches):
            raise ValueError(
                f"layer {layer!r} does not exist: there are {len(self.caches)}, 0 to "
                f"{len(self.caches) - 1}"
            )
        return self.caches[layer]


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
            self.rows[name] = (
                torch.cat([self.rows[name], new], dim=-2) if name in self.rows else new
            )
        return (
            self.rows["key"],
            self.rows["value"],
            torch.arange(self.rows["key"].shape[-2], device=pos.device),
        )


def forward(
    model: nn.Module,
    idx: Tensor,
    kv_cache: list[dict[str, Tensor]] | None = None,
    start_pos: int = 0,
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Logits of new tokens, and the cache with them in it.  (B, T) -> (B, T, V)

        logits, kv_cache = forward(model, prompt)                                    # prefill
        logits, kv_cache = forward(model, token, kv_cache, start_pos=prompt.shape[1])  # decode

    The list is the one given, its dictionaries are filled in place. Raises ValueError for a model
    in training mode, and for a start_pos that is not the number of rows that the cache holds.
    """
    owners = cache_owners(model)
    if model.training:
        raise ValueError(
            "the model is in training mode, where no cache is looked at: call model.eval()"
        )
    if kv_cache is None:
        kv_cache = [{} for _ in owners]
    if len(kv_cache) != len(owners):
        raise ValueError(
            f"kv_cache has {len(kv_cache)} dictionaries, the model {len(owners)} modules that "
            f"cache: pass the list that forward returned"
        )
    held = {rows["key"].shape[-2] if rows else 0 for rows in kv_cache}
    if held != {start_pos}:
        raise ValueError(
            f"start_pos={start_pos!r}, but the cache holds {sorted(held)} rows: it is "
            f"where the new tokens stand, the number of those before"
        )
    with without_kv_cache(model):
        try:
            for owner, rows in zip(owners, kv_cache, strict=True):
                owner.cache = DictCache(rows)
            logits, _ = model(
                idx, pos=torch.arange(start_pos, start_pos + idx.shape[1], device=idx.device)
            )
        finally:
            for owner in owners:
                owner.cache = None
    return logits, kv_cache
