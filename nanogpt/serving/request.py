"""A request as a user states it, and the text that it becomes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from ..config.checks import check_int, check_number
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
        try:
            prompt = torch.as_tensor(self.prompt)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"request {self.id!r}: prompt={self.prompt!r}: pass tokens, as in "
                f"tokenizer.encode(text)"
            ) from None
        object.__setattr__(self, "prompt", prompt)
        if prompt.ndim != 1 or not len(prompt) or prompt.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"request {self.id!r}: the prompt is {tuple(prompt.shape)} of {prompt.dtype}: it "
                f"needs (T,) integers, at least one token, as in tokenizer.encode(text)"
            )
        check_int(f"request {self.id!r}: max_new_tokens", self.max_new_tokens, 1, 2**31 - 1)
        check_number(f"request {self.id!r}: arrival", self.arrival, 0.0, 1e9)
        if not isinstance(self.sampling, SamplingParams):
            raise ValueError(
                f"request {self.id!r}: sampling={self.sampling!r}: pass SamplingParams(…)"
            )
        if self.seed is not None:
            check_int(f"request {self.id!r}: seed", self.seed, -(2**63), 2**64 - 1)
        if self.noise is not None:
            self._check_noise()

    def _check_noise(self) -> None:
        shape = tuple(getattr(self.noise, "shape", ()))
        if self.seed is not None:
            raise ValueError(f"request {self.id!r} has a seed and noise: give one of them")
        if len(shape) != 2 or shape[0] < self.max_new_tokens or not self.noise.is_floating_point():
            raise ValueError(
                f"request {self.id!r}: the noise is {shape}; {self.max_new_tokens} new tokens need "
                f"floating-point ({self.max_new_tokens}, V): a row for each, as in "
                f"draw_noise({self.max_new_tokens}, 1, V)[:, 0]"
            )
        if not bool((self.noise > 0).all()):
            raise ValueError(
                f"request {self.id!r}: the noise has numbers that are not above 0: draw it with "
                f"draw_noise"
            )

    def check(self, vocab_size: int, positions: int | None) -> None:
        """Raises ValueError when a model with these many tokens and positions cannot serve it."""
        low, high, length = int(self.prompt.min()), int(self.prompt.max()), len(self.prompt)
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"request {self.id!r}: the prompt holds tokens {low} to {high}; the vocabulary has "
                f"0 to {vocab_size - 1}"
            )
        # The last token is only returned, never read.
        if positions is not None and length + self.max_new_tokens - 1 > positions:
            most = max(0, positions + 1 - length)
            raise ValueError(
                f"request {self.id!r}: a prompt of {length} and {self.max_new_tokens} new tokens "
                f"exceed block_size {positions}: ask for at most {most}, or shorten the prompt"
            )
        if self.sampling.top_k is not None:
            check_int(f"request {self.id!r}: top_k", self.sampling.top_k, 1, vocab_size)
        if self.noise is not None and self.noise.shape[1] != vocab_size:
            raise ValueError(
                f"request {self.id!r}: the noise is {tuple(self.noise.shape)}; a vocabulary of "
                f"{vocab_size} needs ({self.max_new_tokens}, {vocab_size})"
            )

    def draw(self, vocab_size: int) -> Tensor | None:
        """The noise of its tokens, on the CPU: (max_new_tokens, V); None if it needs none."""
        if self.sampling.greedy:
            return None
        if self.noise is not None:
            return self.noise.cpu()
        generator = torch.Generator().manual_seed(1337 if self.seed is None else self.seed)
        return draw_noise(self.max_new_tokens, 1, vocab_size, generator)[:, 0]


class State(Enum):
    """Where a text stands."""

    WAITING = "waiting"  # it has not been read yet
    RUNNING = "running"  # it holds blocks, and takes part in steps
    PREEMPTED = "preempted"  # its blocks went to an older text: it waits, and is read again
    FINISHED = "finished"  # it has all its tokens, or was aborted


class Sequence:
    """The text of a request: its tokens so far, and what is held of them.

    The keys and values of its first `computed` tokens lie in `blocks`. The first `shared` of them
    were found there when it was admitted. `hashes` are the names of its full blocks.
    """

    def __init__(self, request: Request, noise: Tensor | None):
        self.request, self.state = request, State.WAITING
        self.noise = noise  # a row for each new token
        self.native = None  # what native code keeps of it
        self.tokens: list[int] = request.prompt.tolist()
        self.n_prompt, self.n_new = len(self.tokens), 0
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []
        self.computed = self.shared = 0

    @property
    def pending(self) -> int:
        """Tokens that must be read before the next one can be drawn: 1 while it decodes."""
        return len(self.tokens) - self.computed

    @property
    def left(self) -> int:
        """Tokens that are still to be drawn."""
        return self.request.max_new_tokens - self.n_new


class Output(NamedTuple):
    """One token of one request."""

    request: Request
    token: int
    index: int  # of the request's new tokens: 0, 1, …
    finished: bool  # whether it is the last
