"""Rungs 1 to 4: eager PyTorch, operation by operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..cache import DynamicCache
from ..decoder import step
from ..decoder.config import beyond_lecture
from ..decoder.model import Decoder
from ..decoder.pack import as_decoder, flatten, unpack_heads
from ..generation import CachedReader, Reader, UncachedReader
from ..model import GPT, LanguageModel
from ..sampling import PLAIN, SamplingParams
from .base import Engine, TokenIterator
from .noise import Noise

if TYPE_CHECKING:
    from .drafts import Draft


class Uncached(Engine):
    """Rung 1. The lecture's heads one by one, recomputing all positions for every token.

    A Decoder beyond the lecture's architecture computes all of its heads at once.
    """

    runs = (GPT,)
    in_torch = True

    def reader(self, model: LanguageModel) -> Reader:
        return UncachedReader(as_heads(model))


class PerHead(Engine):
    """Rung 2. A cache in every Head, grown by torch.cat."""

    per_head = True
    runs = (GPT,)
    in_torch = True

    def reader(self, model: LanguageModel) -> Reader:
        return CachedReader(as_heads(model), DynamicCache, self.shape.capacity)


class Batched(Engine):
    """Rung 3. All heads in one matmul, with one growing cache per layer."""

    runs = (Decoder,)
    in_torch = True

    def reader(self, model: LanguageModel) -> Reader:
        return CachedReader(as_decoder(model), DynamicCache, self.shape.capacity)


def as_heads(model: LanguageModel) -> LanguageModel:
    """The model with the lecture's separate heads, if it has the lecture's architecture."""
    if isinstance(model, GPT) or beyond_lecture(model.config):
        return model
    return unpack_heads(model)


class StepReader:
    """A reader over a function step(tokens, start) that owns its buffers."""

    def __init__(self, step: Callable[[Tensor, int], Tensor]):
        self.step = step
        self.length = 0

    def read(self, tokens: Tensor) -> Tensor:
        with torch.inference_mode():  # no autograd bookkeeping at all
            logits = self.step(tokens, self.length)
        self.length += tokens.shape[1]
        return logits

    def rewind(self, n: int) -> None:
        self.length -= n  # rows past the end are overwritten before they are read


class Flat(Engine):
    """Rung 4. The decode step as one function over plain tensors, with static caches."""

    fallback: type[Engine] | None = Batched
    in_torch = True

    def reader(self, model: LanguageModel) -> Reader:
        c = self.config
        weights = flatten(model)
        caches = self.buffers()
        return StepReader(lambda tokens, start: step.read(weights, caches, tokens, start, c))

    def buffers(self) -> step.Buffers:
        """Keys and values of each layer, for `batch` texts of `capacity` tokens."""
        s = self.shape
        return step.buffers(s.config, s.batch, s.capacity, dtype=s.dtype, device=s.device)


class Exclusive(Flat):
    """An engine whose buffers serve one generation at a time; Flat runs any concurrent one.

    A subclass generates in run(model, prompt, noise, sampling), with exclusive use of the buffers.
    Flat's reader, which has its own buffers, also reads the proposals of a draft.
    """

    fallback = Flat
    in_torch = False
    plain_only = False  # whether Flat's reader also handles everything but plain sampling

    def build(self) -> None:
        """Build the lock of the buffers; a subclass builds the buffers, after calling this."""
        self.in_use = threading.Lock()

    def run(
        self, model: LanguageModel, prompt: Tensor, noise: Tensor | Noise, sampling: SamplingParams
    ) -> Iterator[Tensor]:
        """Yield a (B, 1) token for each row of noise, while nobody else uses the buffers."""
        raise NotImplementedError

    def tokens(
        self,
        model: LanguageModel,
        prompt: Tensor,
        noise: Tensor | Noise,
        sampling: SamplingParams,
        draft: Draft | None = None,
    ) -> TokenIterator:
        if draft is not None or (self.plain_only and sampling != PLAIN):
            return super().tokens(model, prompt, noise, sampling, draft)
        return self._alone(model, prompt, noise, sampling)

    def _alone(
        self, model: LanguageModel, prompt: Tensor, noise: Tensor | Noise, sampling: SamplingParams
    ) -> Generator[Tensor, None, None]:
        if not self.in_use.acquire(blocking=False):
            yield from super().tokens(model, prompt, noise, sampling)
            return
        try:
            yield from self.run(model, prompt, noise, sampling)
        finally:
            self.in_use.release()
