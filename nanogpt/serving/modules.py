"""Steps computed by the model's own modules, over keys and values in blocks.

A step mixes prefills and decodes of any number of sequences. It is one flat list of tokens: each
has its sequence and its position, and nothing is padded. Keys and values are stored in blocks of
`block_len` positions. Position p of sequence s is in slot block · block_len + p % block_len, where
block = block_tables[s, p // block_len].

The modules call a cache, as in `generate`: here a BlockCache, which writes the new keys to their
slots, and gathers all keys of each sequence side by side.
"""

from __future__ import annotations

from array import array
from itertools import chain
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import enable_kv_cache
from ..decoder.model import Decoder
from ..decoder.standard import not_standard
from ..generation import ModuleReader, check_filled
from ..model import LanguageModel
from .backend import LogitsBackend, StepInput
from .memory import unused_zeros
from .sequence import Sequence


def flat_step(batch: list[Sequence], block_len: int) -> StepInput:
    """The tokens to read, one sequence after another, and the locations of their blocks."""
    # 1. Collect a few numbers of each sequence in Python. Everything below is tensor arithmetic
    #    over all tokens at once, because a loop over tokens would take longer than a small model.
    tokens: list[int] = []
    facts: list[int] = []
    for seq in batch:
        start = seq.num_computed_tokens
        n = seq.num_scheduled_tokens
        tokens += seq.tokens[start : start + n]
        facts += (n, start, seq.num_cached_tokens, seq.wanted)
    counts, starts, cached, n_wanted = _tensor(facts).view(-1, 4).unbind(1)  # (S,) each
    # 2. Of each token: which sequence it belongs to, and its position there. Row first + i of the
    #    step is position start + i of its sequence.
    first = counts.cumsum(0) - counts  # the first row of each sequence in the step
    sequences = torch.arange(len(batch)).repeat_interleave(counts)  # (N,)
    positions = torch.arange(len(tokens)) - (first - starts)[sequences]
    # 3. Where its key and value go: look up the block in its sequence's table. A cached token is
    #    read again only for its logits; its block is shared, and must not be written to.
    longest = max(len(seq.block_table) for seq in batch)
    padded = [seq.block_table + [-1] * (longest - len(seq.block_table)) for seq in batch]
    tables = _tensor(list(chain.from_iterable(padded))).view(len(batch), longest)
    slots = tables[sequences, positions // block_len] * block_len + positions % block_len
    slots[positions < cached[sequences]] = -1  # already stored in a shared block
    # 4. Which logits are requested: those of the last `wanted` rows of each sequence.
    wanted = (torch.arange(len(tokens)) >= (first + counts - n_wanted)[sequences]).nonzero()[:, 0]
    return StepInput(_tensor(tokens), sequences, positions, slots, tables, wanted)


def _tensor(numbers: list[int]) -> Tensor:
    """Like torch.tensor(numbers), but several times faster."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64)


class ModuleBackend(ModuleReader, LogitsBackend):
    """The readable backend: any model that `generate` decodes, run by its own modules.

    PyTorch needs rectangular batches. So the sequences of a step that read the same number of
    tokens form one batch (B, T), in which each has its own positions: all decoding sequences are
    one batch, and a prompt chunk is another. In exact mode a sequence's logits are bit-identical in
    any batch.

    A model with its own code is called as `generate` calls it: one sequence at a time, at positions
    (T,), first the whole prompt and then token by token. Its code may support nothing else. The
    model must not change while it is served.
    """

    def __init__(self, model: LanguageModel, n_blocks: int, block_len: int):
        super().__init__(model)
        self.device = model.device
        self.own_code = not_standard(model) is not None
        self.whole_prompts = self.own_code
        # With a large vocabulary, a whole prompt's logits would take most of its memory.
        self.skips_logits = not self.own_code and type(model) is Decoder
        self.caches = enable_kv_cache(self.model, lambda _: BlockCache(n_blocks, block_len))

    @classmethod
    def refuses_model(cls, model: LanguageModel) -> str | None:
        return None  # it runs every model's own code

    @torch.no_grad()
    def read(self, step: StepInput) -> Tensor:
        """Store the step's keys and values, and return the logits of the wanted rows.  -> (W, V)

        All keys of a rectangle are stored before any of its queries attends to them.
        """
        logits = []
        computed = []  # the rows of the step whose logits are computed
        is_wanted = torch.zeros(len(step.tokens), dtype=torch.bool)
        is_wanted[step.wanted] = True
        # 1. Split the flat step into rectangles of tokens, each one forward pass.
        for rows in self.rectangles(step.sequences.bincount()):
            tokens = step.tokens[rows]
            pos = step.positions[rows]
            # 2. Tell the caches of all layers where this rectangle's keys and values go: attention
            #    passes only k, v and pos to `cache.update`.
            tables = step.block_tables[step.sequences[rows[:, 0]]]
            slots = step.slot_mapping[rows]
            length = int(pos.max()) + 1
            index = SlotIndex(slots, tables, length, self.device)
            for cache in self.caches:
                cache.index = index
                cache.length = int(pos[0, 0])
            # 3. Run the model. Its last logits are enough if nobody has asked for the others.
            pos = pos[0] if self.own_code else pos
            last = {}
            if self.skips_logits:
                last["last"] = max(1, int(is_wanted[rows].sum(1).max()))
                rows = rows[:, -last["last"] :]
            out = self.model(tokens.to(self.device), pos=pos.to(self.device), **last)[0]
            if not self.checked:
                self.check(step.tokens[rows], out)
                check_filled(0 if cache.k is None else None for cache in self.caches)
            logits.append(out.flatten(0, 1))
            computed.append(rows.flatten())
        # 4. Rectangles are in another order than the step: find the wanted rows among them.
        place = torch.empty(len(step.tokens), dtype=torch.int64)  # of a row among the computed ones
        place[torch.cat(computed)] = torch.arange(sum(map(len, computed)))
        return torch.cat(logits)[place[step.wanted].to(self.device)]

    def rectangles(self, counts: Tensor) -> list[Tensor]:
        """The rows of the step by rectangle, each (B, T); `counts` (S,) are rows per sequence."""
        first = counts.cumsum(0) - counts
        # Other code gets a sequence at a time, as from `generate`: (1, T), with positions (T,).
        if self.own_code:
            pairs = zip(first.tolist(), counts.tolist(), strict=True)
            return [start + torch.arange(n)[None] for start, n in pairs]
        # Otherwise all sequences with the same number of tokens are one batch: all that decode, and
        # usually one prompt chunk beside them.
        first = first[:, None]
        return [first[counts == T] + torch.arange(T) for T in counts.unique().tolist()]


class Rows(NamedTuple):
    """Where a cache's new rows go in its pool, and which of its blocks to read."""

    new: Tensor  # (N,) indices of those of the B·H·T new rows to store
    targets: Tensor  # (N,) slots to write them to
    cleared: Tensor  # blocks to clear first
    read: Tensor  # (B·H·n,) blocks to read


class SlotIndex:
    """Where a rectangle of tokens stores its keys, and where its sequences' keys are.

    From slots (B, T) and block tables (B, n); reads `length` positions. All layers share it.
    """

    def __init__(self, slots: Tensor, tables: Tensor, length: int, device: torch.device):
        self.slots = slots
        self.tables = tables
        self.length = length
        self.device = device
        self.k_pos = torch.arange(length, device=device)
        self.known: dict[tuple[int, int, int], Rows] = {}
        # For a layer's keys and values; the next layer reuses them, because allocating is slow.
        self.buffers: dict[tuple[str, torch.Size], Tensor] = {}

    def rows(self, n_blocks: int, heads: int, block_len: int) -> Rows:
        """The rows of a pool (n_blocks, heads, block_len); -1 is its last block, which stays 0.

        A block is cleared when its first slot is written, because 0 times an old number may be NaN.
        """
        pool = (n_blocks, heads, block_len)
        if pool not in self.known:
            # 1. In the pool each head has its own part of a block: slot by head by token.
            head = torch.arange(heads)
            slots = self.slots[:, None].expand(-1, heads, -1)  # (B, H, T)
            block = slots // block_len
            offset = slots % block_len
            targets = (block * heads + head[:, None]) * block_len + offset
            # 2. Write only what is not stored already, and clear the blocks that begin with it.
            new = (slots >= 0).flatten().nonzero()[:, 0]
            cleared = (block * heads + head[:, None])[(slots >= 0) & (offset == 0)]
            # 3. Read all blocks of each sequence, up to the longest of the rectangle.
            used = self.tables[:, : -(-self.length // block_len)] % n_blocks  # (B, n)
            read = (used[:, None] * heads + head[:, None]).flatten()  # (B·H·n,)
            parts = (new, targets.flatten()[new], cleared, read)
            self.known[pool] = Rows(*(part.to(self.device) for part in parts))
        return self.known[pool]


class BlockCache:
    """The keys and values of one layer, or of one Head: a cache that stores sequences in blocks.

    It has an extra block, which pads shorter sequences.
    """

    k: Tensor | None = None  # (n_blocks + 1, H, block_len, hs) from the first update on
    v: Tensor | None = None
    index: SlotIndex  # of the current rectangle: the backend sets it before each forward pass
    length = 0  # tokens held of its first sequence

    def __init__(self, n_blocks: int, block_len: int):
        self.n_blocks = n_blocks + 1
        self.block_len = block_len

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store the new rows, and return all rows of each sequence.

        Past its end a sequence is padded with 0, at positions after every query.
        (B, …, T, hs), (B, T) -> (B, …, S, hs) twice, (S,)
        """
        if k.shape != v.shape:
            raise ValueError(f"keys {tuple(k.shape)}, values {tuple(v.shape)}: must match")
        B, *heads, T, hs = k.shape
        # 1. The first update shows the heads, their size and their dtype: reserve all blocks.
        if self.k is None or self.v is None:
            shape = self.n_blocks, *heads, self.block_len, hs
            with torch.inference_mode(False):  # later steps write to them, in any mode
                self.k = unused_zeros(shape, k.dtype, k.device)
                self.v = unused_zeros(shape, k.dtype, k.device)
        index = self.index
        rows = index.rows(self.n_blocks, prod(heads), self.block_len)
        held = []
        for name, pool, new in (("k", self.k, k), ("v", self.v, v)):
            new = new.reshape(-1, hs)
            blocks = pool.view(-1, self.block_len * hs)
            # 2. Store the new rows, each in its slot. Sequences of one rectangle have different
            #    positions, so the rows of a batch go to scattered places.
            if len(rows.cleared):
                blocks.index_fill_(0, rows.cleared, 0.0)
            new = new if len(rows.new) == len(new) else new[rows.new]
            pool.view(-1, hs).index_copy_(0, rows.targets, new)
            # 3. Copy the blocks of each sequence side by side, as attention needs them. This copy
            #    is what native code avoids: it reads the blocks where they are.
            buffer = (name, pool.shape)
            blocks = torch.index_select(blocks, 0, rows.read, out=index.buffers.get(buffer))
            index.buffers[buffer] = blocks
            held.append(blocks.view(B, *heads, -1, hs)[..., : index.length, :])
        self.length = index.length
        return held[0], held[1], index.k_pos
