"""Steps computed by the model's own modules, over keys and values in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache.attach import require_owners
from ..decoding.decoder import ModuleDecoder
from ..model.gpt import GPT
from .step import Step


class ModuleBackend(ModuleDecoder):
    """The readable backend: both forms of the model, windows, GQA and rotary positions.

    PyTorch multiplies rectangles. So the texts of a step that read equally many tokens form one
    batch (B, T), in which each has its own positions: all that decode are one, and a chunk of a
    prompt is another. The model must not change while its texts are served. In exact mode the
    logits of a text are the same bits in any batch.
    """

    def __init__(self, model: GPT, n_blocks: int, block_len: int):
        super().__init__(model)
        self.caches = [BlockCache(n_blocks, block_len) for _ in require_owners(model)]

    @classmethod
    def supports(cls, model: GPT) -> str | None:
        """Why it cannot compute this model; None when it can."""
        if model.config.ngram_rows:
            return (
                f"serving keeps keys and values, and this model (ngrams={model.config.ngrams}) "
                f"needs its last characters too: use generate"
            )
        return None

    @torch.no_grad()
    def read(self, step: Step) -> Tensor:
        device, config = self.model.lm_head.weight.device, self.model.config
        dtype = self.model.lm_head.weight.dtype
        logits = torch.empty(len(step.tokens), config.vocab_size, dtype=dtype, device=device)
        with self.borrowed():
            for rows in rectangles(step.text):  # (B, T)
                pos, table = step.positions[rows], step.tables[step.text[rows[:, 0]]]
                for cache in self.caches:
                    cache.open(step.slots[rows], table, int(pos.max()) + 1)
                out = self.model(step.tokens[rows].to(device), pos=pos.to(device))[0]
                logits[rows.flatten().to(device)] = out.flatten(0, 1)
        return logits[step.wanted.to(device)]


def rectangles(text: Tensor) -> list[Tensor]:
    """The rows of a step, as a batch (B, T) for each number T of tokens that texts read in it."""
    counts = text.bincount()
    first = counts.cumsum(0) - counts
    return [first[counts == T][:, None] + torch.arange(T) for T in counts.unique().tolist()]


class BlockCache:
    """The keys and values of one layer, or of one Head: a cache whose texts lie in blocks.

    One block more than asked for takes what is written nowhere: index -1 is the last.
    """

    k = v = None  # (n_blocks + 1, H, block_len, hs), once it is known what they are like

    def __init__(self, n_blocks: int, block_len: int):
        self.n_blocks, self.block_len = n_blocks, block_len

    def open(self, slots: Tensor, tables: Tensor, length: int) -> None:
        """Slots (B, T) that the next update writes, and blocks (B, n) whose `length` it reads."""
        self.slots, self.tables, self.length = slots, tables, length

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store the new rows, and return all of each text.  (B, …, T, hs) -> (B, …, S, hs), (S,)

        Places past the end of a text hold old numbers: its positions are behind every query.
        """
        if self.k is None:
            shape = self.n_blocks + 1, *k.shape[1:-2], self.block_len, k.shape[-1]
            self.k, self.v = k.new_zeros(shape), v.new_zeros(shape)
        blocks, places = self.slots // self.block_len, self.slots % self.block_len
        for pool, new in ((self.k, k), (self.v, v)):
            pool.movedim(-2, 1)[blocks, places] = new.movedim(-2, 1)  # (B, T, …, hs)
        k_pos = torch.arange(self.length, device=k.device)
        return self._gathered(self.k), self._gathered(self.v), k_pos

    def _gathered(self, pool: Tensor) -> Tensor:
        """All positions of the open texts.  -> (B, …, S, hs)"""
        used = self.tables[:, : -(-self.length // self.block_len)].to(pool.device)
        return pool[used].movedim(1, -3).flatten(-3, -2)[..., : self.length, :]
