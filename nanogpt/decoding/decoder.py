"""What every way of decoding has in common: a decoder reads tokens on, and can take its end back.

Two loops run over any decoder: the plain one here, and the speculative one in `speculative`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from ..cache.attach import build_caches, cache_owners
from ..model.gpt import GPT
from .sampling import SamplingParams, sample


class Decoder(Protocol):
    """A text that is being read, with whatever is remembered of it."""

    length: int  # tokens read so far

    def read(self, tokens: Tensor) -> Tensor:
        """Read the next tokens of the text; the logits behind each.  (B, T) -> (B, T, V)"""

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
        yield tokens.clone()  # the reader's own: the next step reads ours


class CachedDecoder:
    """The model's own modules over KV caches that are attached only while they read.

    `cache` is a design, as in DynamicCache, and `capacity` the most tokens that it will hold.
    """

    def __init__(self, model: GPT, cache, capacity: int):
        self.model, self.length = model, 0
        self.modules, self.owners = list(model.modules()), cache_owners(model)
        self.caches = build_caches(self.owners, cache, capacity)

    def read(self, tokens: Tensor) -> Tensor:
        pos = torch.arange(self.length, self.length + tokens.shape[1], device=tokens.device)
        with decoding(self.modules, self.owners, self.caches):
            logits, _ = self.model(tokens, pos=pos)
        self.length += tokens.shape[1]
        return logits

    def rewind(self, n: int) -> None:
        for cache in self.caches:
            cache.rewind(n)
        self.length -= n


class UncachedDecoder:
    """The model's own modules, which read the whole text again every time, as in the lecture.

    Past the position table's end they read its last block_size tokens, at positions 0 … block_size - 1.
    """

    def __init__(self, model: GPT):
        self.model, self.limit, self.text = model, model.config.positions, None
        self.modules, self.owners = list(model.modules()), cache_owners(model)

    @property
    def length(self) -> int:
        return 0 if self.text is None else self.text.shape[1]

    def read(self, tokens: Tensor) -> Tensor:
        self.text = tokens if self.text is None else torch.cat([self.text, tokens], dim=1)
        seen = self.text if self.limit is None else self.text[:, -self.limit :]
        with decoding(self.modules, self.owners, None):
            logits, _ = self.model(seen)
        return logits[:, -tokens.shape[1] :]

    def rewind(self, n: int) -> None:
        self.text = self.text[:, : self.length - n]


class SlidingDecoder:
    """Cached up to the end of the position table; past it every position changes, so uncached."""

    def __init__(self, model: GPT, cache):
        self.whole, self.cached = (
            UncachedDecoder(model),
            CachedDecoder(model, cache, model.config.positions),
        )

    @property
    def length(self) -> int:
        return self.whole.length

    def read(self, tokens: Tensor) -> Tensor:
        if self.length + tokens.shape[1] > self.whole.limit:
            return self.whole.read(tokens)
        text = self.whole.text
        self.whole.text = tokens if text is None else torch.cat([text, tokens], dim=1)
        return self.cached.read(tokens)

    def rewind(self, n: int) -> None:
        raise ValueError("a window that slides cannot be rewound: every position has changed")


def module_decoder(model: GPT, cache, prompt_length: int, n_new: int) -> Decoder:
    """The decoder over the model's own modules that `generate` uses without an engine."""
    limit, capacity = (
        model.config.positions,
        prompt_length + n_new - 1,
    )  # the last token is never read
    if cache is None:
        return UncachedDecoder(model)
    if limit is not None and capacity > limit:
        return SlidingDecoder(model, cache)
    return CachedDecoder(model, cache, max(1, capacity))


@contextmanager
def decoding(modules: list, owners: list, caches: list | None):
    """Every module in eval mode with these caches on, for one step; then as it was."""
    if any(owner.cache is not None for owner in owners):
        raise ValueError(
            "a KV cache is already on: generate brings its own; leave the with-block, or "
            "call disable_kv_cache(model)"
        )
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        for owner, cache in zip(owners, caches or (), strict=bool(caches)):
            owner.cache = cache
        yield
    finally:
        for owner in owners:
            owner.cache = None
        for module in training:
            module.training = True
