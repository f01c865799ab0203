"""Thousands of random texts, each decoded in two ways: do the tokens differ anywhere?"""

from __future__ import annotations

import random
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..cache import DynamicCache, StaticCache
from ..comparison import decode_both, rounding
from ..config import GPTConfig, check_int, check_switch
from ..console import Progress
from ..decoder.pack import pack_heads
from ..engines.eager import Batched, Flat
from ..engines.exact import exact
from ..engines.generation import complete
from ..engines.native import Native
from ..model import GPT
from ..sampling import PLAIN, SamplingParams, draw_noise

_COUNTS = (
    *("cases", "sequences", "tokens", "mismatched", "explained", "logits", "differing_logits"),
    "too_close",  # samples with a margin of at most twice the difference of the logits
)
_Result = dict[str, Any]  # of a sweep: plain data
_DTYPES = ("float32", "float64", "bfloat16")
_SHOWN = 10  # most mismatches that a result describes one by one
SHAPES = [(1, 8), (2, 8), (4, 4), (3, 16), (4, 16)]  # heads, head size; few: each is a native build
# Rows of these do not fill whole registers. Drawn only in exact mode, where nothing is built.
ODD_SHAPES = [(3, 10), (10, 10), (5, 3), (1, 33), (7, 5), (2, 17)]
WAYS: dict[
    str, tuple[bool, dict[str, Any]]
] = {  # name: whether the weights are per head, and how to decode
    "per-Head, dynamic": (True, {"cache": DynamicCache}),
    "per-Head, static": (True, {"cache": StaticCache}),
    "batched, dynamic": (False, {"cache": DynamicCache}),
    "batched, static": (False, {"cache": StaticCache}),
    "Batched": (True, {"engine": Batched}),
    "Flat": (True, {"engine": Flat}),
    "Native": (True, {"engine": Native}),
}


@dataclass(frozen=True)
class _Case:
    """A random case: a model, prompts, and a decoding path to compare with uncached decoding."""

    number: int
    config: GPTConfig
    dtype: str
    batch: int
    prompt: int  # its length
    n_new: int
    way: str  # a key of WAYS
    chunk: int  # prefilled at once when the logits are compared
    sampling: SamplingParams


def draw_case(seed: int, number: int, dtype: str, in_exact: bool) -> _Case:
    """Draw a case; the same arguments give the same case on every machine."""
    pick = random.Random(f"{seed} {number}")
    n_head, head_size = pick.choice(SHAPES + ODD_SHAPES if in_exact else SHAPES)
    block = pick.choice([8, 16, 24, 32])
    n_layer = pick.choice([1, 2, 3])
    config = GPTConfig(block_size=block, n_layer=n_layer, n_head=n_head, n_embd=n_head * head_size)
    prompt = pick.choice([1, 1, block - 1, block, pick.randint(1, block), pick.randint(1, block)])
    most = block - prompt + 1  # the last token is only returned, so it may be past the block
    n_new = pick.choice([most, most, pick.randint(1, most)])
    native = dtype == "float32" and not in_exact
    ways = [way for way, (_, how) in WAYS.items() if how.get("engine") is not Native or native]
    way = pick.choice(ways)
    if "cache" in WAYS[way][1] and pick.random() < 0.15:  # past the table, where the window slides
        n_new = most + pick.randint(1, 4)
    chunk = pick.choice([1, 5, 7, 99])
    batch = pick.randint(1, 6)
    samplings = [PLAIN, PLAIN, SamplingParams(greedy=True)]
    samplings += [SamplingParams(temperature=t) for t in (0.7, 1.5)]
    if in_exact or dtype == "float64":  # these have edges that a sample's margin does not measure
        samplings += [SamplingParams(top_k=5), SamplingParams(top_p=0.8)]
    sampling = pick.choice(samplings)
    return _Case(number, config, dtype, batch, prompt, n_new, way, chunk, sampling)


def run_case(result: _Result, case: _Case) -> None:
    """Decode the case's texts both ways, and add what was found to the result of a sweep."""
    generator = torch.Generator().manual_seed((result["seed"] * 1_000_003 + case.number) % 2**63)
    model = _random_model(case, generator)
    prompt = torch.randint(case.config.vocab_size, (case.batch, case.prompt), generator=generator)
    noise = draw_noise(case.n_new, case.batch, case.config.vocab_size, generator)
    per_head, way = WAYS[case.way]
    ways = [(model, {"cache": None}), (model if per_head else pack_heads(model), way)]
    with exact(model) if result["exact"] else nullcontext():
        decoded = decode_both(ways, prompt, noise, case.sampling, case.chunk, complete)
    (expected, got), (a, b), margins = decoded
    diffs = (a.double() - b.double()).abs().amax(-1)  # (steps, B)
    diffs = diffs.nan_to_num(sys.float_info.max)  # JSON has no NaN: use the largest number
    mismatches = _mismatches(case, expected, got, diffs, margins, rounding(a))
    result["cases"] += 1
    result["sequences"] += case.batch
    result["tokens"] += noise[..., 0].numel()
    result["mismatched"] += len(mismatches)
    result["explained"] += sum(one.get("explained", False) for one in mismatches)
    result["mismatches"] = (result["mismatches"] + mismatches)[:_SHOWN]
    result["logits"] += a.numel()
    result["differing_logits"] += int((a != b).sum())
    result["too_close"] += int(((margins <= 2 * diffs) & (diffs > 0)).sum())
    result["max_logit_diff"] = max(result["max_logit_diff"], float(diffs.max()))
    result["min_margin"] = min(result["min_margin"], float(margins.min()))
    result["ways"][case.way] += case.batch


def _random_model(case: _Case, generator: torch.Generator) -> GPT:
    """A model whose logits are far from flat, so that a wrong mask moves tokens."""
    model = GPT(case.config, generator=generator).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(6)
            else:
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model.to(getattr(torch, case.dtype))


def _mismatches(
    case: _Case, expected: Tensor, got: Tensor, diffs: Tensor, margins: Tensor, limit: float
) -> list[dict[str, Any]]:
    """For each wrong text: where it first goes wrong, and whether rounding explains that.

    Wrong means another token, or a logit that is off by more than `limit`, the effect of rounding.
    A token is explained if its sample's margin was less than twice the difference of its logits.
    """
    beyond = ~(diffs <= limit)  # (steps, B); a limit that is NaN allows nothing
    wrong = got != expected  # (B, n_new)
    mismatches = []
    wrong[:, : len(beyond)] |= beyond.T
    for i in wrong.any(1).nonzero().flatten().tolist():
        step = int(wrong[i].nonzero()[0])
        mismatch = {"case": case.number, "way": case.way, "text": i, "step": step}
        if step < len(margins):
            margin = float(margins[step, i])
            diff = float(diffs[:, i].max())
            explained = margin <= 2 * diff and not beyond[:, i].any().item()
            mismatch |= {"margin": margin, "logit_diff": diff, "explained": explained}
        mismatches.append(mismatch)
    return mismatches


def sweep(
    sequences: int, *, seed: int = 0, dtype: str = "float32", in_exact: bool = False
) -> _Result:
    """Run cases until at least `sequences` texts are decoded; returns counts and mismatches."""
    check_int("sequences", sequences, 0)
    check_int("seed", seed, 0, 2**63 - 1)
    check_switch("in_exact", in_exact)
    if dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype!r}: choose {', '.join(_DTYPES)}")
    result: _Result = {"seed": seed, "dtype": dtype, "exact": in_exact, **dict.fromkeys(_COUNTS, 0)}
    result |= {"max_logit_diff": 0, "min_margin": inf, "mismatches": [], "ways": Counter()}
    with Progress(sequences, "texts") as bar:
        while result["sequences"] < sequences:
            case = draw_case(seed, result["cases"], dtype, in_exact)
            run_case(result, case)
            bar.update(case.batch)
    return result


def passed(result: _Result) -> bool:
    """Whether all mismatches are allowed.

    In exact mode logits must be bit-identical. In float64 no token may differ; in other dtypes
    tokens may differ if rounding explains it.
    """
    if result["exact"]:
        return not result["mismatched"] and not result["differing_logits"]
    allowed = 0 if result["dtype"] == "float64" else result["explained"]
    return bool(result["mismatched"] == allowed)


def describe(result: _Result) -> str:
    """The result in two lines."""
    r = result
    mode = " in exact mode" if result["exact"] else ""
    return (
        f"{r['sequences']:,} texts, {r['tokens']:,} tokens, {r['dtype']}{mode}: "
        f"{r['mismatched']} differ ({r['explained']} of them explained by rounding)\n"
        f"{r['differing_logits']:,} of {r['logits']:,} logits differ, by at most "
        f"{r['max_logit_diff']:.1e}; the closest sample was decided by {r['min_margin']:.1e}, and "
        f"{r['too_close']} by less than twice the difference of their own logits"
    )
