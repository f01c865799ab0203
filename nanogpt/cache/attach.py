"""Caches on and off: which modules of a model hold one, and for how long."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import torch.nn as nn

from ..config.checks import check_int
from .dynamic import DynamicCache
from .static import StaticCache

_attaching = threading.Lock()  # two threads must not both find that no cache is on


def cache_owners(model: nn.Module) -> list[nn.Module]:
    """The modules that can hold a cache: every Head, or every batched attention."""
    return [m for m in model.modules() if "cache" in m.__dict__]


def require_owners(model: nn.Module) -> list[nn.Module]:
    """cache_owners(model). Raises ValueError for a block without one: it would not see the past."""
    if not all(cache_owners(block) for block in model.blocks):
        why = "an attention module has no `cache` attribute, so it would not see what is cached"
        raise ValueError(f"{why}: set self.cache = None in its __init__, or decode without a cache")
    return cache_owners(model)


@contextmanager
def kv_cache(model: nn.Module, cache=DynamicCache, capacity: int | None = None):
    """Caches for the length of a with-block: empty at its start, gone at its end, however it ends.

    Each attention module gets one, built by `cache(capacity)` (default: block_size). Raises
    ValueError when caches are on already, and as build_caches does.
    """
    enable_kv_cache(model, cache, capacity)
    try:
        yield model
    finally:
        disable_kv_cache(model)


def enable_kv_cache(model: nn.Module, cache=DynamicCache, capacity: int | None = None) -> list:
    """What kv_cache does at its start. Returns the caches, one for each of cache_owners(model)."""
    owners = require_owners(model)
    capacity = model.config.block_size if capacity is None else capacity
    caches = build_caches(owners, cache, capacity)
    with _attaching:
        if any(owner.cache is not None for owner in owners):
            cure = "call disable_kv_cache(model), or take a copy.deepcopy(model) for this thread"
            raise ValueError(f"a KV cache is already on: leave its with-block, {cure}")
        for owner, built in zip(owners, caches, strict=True):
            owner.cache = built
    return caches


def disable_kv_cache(model: nn.Module) -> None:
    """Take all caches away; harmless when there are none."""
    for owner in cache_owners(model):
        owner.cache = None


def build_caches(owners: list[nn.Module], cache, capacity: int) -> list:
    """An empty cache for each module. Raises ValueError for a `cache` that builds none.

    `cache` is a class or a function of the capacity. A class that rolls gets its module's window;
    where there is none, or none shorter than the capacity, nothing may be forgotten, and a
    StaticCache of that capacity stands in.
    """
    if not callable(cache):
        raise ValueError(f"cache={cache!r}: pass the class, as in DynamicCache, not an instance")
    check_int("capacity", capacity, 1)
    caches = [_empty_cache(owner, cache, capacity) for owner in owners]
    if any(isinstance(built, nn.Module) or not hasattr(built, "update") for built in caches):
        need = "plain objects with update(k, v, pos), not an nn.Module"
        raise ValueError(f"cache={cache!r} must build {need}: a cache is not part of the model")
    return caches


def _empty_cache(owner: nn.Module, cache, capacity: int):
    if not getattr(cache, "rolls", False):
        try:
            return cache(capacity)
        except TypeError as error:
            raise ValueError(f"cache={cache!r} builds no cache: {error}") from error
    window = getattr(owner, "window", None)
    if window is None or window >= capacity:
        return StaticCache(capacity)
    return cache(window, owner.config.sinks)


def measured_bytes(model: nn.Module) -> int:
    """Bytes that the caches of this model hold now, from their tensors."""
    return sum(owner.cache.nbytes for owner in cache_owners(model) if owner.cache is not None)
