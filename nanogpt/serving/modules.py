"""Steps computed by the model's own modules, over keys and values in blocks.

A step mixes prefills and decodes of any number of sequences. It is one flat list of tokens: each
has its sequence and its position, and nothing is padded. Keys and values lie in blocks of
`block_len` positions. Position p of sequence s is held in slot block · block_len + p % block_len of
block = block_tables[s, p // block_len].
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
from ..generation import ModuleDecoder, check_filled
from ..model import LanguageModel
from .memory import unused_zeros
from .sequence import Sequence


class StepInput(NamedTuple):
    """N tokens of S sequences. Those of a sequence stand side by side, in its own order.

    All tensors are int64, contiguous, on the CPU. A query sees the keys of its own sequence, up to
    its own position, and no other. Slots past the last position of a sequence hold numbers of an
    earlier one, NaN perhaps: they must not even be multiplied by 0.
    """

    tokens: Tensor  # (N,)
    sequences: Tensor  # (N,): the row of `block_tables` that the token belongs to, ascending
    positions: Tensor  # (N,): in the sequence, not in the step
    slot_mapping: Tensor  # (N,): the slot where its key and value go; -1: held already
    block_tables: Tensor  # (S, longest): the blocks of each, in order; -1 after the last one
    wanted: Tensor  # (W,): the rows of the step whose logits are requested, ascending; may be none


def flat_step(batch: list[Sequence], block_len: int) -> StepInput:
    """The tokens that are to be read, one after another, and where their blocks lie."""
    tokens = []
    facts = []
    for seq in batch:
        start = seq.num_computed_tokens
        n = seq.num_scheduled_tokens
        tokens += seq.tokens[start : start + n]
        facts += (n, start, seq.num_cached_tokens, seq.wanted)
    counts, starts, cached, n_wanted = _tensor(facts).view(-1, 4).unbind(1)  # (S,) each
    first = counts.cumsum(0) - counts  # where each sequence begins in the step
    sequences = torch.arange(len(batch)).repeat_interleave(counts)  # (N,)
    positions = torch.arange(len(tokens)) - (first - starts)[sequences]
    longest = max(len(seq.block_table) for seq in batch)
    padded = [seq.block_table + [-1] * (longest - len(seq.block_table)) for seq in batch]
    tables = _tensor(list(chain.from_iterable(padded))).view(len(batch), longest)
    slots = tables[sequences, positions // block_len] * block_len + positions % block_len
    slots[positions < cached[sequences]] = -1  # held by a block that sequences share
    wanted = (torch.arange(len(tokens)) >= (first + counts - n_wanted)[sequences]).nonzero()[:, 0]
    return StepInput(_tensor(tokens), sequences, positions, slots, tables, wanted)


def _tensor(numbers: list[int]) -> Tensor:
    """The same as torch.tensor(numbers), several times faster."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64)


class ModuleBackend(ModuleDecoder):
    """The readable backend: any model that `generate` decodes, by its own modules.

    PyTorch multiplies rectangles. So the sequences of a step that read equally many tokens form one
    batch (B, T), in which each has its own positions: all that decode are one, and a chunk of a
    prompt is another. In exact mode the logits of a sequence are the same bits in any batch.

    A model with code of its own is called as `generate` calls it: one sequence at a time, at
    positions (T,), first the whole prompt and then token by token. Its code may know nothing else.
    The model must not change while it is served.
    """

    def __init__(self, model: LanguageModel, n_blocks: int, block_len: int):
        super().__init__(model)
        self.own_code = not_standard(model) is not None
        # A large vocabulary's logits of a whole prompt are most of the memory that it takes.
        self.skips_logits = not self.own_code and type(model) is Decoder
        self.caches = enable_kv_cache(self.model, lambda _: BlockCache(n_blocks, block_len))

    @property
    def whole_prompts(self) -> bool:
        """Whether a prompt must be read in one step, from its beginning."""
        return self.own_code

    @classmethod
    def supports(cls, model: LanguageModel) -> str | None:
        """Why it cannot compute this model: None, as it computes every one."""
        return None

    @torch.no_grad()
    def read(self, step: StepInput) -> Tensor:
        """Store the step's keys and values, then the logits of the wanted rows.  -> (W, V)

        All keys of a rectangle are stored before any of its queries looks.
        """
        device = self.model.device
        logits = []
        counts = step.sequences.bincount()
        groups = self.rectangles(counts)
        is_wanted = torch.zeros(len(step.tokens), dtype=torch.bool)
        is_wanted[step.wanted] = True
        computed = []  # the rows of the step whose logits are computed
        for rows in groups:
            tokens = step.tokens[rows]
            pos = step.positions[rows]
            tables = step.block_tables[step.sequences[rows[:, 0]]]
            slots = step.slot_mapping[rows]
            length = int(pos.max()) + 1
            index = SlotIndex(slots, tables, length, device)
            for cache in self.caches:
                cache.index = index
                cache.length = int(pos[0, 0])
            pos = pos[0] if self.own_code else pos
            last = {}
            if self.skips_logits:
                last["last"] = max(1, int(is_wanted[rows].sum(1).max()))
                rows = rows[:, -last["last"] :]
            out = self.model(tokens.to(device), pos=pos.to(device), **last)[0]
            if not self.checked:
                self.check(step.tokens[rows], out)
                check_filled(0 if cache.k is None else None for cache in self.caches)
            logits.append(out.flatten(0, 1))
            computed.append(rows.flatten())
        place = torch.empty(len(step.tokens), dtype=torch.int64)  # of a row among the computed ones
        place[torch.cat(computed)] = torch.arange(sum(map(len, computed)))
        return torch.cat(logits)[place[step.wanted].to(device)]

    def rectangles(self, counts: Tensor) -> list[Tensor]:
        """The rows of the step that are read at once; `counts` (S,) are each sequence's.  (B, T)"""
        first = counts.cumsum(0) - counts
        if self.own_code:
            pairs = zip(first.tolist(), counts.tolist(), strict=True)
            return [start + torch.arange(n)[None] for start, n in pairs]
        first = first[:, None]
        return [first[counts == T] + torch.arange(T) for T in counts.unique().tolist()]


class Rows(NamedTuple):
    """Where the new rows of one cache go in its pool, and which blocks of it are read."""

    new: Tensor  # (N,) of the B·H·T new rows, those that are stored
    targets: Tensor  # (N,) slots, to which they are written
    cleared: Tensor  # blocks to clear before
    read: Tensor  # (B·H·n,) blocks to read


class SlotIndex:
    """Where the keys of a rectangle of tokens go, and where those of its sequences lie.

    Of slots (B, T) and block tables (B, n); `length` positions are read. Every layer has the same.
    """

    def __init__(self, slots: Tensor, tables: Tensor, length: int, device):
        self.slots = slots
        self.tables = tables
        self.length = length
        self.device = device
        self.k_pos = torch.arange(length, device=device)
        self.known: dict[tuple, Rows] = {}
        # Of a layer's keys and values; the next layer writes over them, as fresh memory is slow.
        self.buffers = {}

    def rows(self, n_blocks: int, heads: int, block_len: int) -> Rows:
        """The rows of a pool (n_blocks, heads, block_len); -1 is its last block, which stays 0.

        A block is cleared when its first slot is written: 0 times an old number may be NaN.
        """
        pool = (n_blocks, heads, block_len)
        if pool not in self.known:
            head = torch.arange(heads)
            slots = self.slots[:, None].expand(-1, heads, -1)  # (B, H, T)
            block = slots // block_len
            offset = slots % block_len
            targets = (block * heads + head[:, None]) * block_len + offset
            new = (slots >= 0).flatten().nonzero()[:, 0]
            cleared = (block * heads + head[:, None])[(slots >= 0) & (offset == 0)]
            used = self.tables[:, : -(-self.length // block_len)] % n_blocks  # (B, n)
            read = (used[:, None] * heads + head[:, None]).flatten()  # (B·H·n,)
            parts = (new, targets.flatten()[new], cleared, read)
            self.known[pool] = Rows(*(part.to(self.device) for part in parts))
        return self.known[pool]


class BlockCache:
    """The keys and values of one layer, or of one Head: a cache whose sequences lie in blocks.

    One block more than asked for stands where a shorter sequence has none.
    """

    k = None  # (n_blocks + 1, H, block_len, hs) from the first update on
    v = None
    index = None  # the SlotIndex of the rectangle that is read
    length = 0  # tokens of its first sequence that are held

    def __init__(self, n_blocks: int, block_len: int):
        self.n_blocks = n_blocks + 1
        self.block_len = block_len

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store the new rows, and return all of each sequence.

        Past its end stands 0: these positions are behind every query.
        (B, …, T, hs), (B, T) -> (B, …, S, hs) twice, (S,)
        """
        if k.shape != v.shape:
            raise ValueError(f"keys {tuple(k.shape)}, values {tuple(v.shape)}: must be alike")
        B, *heads, T, hs = k.shape
        if self.k is None:
            shape = self.n_blocks, *heads, self.block_len, hs
            with torch.inference_mode(False):  # written to in later steps, in any mode
                self.k = unused_zeros(shape, k.dtype, k.device)
                self.v = unused_zeros(shape, k.dtype, k.device)
        index = self.index
        rows = index.rows(self.n_blocks, prod(heads), self.block_len)
        held = []
        for name, pool, new in (("k", self.k, k), ("v", self.v, v)):
            new = new.reshape(-1, hs)
            blocks = pool.view(-1, self.block_len * hs)
            if len(rows.cleared):
                blocks.index_fill_(0, rows.cleared, 0.0)
            new = new if len(rows.new) == len(new) else new[rows.new]
            pool.view(-1, hs).index_copy_(0, rows.targets, new)
            buffer = (name, pool.shape)
            blocks = torch.index_select(blocks, 0, rows.read, out=index.buffers.get(buffer))
            index.buffers[buffer] = blocks
            held.append(blocks.view(B, *heads, -1, hs)[..., : index.length, :])
        self.length = index.length
        return *held, index.k_pos
