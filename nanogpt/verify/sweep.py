"""Thousands of random models and texts, each decoded in two ways: do the tokens differ anywhere?

python -m nanogpt verify sweep --sequences 10000 --exact
"""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from ..cache.dynamic import DynamicCache
from ..cache.static import StaticCache
from ..config.shapes import GPTConfig
from ..decoding.generate import complete
from ..decoding.sampling import PLAIN, SamplingParams, draw_noise
from ..engines.eager import Batched, Flat, Static
from ..engines.native import Native
from ..model.convert import pack_heads
from ..model.exact import exact
from ..model.gpt import GPT
from ..system.console import headless
from ..system.environment import environment
from ..system.files import write_json
from .compare import draw_margins, forced_logits

SHAPES = [
    (1, 8),
    (2, 8),
    (4, 4),
    (3, 16),
    (4, 16),
]  # heads and their size: few, as each is a native build


ODD = [
    (3, 10),
    (10, 10),
    (5, 3),
    (1, 33),
    (7, 5),
    (2, 17),
]  # rows that fill no register; never built


KEPT_MISMATCHES = 1000


CACHES = {
    "per-Head, dynamic": (True, DynamicCache),
    "per-Head, static": (True, StaticCache),
    "batched, dynamic": (False, DynamicCache),
    "batched, static": (False, StaticCache),
}


ENGINES = {"Batched": Batched, "Static": Static, "Flat": Flat, "Native": Native}


WAYS = [*CACHES, "Batched", "Static", "Flat"]


@dataclass(frozen=True)
class Case:
    """One draw: a model, prompts, and a way to decode them that is not the lecture's uncached loop."""

    number: int
    config: GPTConfig
    dtype: str
    batch: int
    prompt: int  # its length
    n_new: int
    way: str
    chunk: int  # tokens read at once when the logits are compared
    sampling: SamplingParams


def draw_case(seed: int, number: int, dtype: str, in_exact: bool) -> Case:
    """The same case for the same numbers, on every machine."""
    pick = random.Random(f"{seed} {number}")
    n_head, head_size = pick.choice(SHAPES + ODD if in_exact else SHAPES)
    block = pick.choice([8, 16, 24, 32])
    config = GPTConfig(
        block_size=block, n_layer=pick.choice([1, 2, 3]), n_head=n_head, n_embd=n_head * head_size
    )
    prompt = pick.choice([1, 1, block - 1, block, pick.randint(1, block), pick.randint(1, block)])
    room = block - prompt + 1  # the last token is only returned, so it may stand past the block
    n_new = pick.choice([room, room, pick.randint(1, room)])
    ways = list(WAYS) + ([] if in_exact or dtype != "float32" else ["Native"])
    way = pick.choice(ways)
    if way in CACHES and pick.random() < 0.15:  # past the position table, where the window slides
        n_new = room + pick.randint(1, 4)
    ways_to_draw = [PLAIN, PLAIN, SamplingParams(greedy=True)]
    ways_to_draw += [SamplingParams(temperature=t) for t in (0.7, 1.5)]
    if (
        in_exact or dtype == "float64"
    ):  # a cut has edges of its own, which a draw's margin does not measure
        ways_to_draw += [SamplingParams(top_k=5), SamplingParams(top_p=0.8)]
    chunk, batch = pick.choice([1, 5, 7, 99]), pick.randint(1, 6)
    return Case(number, config, dtype, batch, prompt, n_new, way, chunk, pick.choice(ways_to_draw))


def run_case(seed: int, case: Case, in_exact: bool) -> dict:
    """Decode the case's texts in both ways. Plain data: what was equal, and how nearly it was not."""
    generator = torch.Generator().manual_seed(hash_of(seed, case.number))
    model = GPT(case.config, generator=generator).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6) if p.ndim == 2 else p.add_(0.1 * torch.randn(p.shape, generator=generator))
    model.to(getattr(torch, case.dtype))
    prompt = torch.randint(case.config.vocab_size, (case.batch, case.prompt), generator=generator)
    noise = draw_noise(case.n_new, case.batch, case.config.vocab_size, generator)
    how = {"noise": noise, "past_block": "slide"}
    per_head, design = CACHES.get(case.way, (True, None))
    other = model if per_head else pack_heads(model)
    with exact(model) if in_exact else nullcontext(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="past block_size")
        expected = complete(model, prompt, case.n_new, case.sampling, cache=None, **how)
        if design:
            got = complete(other, prompt, case.n_new, case.sampling, cache=design, **how)
        else:
            got = complete(
                other, prompt, case.n_new, case.sampling, engine=ENGINES[case.way], **how
            )
        inside = expected[:, : case.config.block_size + 1]
        a = forced_logits(model, inside, case.prompt, None)
        b = forced_logits(other, inside, case.prompt, design or DynamicCache, chunk=case.chunk)
    diffs = (a.double() - b.double()).abs().amax(-1)  # (steps, B)
    scale = case.sampling.temperature
    drawn = torch.ones_like(noise) if case.sampling.greedy else noise
    margins = torch.stack(
        [
            draw_margins(a[:, i : i + 1], drawn[: len(a), i : i + 1], scale)
            for i in range(case.batch)
        ],
        dim=1,
    )
    mismatches = []
    for i in (got != expected).any(1).nonzero().flatten().tolist():
        step = int((got[i] != expected[i]).nonzero()[0]) - case.prompt
        found = {
            "case": case.number,
            "way": case.way,
            "text": i,
            "step": step,
            "sampling": asdict(case.sampling),
        }
        if step < len(a):
            margin, diff = float(margins[step, i]), float(diffs[:, i].max())
            found |= {"margin": margin, "logit_diff": diff, "explained": margin <= 2 * diff}
        mismatches.append(found)
    return {
        "sequences": case.batch,
        "tokens": case.batch * case.n_new,
        "mismatches": mismatches,
        "logits": a.numel(),
        "differing_logits": int((a != b).sum()),
        "max_logit_diff": float(diffs.max()),
        "min_margin": float(margins.min()),
    }


def hash_of(seed: int, number: int) -> int:
    """One seed for a torch.Generator from two numbers."""
    return (seed * 1_000_003 + number) % 2**63


def start(seed: int, dtype: str, in_exact: bool) -> dict:
    """An empty result."""
    return {
        **{
            "seed": seed,
            "dtype": dtype,
            "exact": in_exact,
            "cases": 0,
            "sequences": 0,
            "tokens": 0,
        },
        **{"mismatched": 0, "explained": 0, "mismatches": [], "logits": 0, "differing_logits": 0},
        **{"max_logit_diff": 0.0, "min_margin": None, "ways": {}},
    }


def add(result: dict, case: Case, found: dict) -> dict:
    """The result with one case more; the old one stays as it was, so that a Ctrl-C counts all or nothing."""
    result = dict(result)
    for key in ("sequences", "tokens", "logits", "differing_logits"):
        result[key] += found[key]
    result["cases"] += 1
    result["mismatched"] += len(found["mismatches"])
    result["explained"] += sum(m.get("explained", False) for m in found["mismatches"])
    result["mismatches"] = (result["mismatches"] + found["mismatches"])[:KEPT_MISMATCHES]
    result["max_logit_diff"] = max(result["max_logit_diff"], found["max_logit_diff"])
    least = result["min_margin"]
    result["min_margin"] = found["min_margin"] if least is None else min(least, found["min_margin"])
    result["ways"] = dict(Counter(result["ways"]) + Counter({case.way: found["sequences"]}))
    return result


def sweep(
    sequences: int,
    *,
    seed: int = 0,
    dtype: str = "float32",
    in_exact: bool = False,
    path: Path | None = None,
    every: int = 50,
) -> dict:
    """Run cases until `sequences` texts have been decoded; with `path`, go on from what stands there.

    The file is written every `every` cases and at the end, a Ctrl-C included. Raises ValueError for
    a file of another sweep.
    """
    result = start(seed, dtype, in_exact)
    if path and path.is_file():
        result = go_on(path, result)
    bar = tqdm(total=sequences, initial=result["sequences"], unit="text", disable=headless())
    try:
        while result["sequences"] < sequences:
            case = draw_case(seed, result["cases"], dtype, in_exact)
            found = run_case(seed, case, in_exact)
            result = add(result, case, found)
            bar.update(found["sequences"])
            if path and result["cases"] % every == 0:
                write_json(path, result | {"environment": environment()})
    finally:
        bar.close()
        if path:
            write_json(path, result | {"environment": environment()})
    return result


def go_on(path: Path, fresh: dict) -> dict:
    """What an earlier run of the same sweep has counted. Raises ValueError for any other file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        result = {key: found[key] for key in fresh}
        wrong = [
            key
            for key in fresh
            if fresh[key] is not None and type(result[key]) is not type(fresh[key])
        ]
        if wrong:
            raise TypeError(f"{wrong[0]}={result[wrong[0]]!r}")
        torches = found["environment"]["torch"], torch.__version__
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no result of a sweep ({error}): delete it, or name another file"
        ) from None
    for key, mine, its in [(k, fresh[k], result[k]) for k in ("seed", "dtype", "exact")] + [
        ("torch", *torches[::-1])
    ]:
        if mine != its:
            raise ValueError(
                f"{path} was begun with {key} {its}, and this is {mine}: name another file"
            )
    return result


def passed(result: dict) -> bool:
    """No mismatch; in float32 none that its margin does not explain; in exact mode no differing bit."""
    if result["exact"]:
        return result["mismatched"] == result["differing_logits"] == 0
    return result["mismatched"] == (result["explained"] if result["dtype"] != "float64" else 0)


def told(result: dict) -> str:
    """The result in a few lines."""
    r = result
    return (
        f"{r['sequences']:,} texts, {r['tokens']:,} tokens, {r['dtype']}{' in exact mode' * r['exact']}: "
        f"{r['mismatched']} differ ({r['explained']} of them explained by their margin)\n"
        f"{r['differing_logits']:,} of {r['logits']:,} logits differ, at most by {r['max_logit_diff']:.1e}; "
        f"the closest draw was decided by {r['min_margin']:.1e}"
    )
