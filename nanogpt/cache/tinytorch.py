"""TinyTorch's cache interface, over any cache of this package.

https://mlsysbook.ai/tinytorch has one object for all layers: update, get, advance, reset,
get_memory_usage. No position is passed: tokens go to the place that `advance` has reached.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..config.checks import check_int
from .base import KVCache
from .dynamic import DynamicCache


class LayerCaches:
    """The caches of all layers as one object.

    for layer in range(n_layer):
        caches.update(layer, k, v)  # (…, T, hs), T new tokens
        k, v = caches.get(layer)    # (…, S, hs), all tokens so far, the new ones included
    caches.advance(T)               # once for all layers, when the step is done
    """

    def __init__(self, n_layer: int, cache=DynamicCache, capacity: int | None = None):
        check_int("n_layer", n_layer, 1)
        if getattr(cache, "rolls", False):
            raise ValueError(
                f"{cache.__name__} forgets tokens, and get() returns all of them: use another cache"
            )
        self.caches = [cache(capacity) for _ in range(n_layer)]
        self.reset()

    def update(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the new tokens of one layer. Raises ValueError for a layer that has them."""
        cache = self._cache(layer)
        if cache.length > self.length:
            raise ValueError(
                f"layer {layer} holds {cache.length} tokens already: call advance() after a step"
            )
        cache.update(k, v, torch.arange(self.length, self.length + k.shape[-2], device=k.device))

    def get(self, layer: int) -> tuple[Tensor, Tensor]:
        """All tokens of one layer, this step's too. Raises ValueError when there are none."""
        cache = self._cache(layer)
        if cache.k is None:
            raise ValueError(f"layer {layer} holds nothing yet: update it first")
        return tuple(x[..., : cache.length, :] for x in cache.tensors())

    def advance(self, n: int = 1) -> None:
        """The step is done: every layer holds n tokens more. Raises ValueError otherwise."""
        check_int("advance: n", n, 0)
        self._check_lengths(f"advance({n})", self.length + n)
        self.length += n

    def rewind(self, n: int) -> None:
        """Forget the last n tokens in every layer. Raises ValueError in the middle of a step."""
        self._check_lengths(f"rewind({n!r})", self.length)
        for cache in self.caches:
            cache.rewind(n)  # all hold as many tokens: if one refuses, the first does
        self.length -= n

    def reset(self) -> None:
        """Forget everything. Another text may follow."""
        for cache in self.caches:
            cache.reset()
        self.length = 0

    def get_memory_usage(self) -> dict[str, float]:
        """Memory of all K and V, held or reserved, measured from the tensors (MB = 10⁶ bytes)."""
        total = sum(cache.nbytes for cache in self.caches)
        return {
            "total_bytes": total,
            "total_mb": total / 1e6,
            "per_layer_mb": total / 1e6 / len(self.caches),
            "cache_tensors": 2 * sum(cache.k is not None for cache in self.caches),
        }

    def _cache(self, layer: int) -> KVCache:
        check_int("layer", layer, 0, len(self.caches) - 1)
        return self.caches[layer]

    def _check_lengths(self, what: str, expected: int) -> None:
        lengths = [cache.length for cache in self.caches]
        if set(lengths) != {expected}:
            raise ValueError(
                f"{what} at {self.length} tokens, but the layers hold {lengths}, not {expected}: "
                f"update each layer once in a step, then advance()"
            )
