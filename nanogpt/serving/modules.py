"""Steps computed by the model's own modules, over keys and values in blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..cache.attach import require_owners
from ..decoding.decoder import ModuleDecoder
from ..model.gpt import GPT
from .step import StepInput


class ModuleBackend(ModuleDecoder):
    """The readable backend: both forms of the model, windows, GQA and rotary positions.

    PyTorch multiplies rectangles. So the sequences of a step that read equally many tokens form one
    batch (B, T), in which each has its own positions: all that decode are one, and a chunk of a
    prompt is another. The model must not change while it is served. In exact mode the logits of a
    sequence are the same bits in any batch.
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
                f"needs its last characters too: in Python, nanogpt.generate writes its texts"
            )
        return None

    @torch.no_grad()
    def read(self, step: StepInput) -> Tensor:
        device, logits = self.model.lm_head.weight.device, []
        groups = rectangles(step.sequences)  # (B, T) rows of the step, each
        with self.borrowed():
            for rows in groups:
                pos, tables = step.positions[rows], step.block_tables[step.sequences[rows[:, 0]]]
                index = SlotIndex(step.slot_mapping[rows], tables, int(pos.max()) + 1, device)
                for cache in self.caches:
                    cache.index = index
                out = self.model(step.tokens[rows].to(device), pos=pos.to(device))[0]
                logits.append(out.flatten(0, 1))
        order = torch.cat([rows.flatten() for rows in groups]).argsort()
        return torch.cat(logits)[order[step.wanted].to(device)]


def rectangles(sequences: Tensor) -> list[Tensor]:
    """The rows of a step, as a batch (B, T) for each number T of tokens that sequences read."""
    counts = sequences.bincount()
    first = counts.cumsum(0) - counts
    return [first[counts == T][:, None] + torch.arange(T) for T in counts.unique().tolist()]


class SlotIndex:
    """Where the keys of a rectangle of tokens go, and where those of its sequences lie.

    Of slots (B, T) and block tables (B, n); `length` positions are read. Every layer asks for the
    same.
    """

    def __init__(self, slots: Tensor, tables: Tensor, length: int, device: torch.device):
        self.slots, self.tables, self.length, self.device = slots, tables, length, device
        self.k_pos, self.known = torch.arange(length, device=device), None
        self.buffers = {}  # what was read; the next layer writes over it, as fresh memory is slow

    def rows(self, n_blocks: int, heads: int, block_len: int) -> tuple[Tensor, ...]:
        """What is kept of the new rows, and where; blocks to clear before, and those to read.

        The pool is (n_blocks, heads, block_len), and -1 is its last block, which stays 0. Kept are
        rows of B·H·T, written to rows of one slot each; cleared and read are rows of one block.
        A block is cleared when its first slot is written: 0 times what an earlier sequence left
        there may be NaN.  -> (≤ B·H·T,) twice, (n,), (B·H·n,)
        """
        if self.known is None:
            head = torch.arange(heads)
            slots = self.slots[:, None].expand(-1, heads, -1)  # (B, H, T)
            block, offset = slots // block_len, slots % block_len
            new = (block * heads + head[:, None]) * block_len + offset
            kept = (slots >= 0).flatten().nonzero()[:, 0]
            first = (block * heads + head[:, None])[(slots >= 0) & (offset == 0)]
            used = self.tables[:, : -(-self.length // block_len)] % n_blocks  # (B, n)
            read = used[:, None] * heads + head[:, None]  # (B, H, n)
            known = kept, new.flatten()[kept], first, read.flatten()
            self.known = tuple(rows.to(self.device) for rows in known)
        return self.known


class BlockCache:
    """The keys and values of one layer, or of one Head: a cache whose sequences lie in blocks.

    One block more than asked for stands where a shorter sequence has none.
    """

    k = v = index = None  # k, v (n_blocks + 1, H, block_len, hs) from the first update on

    def __init__(self, n_blocks: int, block_len: int):
        self.n_blocks, self.block_len = n_blocks + 1, block_len

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store the new rows, and return all of each sequence.

        Past its end stands 0: these positions are behind every query.
        (B, …, T, hs), (B, T) -> (B, …, S, hs) twice, (S,)
        """
        B, *heads, T, hs = k.shape
        if self.k is None:
            shape = self.n_blocks, *heads, self.block_len, hs
            self.k, self.v = k.new_zeros(shape), v.new_zeros(shape)
        index = self.index
        kept, write, first, read = index.rows(self.n_blocks, math.prod(heads), self.block_len)
        held = []
        for name, pool, new in (("k", self.k, k), ("v", self.v, v)):
            new, blocks = new.reshape(-1, hs), pool.view(-1, self.block_len * hs)
            if len(first):
                blocks.index_fill_(0, first, 0.0)
            pool.view(-1, hs).index_copy_(0, write, new if len(kept) == len(new) else new[kept])
            blocks = torch.index_select(blocks, 0, read, out=index.buffers.get(name))
            index.buffers[name] = blocks
            held.append(blocks.view(B, *heads, -1, hs)[..., : index.length, :])
        return *held, index.k_pos
