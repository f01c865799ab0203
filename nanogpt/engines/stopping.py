"""Stop tokens, for any reader."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import torch
from torch import Tensor

from ..config import check_int
from .base import TokenIterator
from .speculation import SpeculativeTokens


class UpToStop(Iterator[Tensor]):
    """The tokens of `steps`, (B, 1) each, until every row has produced one of the `stop` tokens.

    A row that has ended repeats its stop token. `stats` are those of `steps`, which exist if there
    is a draft.
    """

    def __init__(self, steps: TokenIterator, stop: tuple[int, ...]):
        self.steps = steps
        if isinstance(steps, SpeculativeTokens):
            self.stats = steps.stats
        # The generator does not refer to this object, so dropping it closes the generator at once.
        self._tokens = _up_to_stop(steps, frozenset(stop))

    def __next__(self) -> Tensor:
        return next(self._tokens)

    def close(self) -> None:
        self._tokens.close()
        self.steps.close()


def _up_to_stop(steps: TokenIterator, stop: frozenset[int]) -> Generator[Tensor, None, None]:
    ended: Tensor | None = None  # which rows, (B, 1)
    last: Tensor | None = None  # the token before, (B, 1)
    try:
        for token in steps:
            if ended is not None and last is not None:
                token = torch.where(ended, last, token)
            are_stops = [[number in stop] for number in token[:, 0].tolist()]
            ended = torch.tensor(are_stops, device=token.device)
            last = token.clone()  # the caller may write into `token`
            yield token
            if ended.all():
                break
    finally:
        steps.close()  # may free memory that the next generation needs


def check_stop(stop: object, vocab_size: int) -> tuple[int, ...]:
    """The stop tokens. Raises ValueError unless they are a tuple or a list of tokens."""
    if not isinstance(stop, (tuple, list)):
        raise ValueError(f"stop={stop!r:.60}: pass a tuple of tokens, as in stop=tokenizer.stop")
    for token in stop:
        check_int("stop", token, 0, vocab_size - 1)
    return tuple(stop)
