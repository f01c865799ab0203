"""What one step reads, as plain tensors, and what a backend must be to read it.

A step mixes prefills and decodes of any number of sequences. It is one flat list of tokens: each
has its sequence and its position, and nothing is padded. Keys and values lie in blocks of
`block_len` positions. Position p of sequence s is held in slot block · block_len + p % block_len of
block = block_tables[s, p // block_len].
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..model.gpt import GPT
from .request import Sequence


class StepInput(NamedTuple):
    """N tokens of S sequences. Those of a sequence stand side by side, in its own order.

    All tensors are int64, contiguous, on the CPU. A query sees the keys of its own sequence, up to
    its own position, and no other. Slots past the last position of a sequence hold what an earlier
    one left there, NaN perhaps: they must not even be multiplied by 0.
    """

    tokens: Tensor  # (N,)
    sequences: Tensor  # (N,): the row of `block_tables` that the token belongs to, ascending
    positions: Tensor  # (N,): in the sequence, not in the step
    slot_mapping: Tensor  # (N,): the slot where its key and value go; -1: held already
    block_tables: Tensor  # (S, longest): the blocks of each, in order; -1 after the last one
    wanted: Tensor  # (W,): the rows of the step whose logits are asked for, ascending; may be none


class Backend(Protocol):
    """A model that reads steps, and the keys and values of all blocks, of every layer.

    One with `draws = True` has NativeBackend's methods `most_steps` and `draw` in place of `read`.
    """

    @classmethod
    def supports(cls, model: GPT) -> str | None:
        """Why this backend cannot compute this model, in one line; None when it can."""

    def __init__(self, model: GPT, n_blocks: int, block_len: int):
        """Reserve `n_blocks` blocks of `block_len` positions for the model's keys and values."""

    def read(self, step: StepInput) -> Tensor:
        """Store the step's keys and values, then the logits of the wanted rows.  -> (W, V)

        All keys of the step are stored before any query looks. What it returns is the caller's
        own, or valid until the next call.
        """


def flat_step(batch: list[Sequence], block_len: int) -> StepInput:
    """The tokens that are to be read, one after another, and where their blocks lie."""
    tokens, facts = [], []
    for seq in batch:
        start, n = seq.num_computed_tokens, seq.num_scheduled_tokens
        tokens += seq.tokens[start : start + n]
        facts += (n, start, seq.num_cached_tokens, seq.pending)
    counts, starts, cached, pending = _tensor(facts).view(-1, 4).unbind(1)  # (S,) each
    first = counts.cumsum(0) - counts  # where each sequence begins in the step
    sequences = torch.arange(len(batch)).repeat_interleave(counts)  # (N,)
    positions = torch.arange(len(tokens)) - (first - starts)[sequences]
    longest = max(len(seq.block_table) for seq in batch)
    padded = [seq.block_table + [-1] * (longest - len(seq.block_table)) for seq in batch]
    tables = _tensor(list(chain.from_iterable(padded))).view(len(batch), longest)
    slots = tables[sequences, positions // block_len] * block_len + positions % block_len
    slots[positions < cached[sequences]] = -1  # held by a block that sequences share
    wanted = (first + counts - 1)[counts == pending]
    return StepInput(_tensor(tokens), sequences, positions, slots, tables, wanted)


def _tensor(numbers: list[int]) -> Tensor:
    """The same as torch.tensor(numbers), several times faster."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64)
