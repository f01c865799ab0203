"""A KV cache's speedup over text length and batch, and where the time without one goes.

Short texts are generated in full, longer ones are added up from single steps. The three places
where the time can go are defined in `Bound`, with what each means for a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from enum import Enum
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from ..cache import DynamicCache, enable_kv_cache, kv_cache
from ..config import check_int
from ..decoder.config import DecoderConfig
from ..decoder.model import Decoder
from ..device import Device
from ..files import ROOT, read_json
from ..replica import replica
from ..timing import Summary, clock, interleave, summary, time_tokens
from .roofline import work
from .shapes import random_model

# The most operations of a whole text without a cache, by type of device: a few seconds. Longer
# texts are added up from single steps.
WHOLE_TEXT = {"cpu": 3e10, "cuda": 4e12}
SINGLE_STEPS = 16


class Bound(Enum):
    """What takes the largest part of the time without a cache."""

    CALLS = "calls"
    BANDWIDTH = "bandwidth"
    ARITHMETIC = "arithmetic"

    @property
    def reason(self) -> str:
        """One sentence: why a cache gains little or much there."""
        return _REASONS[self]


_REASONS = {
    Bound.CALLS: "Calling the operations takes longest, and a cache saves no calls.",
    Bound.BANDWIDTH: (
        "Reading the weights takes longest, and every step reads all of them, with or without a "
        "cache."
    ),
    Bound.ARITHMETIC: (
        "Arithmetic takes longest, most of it on tokens of earlier steps, and a cache saves that "
        "part."
    ),
}


class GainRow(TypedDict):
    """A cache's speedup for one number of new tokens, after a prompt of one token."""

    n_new: int
    measured: bool  # whole runs; False: the sum of single steps' times
    uncached: Summary  # seconds of all steps
    cached: Summary
    gain: Summary  # uncached / cached, pair by pair


class BatchRow(GainRow, total=False):
    """A row for one batch size. The first published results have no `bound`."""

    batch: int
    bound: str  # the value of a Bound


class TokenSteps(TypedDict):
    """Seconds of a step over a single token."""

    first: Summary  # after other work
    later: Summary  # the mean of the next SINGLE_STEPS


class ModelGain(TypedDict, total=False):
    """All rows of one model, and the steps that they are judged by; the first results lack them."""

    model: str
    n_params: int
    single: TokenSteps
    thin: TokenSteps  # of the `thin` model of its depth: its calls
    rows: list[BatchRow]


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
    model: Decoder, lengths: Sequence[int], *, run_to: int, repeats: int = 3, batch: int = 1
) -> list[GainRow]:
    """A DynamicCache's speedup for each number of new tokens, after a prompt of one token.

    `batch` texts are generated together.

    Up to `run_to` new tokens, whole texts are generated with and without it, interleaved. Beyond
    that, whole runs without a cache would take minutes, so single steps are timed at `run_to` and
    at each later length, the steps in between are interpolated linearly, and all are summed. For a
    convex cost, as here, that slightly overestimates. Raises ValueError if the lengths do not
    ascend, or do not include `run_to`.
    """
    if list(lengths) != sorted(set(lengths)) or run_to not in lengths:
        raise ValueError(f"lengths={lengths}: must ascend and include run_to={run_to}")
    check_int("repeats", repeats, 1)
    check_int("batch", batch, 1)
    start = torch.zeros(batch, 1, dtype=torch.int64, device=model.device)

    def run(cache: Any) -> Callable[[], list[float]]:
        return lambda: time_tokens(write(model, start, run_to, cache), model.device)

    for cache in (None, DynamicCache):  # a warm-up
        for _ in write(model, start, 2, cache):
            pass
    runs = interleave({"uncached": run(None), "cached": run(DynamicCache)}, repeats, warmup=0)
    beyond = [n for n in lengths if n >= run_to and lengths[-1] > run_to]
    late = [steps_at(model, n, repeats, batch) for n in beyond]
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
def steps_at(model: Decoder, length: int, repeats: int, batch: int = 1) -> Steps:
    """Time the step that ends at `length` tokens, with and without a cache, interleaved."""
    vocab_size = model.config.vocab_size
    text = (torch.arange(length, device=model.device) * 7919 % vocab_size).repeat(batch, 1)
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


# ------------------------------------------------------------------ over length, batch and model


def gain_by_batch(
    name: str,
    model: Decoder,
    batches: Sequence[int],
    lengths: Sequence[int],
    *,
    repeats: int = 3,
) -> Iterator[ModelGain]:
    """Measure a model at each batch size and length; yields the rows so far after each batch size.

    Lengths beyond the model's block are left out. Texts are generated in full up to the length
    that `WHOLE_TEXT` allows. Raises ValueError if no length is left, or they do not ascend.
    """
    fitting = [n for n in lengths if n <= model.config.block_size]
    if not fitting:
        longest = model.config.block_size
        raise ValueError(f"lengths={list(lengths)}: {name} generates at most {longest} tokens")
    # 1. What every step costs, with or without a cache: a step over a single token. Its
    #    calls are those of a model of the same depth that has hardly any weights.
    models = {"single": model, "thin": Decoder(thin(model.config)).to(model.lm_head.weight).eval()}
    steps = single_token_steps(models, repeats)
    found: ModelGain = {"model": name, "n_params": model.n_params, "rows": []}
    found["single"] = steps["single"]
    found["thin"] = steps["thin"]
    # 2. The speedups, and for each of them where the time without a cache goes.
    for batch in batches:
        run_to = longest_whole_text(model.config, batch, fitting, WHOLE_TEXT[model.device.type])
        rows = gain_by_length(model, fitting, run_to=run_to, repeats=repeats, batch=batch)
        for row in rows:
            single = least_seconds(steps["single"], row["n_new"])
            calls = least_seconds(steps["thin"], row["n_new"])
            bound = bound_of(row["uncached"]["low"], single, calls)
            found["rows"].append({**row, "batch": batch, "bound": bound.value})
        yield found


def gains(
    shapes: Sequence[str],
    batches: Sequence[int],
    lengths: Sequence[int],
    *,
    device: Device,
    repeats: int = 3,
) -> Iterator[list[ModelGain]]:
    """Measure models of those shapes, one after the other; yields all rows so far, as they come."""
    done: list[ModelGain] = []
    for name in shapes:
        model = random_model(name, device)
        for found in gain_by_batch(name, model, batches, lengths, repeats=repeats):
            yield [*done, found]
        done.append(found)


def thin(config: DecoderConfig) -> DecoderConfig:
    """The same layers and heads with 8 numbers each, for a vocabulary of 8."""
    width = 8
    heads = replace(config, n_embd=width * config.n_head, head_dim=width)
    return replace(heads, vocab_size=width, ffn_dim=width)


def single_token_steps(models: dict[str, Decoder], repeats: int) -> dict[str, TokenSteps]:
    """Time a text of one token for each model, interleaved: the first one, and those after it.

    The first one finds the processor's caches full of other data, so that in a small model it can
    take twice as long.
    """

    def run(model: Decoder) -> Callable[[], list[float]]:
        token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)

        def timed() -> list[float]:
            texts = (write(model, token, 1) for _ in range(1 + SINGLE_STEPS))
            return time_tokens(chain.from_iterable(texts), model.device)

        return timed

    turns = interleave({name: run(model) for name, model in models.items()}, repeats)
    return {
        name: {
            "first": summary(gaps[0] for gaps in runs),
            "later": summary(fmean(gaps[1:]) for gaps in runs),
        }
        for name, runs in turns.items()
    }


def least_seconds(steps: TokenSteps, n: int) -> float:
    """The seconds of n such steps, undisturbed."""
    return steps["first"]["low"] + (n - 1) * steps["later"]["low"]


def bound_of(uncached: float, single: float, calls: float) -> Bound:
    """What takes the largest part of a text's seconds without a cache.

    `single` are the seconds of as many steps over a single token, and `calls` those of the thin
    model. Whatever a text takes beyond `single` is arithmetic on more tokens.
    """
    parts = {
        Bound.CALLS: calls,
        Bound.BANDWIDTH: single - calls,
        Bound.ARITHMETIC: uncached - single,
    }
    return max(parts, key=lambda bound: parts[bound])


def longest_whole_text(
    config: DecoderConfig, batch: int, lengths: Sequence[int], operations: float
) -> int:
    """The longest of `lengths` whose text needs at most that many operations without a cache.

    The first one if none does.
    """
    allowed = lengths[0]
    for n in lengths:
        if batch * n * work(config, n, cached=False)["flop"] <= operations:
            allowed = n
    return allowed


def published_gains() -> list[dict[str, Any]]:
    """The results of `bench gain` in outputs/gpu, one for each file that has one."""
    found = []
    for path in sorted(Path(ROOT, "outputs", "gpu").glob("*/**/gain*.json")):
        data = read_json(path)
        if isinstance(data, dict) and data.get("what") == "gain":
            found.append(data)
    return found
