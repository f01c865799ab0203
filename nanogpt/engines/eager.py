"""Rungs 1 to 5: PyTorch as it runs by itself, operation by operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import DynamicCache
from ..decoder.pack import pack_heads, unpack_heads
from ..generation import CachedDecoder, UncachedDecoder
from ..model import GPT
from ..sampling import PLAIN
from . import functional
from .base import Engine


class Uncached(Engine):
    """Rung 1. The lecture's Heads one by one, all positions again for every token."""

    per_head = True
    runs_modules = True
    in_torch = True

    def decoder(self, model):
        return UncachedDecoder(self.in_form(model))

    def in_form(self, model: GPT) -> GPT:
        """The model in the form that this rung decodes: itself, or a converted copy."""
        if model.config.per_head == self.per_head:
            return model
        return unpack_heads(model) if self.per_head else pack_heads(model)


class PerHead(Uncached):
    """Rung 2. A cache in every Head, grown by torch.cat."""

    def decoder(self, model):
        return CachedDecoder(self.in_form(model), DynamicCache, self.capacity)


class Batched(PerHead):
    """Rung 3. All heads in one matmul, one growing cache for each layer."""

    per_head = False
    shares_keys = True


class StepDecoder:
    """A decoder over a function step(tokens, start) that has buffers of its own."""

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


class Static(Engine):
    """Rung 4. A cache allocated once and written in place; autograd's bookkeeping off.

    Still the model's modules, but called for decoding only: a position is a number, and a new token
    sees all that is cached, so a step builds no mask and checks nothing.
    """

    fallback = Batched
    in_torch = True

    def decoder(self, model):
        model = pack_heads(model) if model.config.per_head else model
        positions = functional.flatten(model).positions
        caches = self.buffers()
        return StepDecoder(lambda tokens, start: self.step(model, positions, caches, tokens, start))

    def buffers(self) -> list:
        kind = {"dtype": self.dtype, "device": self.device}
        return functional.buffers(self.config, self.batch, self.capacity, **kind)

    @staticmethod
    def step(model: GPT, positions: Tensor, caches: list, tokens: Tensor, start: int) -> Tensor:
        """Logits behind the tokens at start, start + 1, ….  (B, T) -> (B, T, V)"""
        B, T = tokens.shape
        end = start + tokens.shape[1]
        mask = functional.chunk_mask(start, end, tokens.device)
        places = positions[start:end]
        c = model.config
        x = functional.embed(model.token_embedding_table.weight, tokens, places, c)
        for block, (keys, values) in zip(model.blocks, caches, strict=True):
            qkv = block.sa.qkv(block.ln1(x)).view(B, T, 3, block.sa.n_head, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, hs)
            q = functional.placed(q, places, c)
            k = functional.placed(k, places, c)
            keys[:, :, start:end] = k
            values[:, :, start:end] = v
            y = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], **mask)
            x = x + block.sa.proj(y.transpose(1, 2).reshape(B, T, -1))
            up, relu, down, _ = block.ffwd.net  # the last one is dropout
            x = x + down(relu(up(block.ln2(x))))
        return model.lm_head(model.ln_f(x))


class Flat(Static):
    """Rung 5. The decode step as one function over plain tensors, called once for each token."""

    fallback = Static

    def decoder(self, model):
        weights = functional.flatten(model)
        caches = self.buffers()
        c = self.config
        return StepDecoder(lambda tokens, start: functional.step(weights, caches, tokens, start, c))


class Exclusive(Flat):
    """An engine whose buffers serve one generation at a time; Flat computes a second one.

    A subclass generates in run(model, prompt, noise, sampling), with the buffers to itself. The
    proposals of a draft are read by Flat's decoder, too, which has buffers of its own.
    """

    fallback = Flat
    in_torch = False
    plain_only = False  # whether Flat's decoder also serves all but plain sampling

    def __init__(self, *args, **sizes):
        self.in_use = threading.Lock()
        super().__init__(*args, **sizes)

    def tokens(self, model, prompt, noise, sampling, draft=None):
        if draft is not None or (self.plain_only and sampling != PLAIN):
            return super().tokens(model, prompt, noise, sampling, draft)
        return self._alone(model, prompt, noise, sampling)

    def _alone(self, *generation) -> Iterator[Tensor]:
        if not self.in_use.acquire(blocking=False):
            yield from super().tokens(*generation)
            return
        try:
            yield from self.run(*generation)
        finally:
            self.in_use.release()
