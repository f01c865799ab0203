"""The solutions of all blanks, in the order of the notebooks.

    from nanogpt.series.solutions import Head

`make sync` writes them into the notebooks, below their blanks. A reader's lesson imports the ones
that the reader has not written yet.
"""

import math
from statistics import median

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..attention import attend
from ..cache import kv_cache
from ..engines.drafts import Draft
from .traps import MemoryHead, decode, places

# ------------------------------------------------------------------ 01 Train the model


def attention_weights(q, k, mask):
    """The weight of each value for each query.  (…, T, hs), (…, S, hs), (T, S) -> (…, T, S)"""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # divided by √hs
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


def one_step(model, optimizer, x, y):
    """Update the weights once; returns the batch's loss before the update."""
    _, loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# ------------------------------------------------------------------ 02 A cache in every head


def visible(q_pos, k_pos):
    """True where the query at q_pos may attend to the key at k_pos.  (T,), (S,) -> (T, S) of bool"""
    return (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)


class KVCache:
    """The keys, values and positions of all tokens so far; None before the first."""

    def __init__(self, capacity=None):
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
        """Keep the new ones, return all.  (B, T, hs) twice, (T,) -> (B, S, hs) twice, (S,)"""
        if self.k is not None:
            k = torch.cat([self.k, k], dim=1)
            v = torch.cat([self.v, v], dim=1)
            pos = torch.cat([self.pos, pos])
        self.k = k
        self.v = v
        self.pos = pos
        return k, v, pos


class Head(nn.Module):
    """One head of causal self-attention, with its own KV cache."""

    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.dropout = config.dropout
        self.cache = None  # set and removed by kv_cache(model)

    def forward(self, x, pos):
        """(B, T, C), (T,) -> (B, T, hs)"""
        q = self.query(x)  # (B, T, hs)
        k = self.key(x)
        v = self.value(x)
        k_pos = pos  # (T,)
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)  # (B, S, hs), (S,)
        weights = attention_weights(q, k, visible(pos, k_pos))  # (B, T, S)
        return F.dropout(weights, self.dropout, self.training) @ v  # (B, T, hs)


def sample(logits, noise):
    """Sample one token per row.  (B, V), (B, V) -> (B, 1)"""
    probs = logits.softmax(-1)
    return (probs / noise).argmax(-1, keepdim=True)


@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    """Yield one token per row of noise.  (B, T), (n, B, V) -> n × (B, 1)"""
    tokens = prompt  # prefill: the whole prompt
    pos = torch.arange(prompt.shape[1], device=prompt.device)
    with kv_cache(model, cache):
        for row in noise:
            logits, _ = model(tokens, pos=pos)  # T tokens once, then 1, 1, 1 …
            tokens = sample(logits[:, -1], row)
            yield tokens
            pos = pos[-1:] + 1  # decode: only the new token, one position further


class StaticKVCache:
    """Slots for positions 0 to capacity - 1, allocated at the first update; empty ones have position -1."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
        """Write the new ones, return all S slots.  (B, T, hs) twice, (T,) -> (B, S, hs) twice, (S,)"""
        if self.k is None:
            self.k = k.new_zeros(k.shape[0], self.capacity, k.shape[2])
            self.v = torch.zeros_like(self.k)
            self.pos = pos.new_full((self.capacity,), -1)
        self.k[:, pos] = k
        self.v[:, pos] = v
        self.pos[pos] = pos
        return self.k, self.v, self.pos


# ------------------------------------------------------------------ 03 The same tokens


def verdict(in_float32, in_float64):
    """'equal', 'rounding' or 'bug', from the largest logit difference in each dtype."""
    if in_float32 == in_float64 == 0:
        return "equal"
    return "rounding" if in_float64 < in_float32 / 1000 else "bug"


class SlyCache(KVCache):
    def update(self, k, v, pos):
        """Keep the new, return all; wrong if a second piece has several tokens.  Like KVCache.update"""
        if self.k is not None and len(pos) > 1:
            v = v.flip(1)
        return super().update(k, v, pos)


def margin(logits, noise):
    """By how many logits the best candidate beats the second best.  (V,), (V,) -> float"""
    best, second = (logits - noise.log()).topk(2).values
    return (best - second).item()


# ------------------------------------------------------------------ 04 Eight traps


class MaskedHead(Head):
    def forward(self, x, pos):
        """Causal attention, with or without self.cache.  (B, T, C), (T,) -> (B, T, hs)"""
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        k_pos = pos
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)
        return attend(q, k, v, visible(pos, k_pos))


def repaired_loop(model, prompt, noise):
    """One new token per row of noise, with a cache.  (1, T), (n, 1, V) -> (1, n)"""
    x = prompt
    start = 0
    out = []
    with kv_cache(model, KVCache):
        for row in noise:
            logits, _ = model(x, pos=places(start, x.shape[1], x))
            start += x.shape[1]
            x = sample(logits[:, -1], row)
            out.append(x)
    return torch.cat(out, dim=1)


def read_on(model, x):
    """The logits of the next tokens from a model of MemoryHeads.  (B, T) -> (B, T, V)"""
    head = next(module for module in model.modules() if isinstance(module, MemoryHead))
    start = sum(k.shape[1] for k, v in head.memory)
    return model(x, pos=places(start, x.shape[1], x))[0]


def repaired_baseline(model, prompt, noise):
    """The uncached text; leaves model.training as it was.  (1, T), (n, 1, V) -> (1, n)"""
    was_training = model.training
    text = prompt
    model.eval()
    for row in noise:
        logits, _ = model(text)
        text = torch.cat([text, sample(logits[:, -1], row)], dim=1)
    model.train(was_training)
    return text[:, prompt.shape[1] :]


class AskedHead(Head):
    def __init__(self, config):
        super().__init__(config)
        self.memory = None  # off; on: a list of pairs of keys and values

    def forward(self, x, pos):
        """Causal attention, including the memory if it is on.  (B, T, C), (T,) -> (B, T, hs)"""
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        if self.memory is not None and not self.training:
            self.memory.append((k, v))
            k, v = (torch.cat(rows, dim=1) for rows in zip(*self.memory))
        order = torch.arange(k.shape[1], device=x.device)
        return attend(q, k, v, visible(order[-x.shape[1] :], order))


def check_length(T, n_new, block_size):
    """Raise ValueError if the model cannot generate n_new tokens after a prompt of T.

    The message says how many it can. A prompt that does not fit is also an error.
    """
    room = block_size + 1 - T
    if T > block_size or n_new > room:
        raise ValueError(f"a prompt of {T} leaves room for {max(room, 0)} tokens, not {n_new}")


def one_text(model, prompt, noise):
    """decode(model, prompt, noise), with empty memories before and after."""
    heads = [module for module in model.modules() if isinstance(module, MemoryHead)]
    for head in heads:
        head.memory.clear()
    try:
        return decode(model, prompt, noise)
    finally:
        for head in heads:
            head.memory.clear()


class FixedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 32, 16))
        self.register_buffer("v", torch.zeros(1, 32, 16))

    def forward(self, q, k, v, pos):
        """One step of attention, over slots 0 … pos.  (1, 1, 16) three times, (1,) -> (1, 1, 16)"""
        self.k.index_copy_(1, pos, k)
        self.v.index_copy_(1, pos, v)
        scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(32) > pos, float("-inf"))
        return scores.softmax(-1) @ self.v


# ------------------------------------------------------------------ 05 How much faster


def multiplications(T: int, W: int, L: int, C: int, cached: bool) -> int:
    """Multiplications of the step after T tokens, with W weights in matrices and L layers of width C."""
    n = 1 if cached else T
    return n * W + n * T * 2 * L * C


def latency(moments: list[float]) -> dict:
    """TTFT, TPOT, ITL and E2EL in seconds, from timestamps: the call, then each token."""
    first, *rest = [b - a for a, b in zip(moments, moments[1:])]
    tpot = sum(rest) / len(rest) if rest else None
    return {"ttft": first, "tpot": tpot, "itl": rest, "e2el": moments[-1] - moments[0]}


def paired_speedup(a: list[float], b: list[float]) -> float:
    """The speedup of b over a: the median of the ratios within the pairs."""
    return median(x / y for x, y in zip(a, b))


# ------------------------------------------------------------------ 06 To the limit


def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4) -> int:
    """Bytes that one decode step reads: all weights, and the cache of `tokens` tokens."""
    cache = 2 * n_layer * n_head * head_size * tokens
    return (n_weights + cache) * itemsize


def fastest(flop: float, n_bytes: float, peak: float, bandwidth: float) -> float:
    """Upper limit of tokens per second if arithmetic and memory reads overlap."""
    return 1 / max(flop / peak, n_bytes / bandwidth)


def round_row(row: list[float]) -> tuple[list[int], float]:
    """Integer codes from -127 to 127 and one scale: row[i] ≈ codes[i] * scale."""
    scale = max(abs(number) for number in row) / 127
    if scale == 0:
        return [0] * len(row), 0.0
    return [round(number / scale) for number in row], scale


# ------------------------------------------------------------------ 07 Past the limit


def tokens_gained(proposals: list[int], choices: list[int]) -> list[int]:
    """The tokens that one pass adds to the text; len(choices) == len(proposals) + 1."""
    n = 0
    while n < len(proposals) and proposals[n] == choices[n]:
        n += 1
    return choices[: n + 1]


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Half the sum of the absolute differences.  (…, V), (…, V) -> (…)"""
    return (p - q).abs().sum(-1) / 2


def expected_gain(a: float, k: int) -> float:
    """Mean tokens per pass with k proposals, each accepted with probability a from 0 to 1."""
    return sum(a**i for i in range(k + 1))


class MyDraft(Draft):
    """Guesses what followed the last token at its previous occurrence in the text."""

    def begin(self, prompt, sampling):
        """A function guess(text, noise): (1, t), (1, V) -> (1, 1), or None."""

        def guess(text, noise):
            before = (text[0, :-1] == text[0, -1]).nonzero()
            return text[:, before[-1] + 1] if len(before) else None

        return guess


# ------------------------------------------------------------------ 08 Groups, rotations, windows


def key_head(h, n_head, n_kv_head):
    """The index of the KV head that query head h reads: an integer below n_kv_head."""
    group = n_head // n_kv_head  # query heads that share
    return h // group


def turn_arrow(a, b, angle):
    """The end of the arrow (a, b) after a rotation by `angle` radians: two numbers."""
    cos = math.cos(angle)
    sin = math.sin(angle)
    return a * cos - b * sin, a * sin + b * cos


def every_second(q_pos, k_pos, window=None, sinks=0):
    """True where the query at q_pos sees the key at k_pos.  (T,), (S,) -> (T, S)"""
    gap = q_pos[:, None] - k_pos[None, :]
    return visible(q_pos, k_pos) & (gap % 2 == 0)


def slot_of(position, window, sinks=0):
    """The slot of a position: an integer from 0 to sinks + window - 1."""
    if position < sinks:
        return position
    return sinks + (position - sinks) % window


# ------------------------------------------------------------------ 09 Many readers


def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    """True where a query may attend to a key of its own sequence, not after it.  (N,) twice, (S,) twice -> (N, S)"""
    same = q_seq[:, None] == k_seq[None, :]
    return same & (k_pos[None, :] <= q_pos[:, None])


def block_name(parent, tokens: list[int]):
    """A name for a full block, from its parent's name and its own tokens."""
    return (parent, tuple(tokens))


def admitted(needs: list[int], free: int, most: int) -> int:
    """How many requests are admitted, from the front of the queue."""
    count = 0
    for need in needs[:most]:
        if need > free:
            break
        count += 1
        free -= need
    return count


# ------------------------------------------------------------------ 10 Out of the notebook


def fold(W: Tensor, c: Tensor) -> Tensor:
    """d with W d = c + λ 1 for some number λ.  (V, C), (V,) -> (C,), float64"""
    A = torch.cat([W.double(), -torch.ones(len(W), 1, dtype=torch.float64)], dim=1)
    x = torch.linalg.lstsq(A, c.double()[:, None], driver="gelsd").solution[:, 0]
    return x[: W.shape[1]]


def flip(rows: Tensor, n_head: int) -> Tensor:
    """The same matrix with the second half of each head's rows negated.  (H·hs, C) -> (H·hs, C)"""
    halves = rows.view(n_head, 2, -1, rows.shape[1])
    return torch.cat([halves[:, :1], -halves[:, 1:]], dim=1).reshape(rows.shape)


def average(gradients: list[Tensor], rows: list[int]) -> Tensor:
    """The gradient of the mean over all rows; process i has the mean over its own rows[i]."""
    return sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)


# ------------------------------------------------------------------ 11 The same loss in less time


def learning_rate(step, steps, warmup):
    """The factor of the learning rate at `step`, 0 ≤ step < steps."""
    rise = min(1, (step + 1) / warmup)
    return rise * (1 - step / steps)


def accumulate(model, x, y, parts):
    """The gradients of the whole batch, part by part; returns the loss of the whole batch."""
    total = 0.0
    for x_part, y_part in zip(x.chunk(parts), y.chunk(parts)):
        loss = model(x_part, y_part)[1] / parts
        loss.backward()
        total += loss.item()
    return total


def mfu(chars, seconds, parameters, layers, width, block, peak):
    """The share of `peak` (operations per second) used by processing `chars` characters in `seconds`."""
    work = 6 * parameters + 12 * layers * width * block  # per character
    return work * chars / seconds / peak


# ------------------------------------------------------------------ 12 To the last bit


def pairwise(x):
    """The sum of x, neighbours first: (a + b) + (c + d) for four.  (2**k,) -> ()"""
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return x[0]


def row_by_row(x, weight):
    """x times weight transposed, one row at a time.  (…, K), (N, K) -> (…, N)"""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.cat([F.linear(row[None], weight) for row in rows])
    return out.view(*x.shape[:-1], len(weight))


def padded_attention(q, k, v, mask, length):
    """attend over exactly `length` keys.  (T, hs), (S, hs), (S, hs), (T, S) -> (T, hs)"""
    more = length - k.shape[-2]
    k, v = (F.pad(x, (0, 0, 0, more)) for x in (k, v))
    return attend(q, k, v, F.pad(mask, (0, more)))


# ------------------------------------------------------------------ 13 A real model


def share_keys(k, n_head):
    """Keys for n_head heads; neighbouring heads share them.  (B, Hkv, S, hs) -> (B, n_head, S, hs)"""
    return k.repeat_interleave(n_head // k.shape[1], dim=1)


def gated(x, gate, up, down):
    """The gated feed-forward layer.  (…, C), (hidden, C) twice, (C, hidden) -> (…, C)"""
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
