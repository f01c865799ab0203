"""Look-up tables for the last characters."""

from __future__ import annotations

import torch.nn as nn
from torch import Tensor

from ..config.shapes import NGRAM_ROWS, GPTConfig


class NGrams(nn.Module):
    """What the last two characters, and the last three, add to a token's embedding: look-up tables.

    They compute nothing. A table has at most NGRAM_ROWS rows: the pairs of up to 128 characters have one
    each, triples share them, the remainder of a triple's number saying which. Before a text stands
    character 0 (the newline). The characters before a new one must be known while decoding: they have
    a cache, as keys have.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config, self.vocab_size = config, config.vocab_size
        self.window = 3  # characters it looks at
        rows = config.ngram_rows
        self.pairs = nn.Embedding(rows[0], config.n_embd)
        self.triples = nn.Embedding(rows[1], config.n_embd) if len(rows) > 1 else None
        self.cache = None

    def forward(self, idx: Tensor, pos: Tensor) -> Tensor:
        """(B, T), (T,) -> (B, T, C)"""
        idx = idx.long()  # a prompt may be int32; triples of a large vocabulary need more
        text, places = idx, pos
        if self.cache is not None and not self.training:
            rows, _, places = self.cache.update(
                idx[..., None], idx[..., None], pos
            )  # (B, S, 1), (S,)
            text = rows[..., 0]
        pair = _before(text, places, pos, 1) * self.vocab_size + idx
        x = self.pairs(pair % NGRAM_ROWS)
        if self.triples is None:
            return x
        triple = _before(text, places, pos, 2) * self.vocab_size**2 + pair
        return x + self.triples(triple % NGRAM_ROWS)


def _before(text: Tensor, places: Tensor, pos: Tensor, steps: int) -> Tensor:
    """The characters `steps` places before pos, 0 where there is none.  (B, S), (S,), (T,) -> (B, T)"""
    match = places[None, :] == pos[:, None] - steps  # (T, S)
    match &= places[None, :] >= 0  # -1 marks an empty cache slot
    return text[:, match.int().argmax(1)] * match.any(1)
