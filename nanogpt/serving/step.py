"""What one step reads, as plain tensors, and what a backend must be to read it.

A step mixes prefills and decodes of any number of texts. It is one flat list of tokens: each has
its text and its position, and nothing is padded. Keys and values lie in blocks of `block_len`
positions, and a table says which blocks a text consists of. Position p of text s is held in block
tables[s, p // block_len], at place p % block_len.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from ..model.gpt import GPT


class Step(NamedTuple):
    """N tokens of S texts. The tokens of a text stand side by side, in the order of the text.

    All tensors are int64, contiguous, on the CPU. A query sees the keys of its own text, up to its
    own position, and no other. Places of a text's blocks past its last position hold what an
    earlier text left there, NaN perhaps: they must not even be multiplied by 0.
    """

    tokens: Tensor  # (N,)
    text: Tensor  # (N,): the row of `tables` that the token belongs to, ascending
    positions: Tensor  # (N,): in the text, not in the step
    slots: Tensor  # (N,): block · block_len + place where its key and value go; -1: held already
    tables: Tensor  # (S, longest): the blocks of each text, in order; -1 after the last one
    wanted: Tensor  # (W,): the rows of the step whose logits are asked for, ascending; may be none


class Backend(Protocol):
    """A model that reads steps, and the keys and values of all blocks, of every layer."""

    @classmethod
    def supports(cls, model: GPT) -> str | None:
        """Why this backend cannot compute this model, in one line; None when it can."""

    def __init__(self, model: GPT, n_blocks: int, block_len: int):
        """Reserve `n_blocks` blocks of `block_len` positions for the model's keys and values."""

    def read(self, step: Step) -> Tensor:
        """Store the step's keys and values, then the logits of the wanted rows.  -> (W, V)

        All keys of the step are stored before any query looks. What it returns is the caller's
        own, or valid until the next call.
        """
