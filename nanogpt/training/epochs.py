"""The fast trainer's batches: every window of the text once, before any comes again."""

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

from ..data import windows


class Epochs:
    """Sample windows without replacement: the whole text in a random order, epoch after epoch.

    Every epoch cuts the text at different offsets. The windows of a step depend only on its number,
    so a resumed run needs no saved state.
    """

    def __init__(self, data: Tensor, seed: int):
        self.data = data
        self.seed = seed
        self._order = lru_cache(maxsize=2)(self._drawn_order)  # a batch may end in the next epoch

    def batch(self, stage: int, block_size: int, first: int, n: int) -> tuple[Tensor, Tensor]:
        """Windows `first` to `first + n` of a stage of a run.  2 × (n, block_size)"""
        # The windows of all epochs are numbered consecutively, and batches are slices of them. A
        # batch may begin in one epoch and end in a later one.
        size = max(1, (len(self.data) - block_size) // block_size)  # windows in an epoch
        epochs = range(first // size, (first + n - 1) // size + 1)
        orders = [self._order(stage, block_size, epoch, size) for epoch in epochs]
        return windows(self.data, torch.cat(orders)[first % size :][:n], block_size)

    def _drawn_order(self, stage: int, block_size: int, epoch: int, size: int) -> Tensor:
        """The start offsets of an epoch's windows, shuffled.  (size,)"""
        # Each epoch has its own generator, seeded with its numbers, so any epoch can be reproduced
        # by itself.
        numbers = f"{self.seed},{stage},{block_size},{epoch}".encode()
        generator = torch.Generator().manual_seed(int(hashlib.sha256(numbers).hexdigest()[:14], 16))
        spare = len(self.data) - size * block_size  # at least one character follows a window
        # A random offset: from epoch to epoch a character changes its position in its window.
        offset = torch.randint(min(block_size, spare), (1,), generator=generator)
        return torch.randperm(size, generator=generator) * block_size + offset
