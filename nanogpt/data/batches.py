"""Splits, windows and random batches of a tokenized text."""

from __future__ import annotations

import hashlib

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


class Epochs:
    """Windows without replacement: all of the text once, in a drawn order, then all of it again.

    Every epoch cuts the text at other places. Which windows a step gets follows from its number
    alone, so a run that is resumed needs nothing saved for it.
    """

    def __init__(self, data: Tensor, seed: int):
        self.data = data
        self.seed = seed
        self._order: tuple[tuple, Tensor] = ((), torch.empty(0))  # of the newest epoch

    def batch(self, stage: int, block_size: int, first: int, n: int) -> tuple[Tensor, Tensor]:
        """Windows `first` to `first + n` of that stage of a run.  2 × (n, block_size)"""
        places = []
        while n:
            starts = self._starts(stage, block_size, first)[:n]
            places.append(starts)
            first += len(starts)
            n -= len(starts)
        return windows(self.data, torch.cat(places), block_size)

    def _starts(self, stage: int, block_size: int, first: int) -> Tensor:
        """Where window `first` begins, and all that follow it in its epoch."""
        size = max(1, (len(self.data) - block_size) // block_size)  # windows of an epoch
        epoch = first // size
        key = (self.seed, stage, block_size, epoch)
        if self._order[0] != key:
            generator = torch.Generator().manual_seed(_mixed(*key))
            spare = len(self.data) - size * block_size  # at least one character follows a window
            offset = int(torch.randint(min(block_size, spare), (1,), generator=generator))
            order = torch.randperm(size, generator=generator) * block_size + offset
            self._order = (key, order)
        return self._order[1][first % size :]


def _mixed(*numbers: int) -> int:
    """One seed of several numbers: other numbers, another seed."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
