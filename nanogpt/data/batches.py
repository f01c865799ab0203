"""Splits, windows and random batches of a tokenized text."""

from __future__ import annotations

import torch
from torch import Tensor

from .corpus import CorpusError


def split(tokens: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """The first 90 % for training, the rest for validation. Raises CorpusError if too short."""
    cut = int(0.9 * len(tokens))
    train, val = tokens[:cut], tokens[cut:]
    for name, part in (("training", train), ("validation", val)):
        if len(part) < block_size + 2:
            found = f"the {name} split is too short for block_size={block_size}: {len(part):,}"
            cure = f"take at least {10 * (block_size + 2):,} characters, or a smaller block_size"
            raise CorpusError(f"{found}; {cure}")
    return train, val


def windows(data: Tensor, starts: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Inputs and the same shifted by one.  (N,), (B,) -> (B, T), (B, T)"""
    rows = data[starts[:, None] + torch.arange(block_size + 1)]  # (B, T + 1)
    return rows[:, :-1], rows[:, 1:]


def random_batch(
    data: Tensor, block_size: int, batch: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A batch of windows at random places drawn from a CPU generator.  (N,) -> (B, T), (B, T)"""
    starts = torch.randint(len(data) - block_size, (batch,), generator=generator)
    return windows(data, starts, block_size)
