"""What a batch engine asks of the code that computes a step: the two kinds of backend.

The scheduler decides what a step reads, and in which blocks keys and values are stored. Whatever
computes it, each request must get the tokens that it gets alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from ..model import LanguageModel
from .sequence import Sequence


class StepInput(NamedTuple):
    """N tokens of S sequences. The tokens of a sequence are adjacent and in order.

    All tensors are int64, contiguous, on the CPU. A query sees only the keys of its own sequence,
    up to its own position. Slots past the last position of a sequence hold numbers of an earlier
    one, possibly NaN: they must not even be multiplied by 0.
    """

    tokens: Tensor  # (N,)
    sequences: Tensor  # (N,): the row of `block_tables` that the token belongs to, ascending
    positions: Tensor  # (N,): in the sequence, not in the step
    slot_mapping: Tensor  # (N,): the slot for its key and value; -1: already stored
    block_tables: Tensor  # (S, longest): the blocks of each, in order; -1 after the last one
    wanted: Tensor  # (W,): the rows of the step whose logits are requested, ascending; may be none


class Backend(ABC):
    """Computes steps for one model, over `n_blocks` blocks of `block_len` positions.

    A backend is a LogitsBackend or a SamplingBackend.
    """

    whole_prompts = False  # whether a prompt must be read from its beginning, in a single step

    @abstractmethod
    def __init__(self, model: LanguageModel, n_blocks: int, block_len: int): ...

    @classmethod
    @abstractmethod
    def refuses_model(cls, model: LanguageModel) -> str | None:
        """Why it cannot compute this model, in one line; None if it can."""


class LogitsBackend(Backend):
    """Returns logits; the engine samples from them, after every step."""

    @abstractmethod
    def read(self, step: StepInput) -> Tensor:
        """Store the step's keys and values, and return the logits of the wanted rows.  -> (W, V)"""


class SamplingBackend(Backend):
    """Also samples, so that a call can run several steps before it returns to Python."""

    logits: Tensor  # after `draw`: the wanted rows of the first step, then one for each later token

    @abstractmethod
    def most_steps(self, n_sequences: int) -> int:
        """The most steps in one call with this many sequences, so that no request waits long."""

    @abstractmethod
    def draw(self, batch: list[Sequence], steps: list[int]) -> list[list[int]]:
        """Read the scheduled tokens, then decode. Returns each sequence's new tokens, one per step.

        If its steps are 0, a sequence samples no token. The order of `logits` is step by step, and
        within a step sequence by sequence. Does not change the tokens and counts of a `Sequence`.
        """


BackendType = type[LogitsBackend] | type[SamplingBackend]
