"""Exceptions of models and libraries that are not ours, told apart by their messages.

Such an exception has no type that says why it was raised, so its message is all there is to read.
Nothing else here reads messages: our own exceptions have types and attributes.
"""

from __future__ import annotations

FULL = ("pop from", "out of memory", "no free", "is full", "capacity", "exhausted", "pool")
UNSUPPORTED = ("not compatible", "not support", "only support", "unsupported", "expected a cache")


def cache_is_full(error: BaseException) -> bool:
    """Whether a model stops because its cache has no room left."""
    return _says(error, FULL)


def cache_is_unsupported(error: BaseException) -> bool:
    """Whether a model of transformers refuses this class of cache."""
    return _says(error, UNSUPPORTED)


def _says(error: BaseException, phrases: tuple[str, ...]) -> bool:
    message = str(error).lower()
    return any(phrase in message for phrase in phrases)
