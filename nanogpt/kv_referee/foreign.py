"""Classify exceptions of other libraries and models by their messages.

The type of such an exception does not say why it was raised, so only its message is left to read.
No other file here reads messages: our own exceptions have types and attributes.
"""

from __future__ import annotations

_FULL = ("pop from", "out of memory", "no free", "is full", "capacity", "exhausted", "pool")
UNSUPPORTED = ("not compatible", "not support", "only support", "unsupported", "expected a cache")


def cache_is_full(error: BaseException) -> bool:
    """Whether a model failed because its cache has no room left."""
    return _says(error, _FULL)


def cache_is_unsupported(error: BaseException) -> bool:
    """Whether a transformers model rejects this cache class."""
    return _says(error, UNSUPPORTED)


def _says(error: BaseException, phrases: tuple[str, ...]) -> bool:
    message = str(error).lower()
    return any(phrase in message for phrase in phrases)
