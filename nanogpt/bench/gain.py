"""A KV cache's speedup against text length, from whole runs and from single steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from ..cache import DynamicCache, enable_kv_cache, kv_cache
from ..config import check_int
from ..decoder.model import Decoder
from ..replica import replica
from ..timing import Summary, clock, interleave, summary, time_tokens


class GainRow(TypedDict):
    """A cache's speedup for one number of new tokens, after a prompt of one token."""

    n_new: int
    measured: bool  # whole runs; False: the sum of single steps' times
    uncached: Summary  # seconds of all steps
    cached: Summary
    gain: Summary  # uncached / cached, pair by pair


class Steps(NamedTuple):
    """The seconds of single steps at one text length, including the newest token."""

    length: int
    uncached: list[float]
    cached: list[float]


@torch.inference_mode()
def write(model: Decoder, tokens: Tensor, n_new: int, cache: Any = None) -> Iterator[Tensor]:
    """Yield the most likely next token, n_new times.  (B, T) -> n_new × (B, 1)"""
    read = 0  # tokens whose keys and values are in the cache
    with kv_cache(model, cache, tokens.shape[1] + n_new) if cache else nullcontext():
        for _ in range(n_new):
            new = tokens[:, read:]  # without a cache, the whole text
            pos = torch.arange(read, tokens.shape[1], device=tokens.device)
            logits = model(new, pos=pos, last=1)[0]  # (B, 1, V)
            token = logits[:, -1].argmax(-1, keepdim=True)
            yield token
            read = tokens.shape[1] if cache else 0
            tokens = torch.cat([tokens, token], dim=1)


def gain_by_length(
    model: Decoder, lengths: Sequence[int], *, run_to: int, repeats: int = 3
) -> list[GainRow]:
    """A DynamicCache's speedup for each number of new tokens, after a prompt of one token.

    Up to `run_to` new tokens, whole texts are generated with and without it, interleaved. Beyond
    that, whole runs without a cache would take minutes, so single steps are timed at `run_to` and
    at each later length, the steps in between are interpolated linearly, and all are summed. For a
    convex cost, as here, that slightly overestimates. Raises ValueError if the lengths do not
    ascend, or do not include `run_to`.
    """
    if list(lengths) != sorted(set(lengths)) or run_to not in lengths:
        raise ValueError(f"lengths={lengths}: must ascend and include run_to={run_to}")
    check_int("repeats", repeats, 1)
    start = torch.zeros(1, 1, dtype=torch.int64, device=model.device)

    def run(cache: Any) -> Callable[[], list[float]]:
        return lambda: time_tokens(write(model, start, run_to, cache), model.device)

    for cache in (None, DynamicCache):  # a warm-up
        for _ in write(model, start, 2, cache):
            pass
    runs = interleave({"uncached": run(None), "cached": run(DynamicCache)}, repeats, warmup=0)
    beyond = [n for n in lengths if n >= run_to and lengths[-1] > run_to]
    late = [steps_at(model, n, repeats) for n in beyond]
    rows = []
    for n in lengths:
        uncached = []
        cached = []
        for turn in range(repeats):
            steps = [(one.length, one.uncached[turn]) for one in late]
            uncached.append(sum(runs["uncached"][turn][:n]) + _added(steps, n))
            steps = [(one.length, one.cached[turn]) for one in late]
            cached.append(sum(runs["cached"][turn][:n]) + _added(steps, n))
        pairs = zip(uncached, cached, strict=True)
        row: GainRow = {
            "n_new": n,
            "measured": n <= run_to,
            "uncached": summary(uncached),
            "cached": summary(cached),
            "gain": summary(a / b for a, b in pairs),
        }
        rows.append(row)
    return rows


@torch.inference_mode()
def steps_at(model: Decoder, length: int, repeats: int) -> Steps:
    """Time the step that ends at `length` tokens, with and without a cache, interleaved."""
    vocab_size = model.config.vocab_size
    text = (torch.arange(length, device=model.device) * 7919 % vocab_size)[None]  # (1, length)
    pos = torch.arange(length, device=model.device)
    cached = replica(model)

    def seconds(step: Callable[[], object]) -> float:
        before = clock(model.device)
        step()
        return clock(model.device) - before

    steps = Steps(length, [], [])
    caches = enable_kv_cache(cached, DynamicCache, length)
    cached(text[:, :-1], pos=pos[:-1], last=1)
    for _ in range(repeats):
        steps.uncached.append(seconds(lambda: model(text, last=1)))
        steps.cached.append(seconds(lambda: cached(text[:, -1:], pos=pos[-1:], last=1)))
        for cache in caches:  # as it was before the step
            cache.rewind(1)
    return steps


def _added(ends: list[tuple[int, float]], n: int) -> float:
    """Seconds of the steps after the first of `ends`, up to the one at n tokens.

    `ends` are (length, seconds); the seconds between two of them are interpolated linearly.
    """
    total = 0.0
    for (a, first), (b, last) in pairwise(ends):
        for length in range(a + 1, min(b, n) + 1):
            total += first + (last - first) * (length - a) / (b - a)
    return total
