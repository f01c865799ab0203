"""A request as a user states it, the sequence that it becomes, and the tokens that come out."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from .. import sampling as limits
from ..config import check_int, check_number, check_switch
from ..sampling import PLAIN, SamplingParams, draw_noise


@dataclass(frozen=True, eq=False)
class Request:
    """One text to continue. Raises ValueError when its parts do not fit together.

        Request(tokenizer.encode("ROMEO:"), 200, SamplingParams(temperature=0.8), seed=7)

    `prompt` (T,) are tokens. The randomness is the request's own: noise from `seed`, drawn as
    `generate` draws it. So its tokens are those of generate(model, prompt[None], max_new_tokens, …)
    with this seed, whoever else is served. `arrival` is in seconds after the start; `id` names it
    in errors (a number by default). `logprobs` asks for the log-probability of each token drawn and
    of so many likeliest; with `echo` for those of the prompt's, too. They are the model's own:
    temperature, top_k and top_p do not change them.
    """

    prompt: Tensor
    max_new_tokens: int
    sampling: SamplingParams = PLAIN
    seed: int = 1337
    arrival: float = 0.0
    id: Hashable = field(default_factory=count().__next__)
    logprobs: int | None = None
    echo: bool = False

    def __post_init__(self):
        where = f"request {self.id!r}: "
        if not isinstance(self.id, Hashable):
            raise ValueError(f"{where}its id must be a number, a text or another hashable value")
        limits.check_prompt(self.prompt, ndim=1, where=where)
        limits.check_sampling(self.sampling, where=where)
        check_int(f"{where}max_new_tokens", self.max_new_tokens, 1, limits.MOST_NEW)
        check_number(f"{where}arrival", self.arrival, 0.0, 1e9)
        limits.check_seed(f"{where}seed", self.seed)
        check_switch(f"{where}echo", self.echo)
        if self.logprobs is not None or self.echo:
            check_int(f"{where}logprobs", self.logprobs, 0, limits.MOST_NEW)

    def check(self, vocab_size: int, positions: int | None) -> None:
        """Raises ValueError when a model with these many tokens and positions cannot serve it."""
        where = f"request {self.id!r}: "
        low, high = torch.stack(self.prompt.aminmax()).tolist()
        limits.check_tokens(low, high, vocab_size, f"{where}the prompt holds")
        limits.check_length(len(self.prompt), self.max_new_tokens, positions, where)
        limits.check_sampling(self.sampling, vocab_size, where)

    def draw(self, vocab_size: int) -> Tensor | None:
        """The noise of its tokens, on the CPU: (max_new_tokens, V); None if it needs none."""
        if self.sampling.greedy:
            return None
        generator = torch.Generator().manual_seed(self.seed)
        return draw_noise(self.max_new_tokens, 1, vocab_size, generator)[:, 0]


class Sequence:
    """The text of a request: its tokens so far, and what is held of them.

    The keys and values of its first `num_computed_tokens` lie in the blocks of `block_table`. Those
    of the first `num_cached_tokens` were there when it was admitted, computed for an earlier
    sequence. The next step reads `num_scheduled_tokens` more. Nobody asks for the logits of the
    first `num_shown_tokens`, or not again.
    """

    def __init__(self, request: Request, noise: Tensor | None):
        self.request = request
        self.running = False  # whether it holds blocks, and takes part in steps
        self.noise = noise  # a row for each new token
        self.native = None  # what native code keeps of it
        self.tokens: list[int] = request.prompt.tolist()
        self.num_prompt_tokens, self.num_new_tokens = len(self.tokens), 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []  # of its full blocks
        self.num_computed_tokens = self.num_cached_tokens = self.num_scheduled_tokens = 0
        self.num_shown_tokens = 0 if request.echo else self.num_prompt_tokens - 1
        self.logprobs: list[Logprob] = []  # since the last token that was given out

    @property
    def pending(self) -> int:
        """Tokens that must be read before the next one can be drawn: 1 while it decodes."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def draws(self) -> bool:
        """Whether the step reads all that is pending, so that a token is drawn."""
        return self.num_scheduled_tokens == self.pending

    @property
    def wanted(self) -> int:
        """Of how many tokens, the last ones of the step, the logits are asked for."""
        n = self.num_scheduled_tokens
        return max(0, min(n, self.num_computed_tokens + n - self.num_shown_tokens))


class Logprob(NamedTuple):
    """How likely a token was, in nats: log_softmax of the logits before it."""

    token: int
    value: float
    top: dict[int, float]  # by token: of the likeliest, as many as were asked for


class Output(NamedTuple):
    """One token of one request."""

    request: Request
    token: int
    index: int  # of the request's new tokens: 0, 1, …
    finished: bool  # whether it is the last
    logprobs: tuple[Logprob, ...] = ()  # its own; with echo and index 0 before it the prompt's
