"""What all ways of decoding share: a decoder reads the next tokens, and can forget the last ones.

Two loops run over any decoder: the plain one here, and the speculative one in `speculative`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..cache.attach import build_caches, cache_owners, require_owners
from ..model.gpt import GPT
from .sampling import SamplingParams, sample


class Decoder(Protocol):
    """Texts of one length that are read from left to right, and what is remembered of them."""

    length: int  # tokens read so far

    def read(self, tokens: Tensor) -> Tensor:
        """Read the next tokens; the logits behind each of them.  (B, T) -> (B, T, V)"""

    def rewind(self, n: int) -> None:
        """Forget the last n tokens, as if they had never been read."""


@torch.no_grad()
def decode(
    decoder: Decoder, prompt: Tensor, noise: Tensor, sampling: SamplingParams
) -> Iterator[Tensor]:
    """The plain loop: prefill, then one token at a time.  (B, T), (n, B, V) -> n × (B, 1)"""
    tokens = prompt
    for row in noise:
        logits = decoder.read(tokens)  # prefill at the first step, decode after it
        tokens = sample(logits[:, -1], row, sampling)
        yield tokens.clone()  # the caller's own: the next step reads ours


# Who steps through a model's modules now: a lock for each model that decodes.
_turns: WeakKeyDictionary[GPT, threading.RLock] = WeakKeyDictionary()


class ModuleDecoder:
    """The model's own modules, borrowed for one step at a time: in eval mode, with caches of ours.

    Between two steps the model is the caller's: its modes as they were, and no cache on. Threads
    that decode with one model take turns, step by step.
    """

    caches = ()  # one for each owner, or none

    def __init__(self, model: GPT):
        self.model, self.modules, self.owners = model, list(model.modules()), cache_owners(model)
        self.turn = _turns.setdefault(model, threading.RLock())

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        """Logits of tokens that stand at `start` and after it.  (B, T) -> (B, T, V)"""
        pos = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        with self.borrowed():
            return self.model(tokens, pos=pos)[0]

    @contextmanager
    def borrowed(self):
        with self.turn:
            if any(owner.cache is not None for owner in self.owners):
                raise ValueError(
                    "a KV cache is already on: generate brings its own; leave the with-block, or "
                    "call disable_kv_cache(model)"
                )
            training = [module for module in self.modules if module.training]
            try:
                for module in training:
                    module.training = False
                for owner, cache in zip(self.owners, self.caches, strict=bool(self.caches)):
                    owner.cache = cache
                yield
            finally:
                for owner in self.owners:
                    owner.cache = None
                for module in training:
                    module.training = True


class CachedDecoder(ModuleDecoder):
    """Reads each token once. `cache` is a class, as in DynamicCache; `capacity` the most tokens."""

    def __init__(self, model: GPT, cache, capacity: int):
        super().__init__(model)
        self.caches, self.length = build_caches(require_owners(model), cache, capacity), 0

    def read(self, tokens: Tensor) -> Tensor:
        logits = self.forward(tokens, self.length)
        self.length += tokens.shape[1]
        return logits

    def rewind(self, n: int) -> None:
        for cache in self.caches:
            cache.rewind(n)
        self.length -= n


class UncachedDecoder(ModuleDecoder):
    """Reads the whole text again every time, as in the lecture."""

    text = None  # (B, length), once something has been read

    @property
    def length(self) -> int:
        return 0 if self.text is None else self.text.shape[1]

    def append(self, tokens: Tensor) -> None:
        before = tokens[:, :0] if self.text is None else self.text
        self.text = torch.cat([before, tokens], dim=1)

    def read(self, tokens: Tensor) -> Tensor:
        self.append(tokens)
        return self.forward(self.text, 0)[:, -tokens.shape[1] :]

    def rewind(self, n: int) -> None:
        self.text = self.text[:, : self.length - n]


class SlidingDecoder(UncachedDecoder):
    """Past the end of the position table, reads the last block_size tokens, as in the lecture.

    Every position changes there, so no cached row is valid. Up to the end it is cached, unless
    `cache` is None. Only the last logits of a read are those that the next token is drawn from.
    """

    def __init__(self, model: GPT, cache):
        super().__init__(model)
        self.limit = model.config.block_size
        self.cached = None if cache is None else CachedDecoder(model, cache, self.limit)

    def read(self, tokens: Tensor) -> Tensor:
        self.append(tokens)
        if self.cached is not None and self.length <= self.limit:
            return self.cached.read(tokens)
        return self.forward(self.text[:, -self.limit :], 0)[:, -tokens.shape[1] :]
