"""Lookup tables for the last characters."""

from __future__ import annotations

import torch.nn as nn
from torch import Tensor

from ..config.shapes import NGRAM_ROWS, GPTConfig


class NGrams(nn.Module):
    """Adds a row for the last two characters, and one for the last three, to a token's embedding.

    The rows are looked up, so this costs no arithmetic. A table has at most NGRAM_ROWS rows: the
    pairs of up to 128 characters have one each; triples share rows, by their number modulo
    NGRAM_ROWS. Before a text stands character 0 (the newline). Decoding needs the characters before
    a new one, so they are cached, as keys are.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config, self.vocab_size = config, config.vocab_size
        self.window = 3  # characters that it looks at
        rows = config.ngram_rows
        self.pairs = nn.Embedding(rows[0], config.n_embd)
        self.triples = nn.Embedding(rows[1], config.n_embd) if len(rows) > 1 else None
        self.cache = None

    def forward(self, idx: Tensor, pos: Tensor) -> Tensor:
        """(B, T), (T,) -> (B, T, C)"""
        idx = idx.long()  # a prompt may be int32; triples of a large vocabulary need more
        text, text_pos = idx, pos
        if self.cache is not None and not self.training:
            rows = idx[..., None]
            rows, _, text_pos = self.cache.update(rows, rows, pos)  # (B, S, 1), (S,)
            text = rows[..., 0]
        pair = _before(text, text_pos, pos, 1) * self.vocab_size + idx
        x = self.pairs(pair % NGRAM_ROWS)
        if self.triples is None:
            return x
        triple = _before(text, text_pos, pos, 2) * self.vocab_size**2 + pair
        return x + self.triples(triple % NGRAM_ROWS)


def _before(text: Tensor, text_pos: Tensor, pos: Tensor, steps: int) -> Tensor:
    """The characters `steps` before pos, or 0 if there is none.  (B, S), (S,), (T,) -> (B, T)"""
    match = text_pos[None, :] == pos[:, None] - steps  # (T, S)
    match &= text_pos[None, :] >= 0  # -1 marks an empty cache slot
    return text[:, match.int().argmax(1)] * match.any(1)
