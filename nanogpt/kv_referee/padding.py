"""Batches of texts of different lengths, padded on the left or on the right.

What one pass without a cache does with padding is not the cache's fault: so that is compared with
each text alone first, and the cache then with that pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .contract import Model


@dataclass(frozen=True, eq=False)
class Padding:
    """A padded batch and the pieces in which it is read; all (B, T) but `texts`."""

    name: str
    ids: Tensor
    mask: Tensor  # 0 at padding
    texts: tuple[Tensor, ...]  # each without padding, (1, t)
    lengths: tuple[int, ...]
    right: bool = False

    def read(self, model: Model, cached: bool) -> Tensor:
        """The logits of all columns, 0 at padding.  -> (B, T, V)"""
        lengths = list(self.lengths) if cached else None
        logits = model.padded(self.ids, self.mask, lengths)
        return torch.where(self.mask[..., None] > 0, logits, 0)

    def unpadded(self, logits: list[Tensor]) -> Tensor:
        """Logits of each text alone, (t, V), at the columns of its tokens.  -> (B, T, V)"""
        placed = logits[0].new_zeros(*self.ids.shape, logits[0].shape[-1])
        for row, one in enumerate(logits):
            placed[row, self.mask[row] > 0] = one
        return placed


def left_padding(ids: Tensor, n: int) -> Padding:
    """Texts whose first columns are padding.  (B, T)"""
    rows = len(ids)
    n = n if rows < 4 else min(n, 48)
    pads = [min(pad, n - 4) for pad in (0, 5, n // 3, 1, n // 2, 2, 16, 3)][:rows]
    if rows == 2:
        pads = [3, 8]  # as if batches are padded to a multiple
    place = torch.arange(n) - torch.tensor(pads)[:, None]  # in its own text
    real = place >= 0
    ids = ids.gather(1, place.clamp(min=0))
    texts = tuple(row[seen][None] for row, seen in zip(ids, real, strict=True))
    lengths = (n // 2, 1, 1, 3, 1, n - n // 2 - 6)
    name = f"left padding of {rows} texts of {n} tokens"
    return Padding(name, ids, real.long(), texts, lengths)


def right_padding(ids: Tensor) -> Padding:
    """Prompts padded on the right, then single tokens: the padding stays in between.  (3, T)"""
    n = ids.shape[1]
    prompt = n // 2
    new = 6
    pads = torch.tensor([0, 3, n // 4])
    columns = torch.arange(prompt + new)
    padding = (columns >= prompt - pads[:, None]) & (columns < prompt)
    place = torch.where(padding, 0, columns - pads[:, None] * (columns >= prompt))
    padded = ids.gather(1, place)
    texts = tuple(row[~unseen][None] for row, unseen in zip(padded, padding, strict=True))
    lengths = (prompt, *[1] * new)
    name = f"right padding of prompts of {prompt} tokens"
    return Padding(name, padded, (~padding).long(), texts, lengths, right=True)
