"""What all ways of decoding share: a decoder reads the next tokens, and can forget the last ones.

Two loops run over any decoder: the plain one here, and the speculative one in `speculative`.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Protocol

import torch
from torch import Tensor

from ..cache.attach import enable_kv_cache
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


def replica(model: GPT) -> GPT:
    """The model's modules once more, over the very same weights: in eval mode, without caches.

    What runs in it neither sees nor changes the modes and the caches of the model, whatever other
    threads do with them. Hooks are shared; what a forward of yours sets on `self` is set on the
    replica. Raises ValueError for a forward that was set on a module: it would run the original.
    """
    copies = {module: copy(module) for module in model.modules()}
    for module, copied in copies.items():
        if "forward" in vars(module):
            why = f"a {type(module).__name__} has another forward, set on the instance"
            raise ValueError(f"{why}, and a copy must run: define it in a class, or take it off")
        children = {name: copies.get(child) for name, child in module._modules.items()}
        vars(copied).update(training=False, _modules=children)
        if "cache" in vars(copied):
            copied.cache = None
    return copies[model]


class ModuleDecoder:
    """The model's own code and weights, in a replica that is this decoder's alone."""

    def __init__(self, model: GPT):
        self.model = replica(model)

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        """Logits of tokens that stand at `start` and after it.  (B, T) -> (B, T, V)"""
        pos = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        return self.model(tokens, pos=pos)[0]


class CachedDecoder(ModuleDecoder):
    """Reads each token once. `cache` is a class, as in DynamicCache; `capacity` the most tokens."""

    def __init__(self, model: GPT, cache, capacity: int):
        super().__init__(model)
        self.caches, self.length = enable_kv_cache(self.model, cache, capacity), 0

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
