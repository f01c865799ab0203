"""What a model refuses to read, in words: shapes, unknown tokens, positions."""

from __future__ import annotations

from torch import Tensor

from ..cache.base import check_ascending


def check_shape(idx: Tensor) -> None:
    """Raises ValueError unless these are tokens (B, T), at least one of them."""
    if idx.ndim != 2 or 0 in idx.shape:
        raise ValueError(
            f"the tokens have shape {tuple(idx.shape)}: (B, T) is needed, at least one token"
        )


def unknown_tokens(idx: Tensor, vocab_size: int) -> ValueError:
    """The error for tokens of which some are not in the vocabulary."""
    low, high = map(int, idx.aminmax())
    return ValueError(
        f"tokens {low} to {high}: the vocabulary has 0 to {vocab_size - 1}; pass what its own "
        f"tokenizer encodes"
    )


def check_order(pos: Tensor, limit: int | None) -> None:
    """Raises ValueError for positions that do not ascend or are not in the table."""
    check_ascending(pos)
    low, high = map(int, pos.aminmax())
    if low < 0 or (limit is not None and high >= limit):
        rows = f"the position table has rows 0 to {limit - 1}" if limit else "a text begins at 0"
        raise ValueError(f"positions {low} to {high}, but {rows}")
