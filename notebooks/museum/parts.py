"""Building blocks for the museum's models: ours, made small and with weights that show a bug."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from nanogpt.cache import DynamicCache
from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import CausalSelfAttention, Decoder
from nanogpt.verify.ours import Ours

# Two layers, 1 < key heads < heads, a window shorter than the text: without these, bugs pass.
SHAPE = {"vocab_size": 29, "block_size": 96, "n_layer": 2, "n_head": 4, "n_embd": 32}
SHAPE |= {"n_kv_head": 2}


def small(seed=0, attention=CausalSelfAttention, caches=(DynamicCache,), **shape) -> Ours:
    """A random model for the referee, with an exhibit's attention and caches.

    Learned positions unless positions="rotary"; window=8 limits what a query sees.
    """
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(DecoderConfig(**SHAPE | shape), attention=attention)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02, generator=generator)
        for p in model.parameters():
            p.mul_(20) if p.ndim == 2 else p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return Ours(model.double(), caches)


def empty(kept=True):
    return SimpleNamespace(t=0, k={}, v={}, kept=kept)


def rotate(x, pos, dims=None):
    """RoPE of the first `dims` of each row.  (B, H, T, hs), (B, T) -> (B, H, T, hs)"""
    half = (dims or x.shape[-1]) // 2
    angle = (pos[..., None] * 50.0 ** -(torch.arange(half).double() / half))[:, None]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)


class Tiny:
    """A transformer in 60 lines that also reads padded batches; an exhibit overrides its hooks.

    A cache holds what one request has read: `t` tokens, and `k`, `v` for each layer,
    (B, Hkv, t, hs). It is `kept` unless this is a plain pass; `layer` is the current layer. Hooks
    may check `bug`. Positions are learned, or `rotary`.
    """

    vocab_size, longest, window, sessions = 29, 96, None, 1
    layers, heads, kv_heads, size = 2, 4, 2, 8  # layers, heads, key heads, head size
    rotary = False

    def __init__(self, seed: int = 0, bug: bool = False):
        self.name, self.bug = type(self).__name__, bug
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
        """The position of each new token; `mask` covers all columns so far.  (B, S) -> (B, T)"""
        return (mask.cumsum(1) - 1).clamp(min=0)[:, cache.t :]

    def turn(self, cache, q, k, pos):
        """Apply positions to queries and keys.  (B, H, T, hs), (B, Hkv, T, hs), (B, T)"""
        return (rotate(q, pos), rotate(k, pos)) if self.rotary else (q, k)

    def bias(self, cache, q_pos, k_pos):
        """What is added to scores.  (T,), (S,) -> (T, S), for each head or all"""
        return 0

    def group(self, cache, k):
        """Repeat the key heads, one for each query head.  (B, Hkv, S, hs) -> (B, H, S, hs)"""
        return k.repeat_interleave(self.heads // self.kv_heads, 1)

    def store(self, cache, layer, k, v):
        """Append new keys and values, return all.  (B, Hkv, T, hs) -> (B, Hkv, S, hs), twice"""
        if layer in cache.k:
            k, v = torch.cat([cache.k[layer], k], 2), torch.cat([cache.v[layer], v], 2)
        cache.k[layer], cache.v[layer] = k, v
        return k, v

    def sees(self, cache, ids, mask):
        """Which columns each new token attends to.  -> (B, T, S)"""
        far = torch.arange(cache.t, mask.shape[1])[:, None] - torch.arange(mask.shape[1])
        near = (far >= 0) & (far < (self.window or self.longest))
        return (near & (mask[:, None] > 0)) | (far == 0)

    def forget(self, cache, n):
        """Take the last n tokens back."""
        cache.t -= n
        for held in (cache.k, cache.v):
            held.update({layer: x[:, :, : cache.t] for layer, x in held.items()})

    def begin(self):
        """An empty cache, for each request."""
        return empty()

    # ---------------------------------------------------------------- what the referee calls

    def plain(self, ids):
        return self.step(empty(kept=False), ids, torch.ones_like(ids))

    def placed(self, ids, pos):
        """The plain pass of tokens at these positions, for the diagnosis.  (B, T), (T,)"""
        other = copy.copy(self)
        other.positions = lambda cache, ids, mask: pos.expand(ids.shape)
        return other.plain(ids)

    def start(self, rows):
        return Reading(self, self.begin())

    def padded(self, ids, mask, lengths):
        if lengths is None:
            return self.step(empty(kept=False), ids, mask)
        held, parts = self.begin(), ids.split(lengths, 1)
        return torch.cat([self.step(held, x, mask[:, : held.t + x.shape[1]]) for x in parts], 1)

    def step(self, cache, ids, mask):
        """Logits of new tokens; the cache grows by them.  (B, T), (B, S) -> (B, T, V)"""
        pos, (B, T) = self.positions(cache, ids, mask), ids.shape
        places = torch.arange(cache.t + T)
        x = self.w["tokens"][ids] + (0 if self.rotary else self.w["positions"][pos])
        for cache.layer in range(self.layers):
            h = F.layer_norm(x, x.shape[-1:]) @ self.w[f"qkv{cache.layer}"]
            h = h.view(B, T, -1, self.size).transpose(1, 2)
            q, k, v = h.split([self.heads, self.kv_heads, self.kv_heads], 1)
            q, k = self.turn(cache, q, k, pos)
            k, v = (self.group(cache, y) for y in self.store(cache, cache.layer, k, v))
            scores = q @ k.mT * self.size**-0.5 + self.bias(cache, places[cache.t :], places)
            see = self.sees(cache, ids, mask)[:, None]
            y = (scores.masked_fill(~see, -torch.inf).softmax(-1) @ v).transpose(1, 2)
            x = x + y.flatten(2) @ self.w[f"proj{cache.layer}"]
        cache.t += T
        return F.layer_norm(x, x.shape[-1:]) @ self.w["tokens"].T

    def to(self, dtype):
        other = copy.copy(self)
        other.w = {name: w.to(dtype) for name, w in self.w.items()}
        return other


class Reading:
    """A session: one request, read through its cache."""

    def __init__(self, model, cache):
        self.model, self.cache = model, cache

    def read(self, ids):
        columns = self.cache.t + ids.shape[1]
        return self.model.step(self.cache, ids, torch.ones(len(ids), columns, dtype=int))

    def rewind(self, n):
        self.model.forget(self.cache, n)


class Ring(Tiny):
    """Keeps the last `slots` tokens; reads them before new ones overwrite any."""

    window, slots = 8, 16

    def slot(self, cache, columns):
        return columns % self.slots

    def store(self, cache, layer, k, v):
        found, end = [], cache.t + k.shape[2]
        for held, new in ((cache.k, k), (cache.v, v)):
            lead, size = new.shape[:2], new.shape[-1]
            ring = held.setdefault(layer, new.new_zeros(*lead, self.slots, size))
            old = ring[:, :, self.slot(cache, torch.arange(cache.t))]
            last = torch.arange(max(cache.t, end - self.slots), end)
            ring[:, :, self.slot(cache, last)] = new[:, :, -self.slots :]
            found.append(torch.cat([old, new], 2))
        return found

    def forget(self, cache, n):
        cache.t -= n


class Paged(Tiny):
    """Keeps tokens in blocks of a pool that all requests share; `table` has each text's blocks."""

    size_of_block, blocks = 4, 64

    def __init__(self, seed=0, bug=False):
        super().__init__(seed, bug)
        self.pools, self.free, self.used = {}, list(range(1, self.blocks)), []

    def begin(self):
        """Free the blocks of the previous request; the last one is allocated first."""
        self.free, self.used = self.free + self.used, []
        return empty()

    def slots(self, cache, table):
        """Where the tokens of these texts are.  -> (B, S)"""
        table, size = torch.tensor(table), self.size_of_block
        return (table[..., None] * size + torch.arange(size)).flatten(1)

    def store(self, cache, layer, k, v):
        if not cache.kept:
            return super().store(cache, layer, k, v)
        end, new = cache.t + k.shape[2], torch.stack([k, v], 3).transpose(1, 2)
        cache.table = cache.table if hasattr(cache, "table") else [[] for _ in k]
        while len(cache.table[0]) * self.size_of_block < end:
            for row in cache.table:
                if not self.free:
                    raise MemoryError("no free block is left")
                row.append(self.free.pop())
                self.used.append(row[-1])
        shape = (self.blocks * self.size_of_block, *new.shape[2:])
        pool = self.pools.setdefault((layer, k.dtype), new.new_zeros(shape))
        self.write(cache, pool, Paged.slots(self, cache, cache.table)[:, cache.t : end], new)
        held = pool[self.slots(cache, cache.table)[:, :end]]  # (B, S, Hkv, 2, hs)
        return held[:, :, :, 0].transpose(1, 2), held[:, :, :, 1].transpose(1, 2)

    def write(self, cache, pool, slots, new):
        pool[slots] = new

    def forget(self, cache, n):
        cache.t -= n


class Session(Tiny):
    """Keeps what the last request read, and reads only what is new in the next one."""

    def __init__(self, seed=0, bug=False):
        super().__init__(seed, bug)
        self.held = {}

    def reuse(self, cache, ids):
        """Forget all but the tokens that `ids` begins with; the last one is read again."""
        n = min(self.shared(cache, ids), ids.shape[1] - 1)
        self.forget(cache, cache.t - n)
        return n

    def shared(self, cache, ids):
        n = min(cache.ids.shape[1], ids.shape[1])
        return int((cache.ids[:, :n] == ids[:, :n]).all(0).long().cumprod(0).sum())

    def forget(self, cache, n):
        super().forget(cache, n)
        cache.ids, cache.out = cache.ids[:, : cache.t], cache.out[:, : cache.t]

    def start(self, rows):
        key = (rows, self.w["tokens"].dtype)
        if key not in self.held:
            self.held[key] = self.begin()
        return Continued(self, self.held[key])


class Continued(Reading):
    """Its first tokens are compared with what the last request read; only new ones are read."""

    known = False

    def read(self, ids):
        if self.known:
            return self.new(ids)
        self.known, cache, model = True, self.cache, self.model
        if cache.t == 0:
            empty_logits = model.w["tokens"].new_zeros(len(ids), 0, model.vocab_size)
            cache.ids, cache.out = ids[:, :0], empty_logits
        n = model.reuse(cache, ids)
        return torch.cat([cache.out[:, :n], self.new(ids[:, n:])], 1)

    def new(self, ids):
        out, cache = super().read(ids), self.cache
        cache.ids, cache.out = torch.cat([cache.ids, ids], 1), torch.cat([cache.out, out], 1)
        return out


class Serving:
    """Answers like a server, with made-up probabilities for the letter after each three letters."""

    longest, letters = 256, "abcdefghij"

    def __init__(self, seed=0, bug=False):
        self.name, self.seed, self.bug = type(self).__name__, seed, bug

    def dice(self, requests):
        """A generator for each request; one without a seed gets a fresh one."""
        return [random.Random(request.get("seed")) for request in requests]

    def ask(self, requests):
        texts, dice = [request["prompt"] for request in requests], self.dice(requests)
        for _ in range(requests[0]["max_tokens"]):
            new = [self.draw(*row) for row in zip(texts, requests, dice, strict=True)]
            texts = [text + letter for text, letter in zip(texts, self.sent(new), strict=True)]
        starts = (len(request["prompt"]) for request in requests)
        return [{"text": x[n:], "logprobs": None} for x, n in zip(texts, starts, strict=True)]

    def draw(self, text, request, dice):
        chances = random.Random(f"{self.seed} {text[-3:]}").choices(range(1, 99), k=10)
        if not request["temperature"]:
            return self.letters[chances.index(max(chances))]
        return dice.choices(self.letters, chances)[0]

    def sent(self, new):
        """The tokens of a step, as the next step receives them."""
        return new
