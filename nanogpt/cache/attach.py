"""Caches on and off: which modules of a model hold one, and for how long."""

from __future__ import annotations

from contextlib import contextmanager

import torch.nn as nn

from .dynamic import DynamicCache
from .static import StaticCache


def cache_owners(model: nn.Module) -> list[nn.Module]:
    """The modules that can hold a cache: every Head, or every batched attention."""
    return [m for m in model.modules() if "cache" in m.__dict__]


def enable_kv_cache(model: nn.Module, design=DynamicCache, max_len: int | None = None) -> None:
    """Give every attention module an empty cache, built by `design(max_len)` (default: block_size).

    Raises ValueError when one is already on, or when no module can hold one.
    """
    owners = cache_owners(model)
    if not owners:
        raise ValueError(
            "no attention module has a `cache` attribute: set self.cache = None in its __init__"
        )
    if any(owner.cache is not None for owner in owners):
        raise ValueError(
            "a KV cache is already on: leave its with-block, or call disable_kv_cache(model)"
        )
    caches = build_caches(owners, design, model.config.block_size if max_len is None else max_len)
    for owner, cache in zip(owners, caches, strict=True):
        owner.cache = cache


def build_caches(owners: list[nn.Module], design, max_len: int) -> list:
    """An empty cache for each module, or ValueError for a design that builds none.

    A design that rolls is told the module's window; where there is none, or none shorter than max_len,
    nothing may be forgotten, and a StaticCache of max_len rows stands in.
    """
    if not callable(design):
        raise ValueError(
            f"{design!r} is no cache design: pass the class, as in DynamicCache, not an instance"
        )
    if not isinstance(max_len, int) or max_len < 1:
        raise ValueError(f"max_len={max_len!r}: a cache holds a whole number of rows, at least 1")
    caches = [_empty_cache(owner, design, max_len) for owner in owners]
    if any(isinstance(cache, nn.Module) or not hasattr(cache, "update") for cache in caches):
        raise ValueError(
            f"{design!r} must build plain objects with update(k, v, pos), no nn.Module: a cache "
            f"is not part of the model"
        )
    return caches


def _empty_cache(owner: nn.Module, design, max_len: int):
    if not getattr(design, "rolls", False):
        return design(max_len)
    window = getattr(owner, "window", None)
    return (
        design(window, owner.config.sinks) if window and window < max_len else StaticCache(max_len)
    )


def disable_kv_cache(model: nn.Module) -> None:
    """Take all caches away; harmless when there are none."""
    for owner in cache_owners(model):
        owner.cache = None


@contextmanager
def kv_cache(model: nn.Module, design=DynamicCache, max_len: int | None = None):
    """Caches for the length of a with-block: empty at its start, gone at its end, however it ends."""
    enable_kv_cache(model, design, max_len)
    try:
        yield model
    finally:
        disable_kv_cache(model)


@contextmanager
def without_kv_cache(model: nn.Module):
    """Whatever caches are on are laid aside for the length of a with-block, untouched."""
    held = [(owner, owner.cache) for owner in cache_owners(model)]
    disable_kv_cache(model)
    try:
        yield model
    finally:
        for owner, cache in held:
            owner.cache = cache


def measured_bytes(model: nn.Module) -> int:
    """Bytes that the caches of this model hold now, from their tensors."""
    return sum(owner.cache.nbytes for owner in cache_owners(model) if owner.cache is not None)
