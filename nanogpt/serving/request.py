"""A request as a user states it, the sequence that it becomes, and the tokens that come out."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from ..config.checks import check_int, check_number
from ..decoding import limits
from ..decoding.sampling import PLAIN, SamplingParams, draw_noise

_next_id = count()


@dataclass(frozen=True, eq=False)
class Request:
    """One text to continue. Raises ValueError when its parts do not fit together.

        Request(tokenizer.encode("ROMEO:"), 200, SamplingParams(temperature=0.8), seed=7)

    `prompt` (T,) are tokens. The randomness is the request's own: `noise` (n, V) of at least
    `max_new_tokens` rows, or `seed`, from which it is drawn as `generate` draws it. So its tokens
    are those of generate(model, prompt[None], max_new_tokens, …) with this seed, whoever else is
    served. `arrival` is in seconds after the start; `id` names it in errors (a number by default).
    """

    prompt: Tensor
    max_new_tokens: int
    sampling: SamplingParams = PLAIN
    seed: int | None = None  # 1337 when there is no noise either
    noise: Tensor | None = None
    arrival: float = 0.0
    id: Hashable = field(default_factory=lambda: next(_next_id))

    def __post_init__(self):
        where = self._where
        limits.check_prompt(self.prompt, ndim=1, where=where)
        check_int(f"{where}max_new_tokens", self.max_new_tokens, 1, limits.MOST_NEW)
        check_number(f"{where}arrival", self.arrival, 0.0, 1e9)
        if self.seed is not None:
            limits.check_seed(f"{where}seed", self.seed)
            if self.noise is not None:
                raise ValueError(f"{where}there are a seed and noise: give one of them")

    def check(self, vocab_size: int, positions: int | None) -> None:
        """Raises ValueError when a model with these many tokens and positions cannot serve it."""
        where, n_new = self._where, self.max_new_tokens
        low, high = torch.stack(self.prompt.aminmax()).tolist()
        limits.check_tokens(low, high, vocab_size, f"{where}the prompt holds")
        limits.check_length(len(self.prompt), n_new, positions, where)
        limits.check_sampling(self.sampling, vocab_size, where)
        if self.noise is not None:  # it may have more rows
            noise = self.noise[:n_new] if getattr(self.noise, "ndim", 0) else self.noise
            limits.check_noise(noise, (n_new, vocab_size), where)

    def draw(self, vocab_size: int) -> Tensor | None:
        """The noise of its tokens, on the CPU: (max_new_tokens, V); None if it needs none."""
        if self.sampling.greedy:
            return None
        if self.noise is not None:
            return self.noise.cpu()
        generator = torch.Generator().manual_seed(1337 if self.seed is None else self.seed)
        return draw_noise(self.max_new_tokens, 1, vocab_size, generator)[:, 0]

    @property
    def _where(self) -> str:
        return f"request {self.id!r}: "


class State(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"  # it has not been read yet
    RUNNING = "running"  # it holds blocks, and takes part in steps
    PREEMPTED = "preempted"  # its blocks went to an older one: it waits, and is read again
    FINISHED = "finished"  # it has all its tokens, or was aborted


class Sequence:
    """The text of a request: its tokens so far, and what is held of them.

    The keys and values of its first `num_computed_tokens` lie in the blocks of `block_table`. Those
    of the first `num_cached_tokens` were there when it was admitted, computed for an earlier
    sequence. The next step reads `num_scheduled_tokens` more.
    """

    def __init__(self, request: Request, noise: Tensor | None):
        self.request, self.state = request, State.WAITING
        self.noise = noise  # a row for each new token
        self.native = None  # what native code keeps of it
        self.tokens: list[int] = request.prompt.tolist()
        self.num_prompt_tokens, self.num_new_tokens = len(self.tokens), 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []  # of its full blocks
        self.num_computed_tokens = self.num_cached_tokens = self.num_scheduled_tokens = 0

    @property
    def pending(self) -> int:
        """Tokens that must be read before the next one can be drawn: 1 while it decodes."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def remaining(self) -> int:
        """Tokens that are still to be drawn."""
        return self.request.max_new_tokens - self.num_new_tokens

    @property
    def draws(self) -> bool:
        """Whether the step reads all that is pending, so that a token is drawn."""
        return self.num_scheduled_tokens == self.pending


class Output(NamedTuple):
    """One token of one request."""

    request: Request
    token: int
    index: int  # of the request's new tokens: 0, 1, …
    finished: bool  # whether it is the last
