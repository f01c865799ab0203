"""What the models of tests/museum are built from: ours, small and with weights that show a bug."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from nanogpt.cache.dynamic import DynamicCache
from nanogpt.config.shapes import GPTConfig
from nanogpt.model.gpt import GPT, CausalSelfAttention
from nanogpt.verify.subjects import Ours, Subject, through

# Two layers, 1 < key heads < heads, a window that the text leaves: without these, bugs pass.
SHAPE = {"vocab_size": 29, "block_size": 96, "n_layer": 2, "n_head": 4, "n_embd": 32}
SHAPE |= {"n_kv_head": 2, "per_head": False}


def small(seed=0, attention=CausalSelfAttention, caches=(DynamicCache,), gpt=GPT, **shape) -> Ours:
    """A random model as the referee takes it, with the attention and the caches of a museum's file.

    Learned positions unless rope=True; window=8 limits what a query sees.
    """
    generator = torch.Generator().manual_seed(seed)
    model = gpt(GPTConfig(**SHAPE | shape), attention=attention, generator=generator)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(20) if p.ndim == 2 else p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return Ours(model.double(), caches)


class Tiny(Subject):
    """A transformer in 60 lines that also reads padded batches; a museum's file changes its hooks.

    A cache is what one request has read: `t` tokens, and `k`, `v` for each layer, (B, Hkv, t, hs).
    `bug` is for the file: hooks may ask it. Positions are learned.
    """

    vocab_size, longest, rewinds, caches = 29, 96, True, ("Tiny's cache",)
    layers, heads, kv_heads, size = 2, 4, 2, 8  # heads, those with keys, numbers of each

    def __init__(self, seed: int = 0, bug: bool = False, window: int | None = None):
        self.name, self.bug, self.window = type(self).__name__, bug, window
        generator, width = torch.Generator().manual_seed(seed), self.heads * self.size
        rows = (self.heads + 2 * self.kv_heads) * self.size
        sizes = {"tokens": (self.vocab_size, width), "positions": (self.longest, width)}
        sizes |= {f"qkv{i}": (width, rows) for i in range(self.layers)}
        sizes |= {f"proj{i}": (width, width) for i in range(self.layers)}
        self.w = {
            name: torch.randn(size, generator=generator).double() * (1.5 if i < 2 else 0.4)
            for i, (name, size) in enumerate(sizes.items())
        }

    # ---------------------------------------------------------------- hooks

    def positions(self, cache, ids, mask):
        """Where each token stands; `mask` is that of all columns so far.  (B, S) -> (B, T)"""
        return (mask.cumsum(1) - 1).clamp(min=0)[:, cache.t :]

    def store(self, cache, layer, k, v):
        """Keep new keys and values, and return all.  (B, Hkv, T, hs) -> (B, Hkv, S, hs), twice"""
        if layer in cache.k:
            k, v = torch.cat([cache.k[layer], k], 2), torch.cat([cache.v[layer], v], 2)
        cache.k[layer], cache.v[layer] = k, v
        return k, v

    def sees(self, cache, ids, mask):
        """Which columns each new token looks at.  -> (B, T, S)"""
        q, k = torch.arange(cache.t, mask.shape[1])[:, None], torch.arange(mask.shape[1])
        near = (q >= k) & (q - k < (self.window or self.longest))
        return (near & (mask[:, None] > 0)) | (q == k)

    def forget(self, cache, n):
        """Take the last n tokens back."""
        cache.t -= n
        for held in (cache.k, cache.v):
            held.update({layer: x[:, :, : cache.t] for layer, x in held.items()})

    def start(self):
        """An empty cache, for each request."""
        return SimpleNamespace(t=0, k={}, v={})

    # ---------------------------------------------------------------- what the referee calls

    def plain(self, ids):
        return self.step(SimpleNamespace(t=0, k={}, v={}), ids, torch.ones_like(ids))

    def cached(self, pieces, cache=None):
        held = self.start()

        def read(ids):
            return self.step(held, ids, torch.ones(len(ids), held.t + ids.shape[1], dtype=int))

        return through(read, lambda n: self.forget(held, n), pieces)

    def padded(self, ids, mask, lengths):
        if lengths is None:
            return self.step(SimpleNamespace(t=0, k={}, v={}), ids, mask)
        held, parts = self.start(), ids.split(lengths, 1)
        return torch.cat([self.step(held, x, mask[:, : held.t + x.shape[1]]) for x in parts], 1)

    def step(self, cache, ids, mask):
        """Logits of new tokens; the cache grows by them.  (B, T), (B, S) -> (B, T, V)"""
        pos, (B, T) = self.positions(cache, ids, mask), ids.shape
        see, x = self.sees(cache, ids, mask), self.w["tokens"][ids] + self.w["positions"][pos]
        for i in range(self.layers):
            h = F.layer_norm(x, x.shape[-1:]) @ self.w[f"qkv{i}"]
            h = h.view(B, T, -1, self.size).transpose(1, 2)
            q, k, v = h.split([self.heads, self.kv_heads, self.kv_heads], 1)
            k, v = self.store(cache, i, k, v)
            k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
            scores = (q @ k.mT * self.size**-0.5).masked_fill(~see[:, None], -torch.inf)
            y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
            x = x + y @ self.w[f"proj{i}"]
        cache.t += T
        return F.layer_norm(x, x.shape[-1:]) @ self.w["tokens"].T

    def to(self, dtype):
        other = copy.copy(self)
        other.w = {name: w.to(dtype) for name, w in self.w.items()}
        return other
