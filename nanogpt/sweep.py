"""Thousands of random models and texts, each decoded in two ways: do the tokens differ anywhere?

python -m nanogpt.verify sweep --sequences 10000 --exact
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from .cache import DynamicCache, StaticCache
from .config import GPTConfig
from .convert import pack_heads
from .engine import Batched, Flat, Static
from .exact import exact
from .generate import complete, draw_noise
from .model import GPT
from .native import Native
from .runtime import ROOT, check_writable, environment, headless, write_json
from .verify import draw_margins, forced_logits

SHAPES = [(1, 8), (2, 8), (4, 4), (3, 16), (4, 16)]  # heads and their size: few, as each is a native build
ODD = [(3, 10), (10, 10), (5, 3), (1, 33), (7, 5), (2, 17)]  # rows that fill no register; never built
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
    settings: dict


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
    settings = [{}, {}, {"greedy": True}, {"temperature": 0.7}, {"temperature": 1.5}]
    if in_exact or dtype == "float64":  # a cut has edges of its own, which a draw's margin does not measure
        settings += [{"top_k": 5}, {"top_p": 0.8}]
    chunk, batch = pick.choice([1, 5, 7, 99]), pick.randint(1, 6)
    return Case(number, config, dtype, batch, prompt, n_new, way, chunk, pick.choice(settings))


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
    settings = case.settings | ({} if case.settings.get("greedy") else {"noise": noise})
    settings |= {"past_block": "slide"}
    per_head, design = CACHES.get(case.way, (True, None))
    other = model if per_head else pack_heads(model)
    with exact(model) if in_exact else nullcontext(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="past block_size")
        expected = complete(model, prompt, case.n_new, cache=None, **settings)
        if design:
            got = complete(other, prompt, case.n_new, cache=design, **settings)
        else:
            got = complete(other, prompt, case.n_new, engine=ENGINES[case.way], **settings)
        inside = expected[:, : case.config.block_size + 1]
        a = forced_logits(model, inside, case.prompt, None)
        b = forced_logits(other, inside, case.prompt, design or DynamicCache, chunk=case.chunk)
    diffs = (a.double() - b.double()).abs().amax(-1)  # (steps, B)
    scale = case.settings.get("temperature", 1.0)
    drawn = torch.ones_like(noise) if case.settings.get("greedy") else noise
    margins = torch.stack([draw_margins(a[:, i : i + 1], drawn[: len(a), i : i + 1], scale)
                           for i in range(case.batch)], dim=1)  # fmt: skip
    mismatches = []
    for i in (got != expected).any(1).nonzero().flatten().tolist():
        step = int((got[i] != expected[i]).nonzero()[0]) - case.prompt
        found = {"case": case.number, "way": case.way, "text": i, "step": step, "settings": case.settings}
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
        **{"seed": seed, "dtype": dtype, "exact": in_exact, "cases": 0, "sequences": 0, "tokens": 0},
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


def sweep(sequences: int, *, seed: int = 0, dtype: str = "float32", in_exact: bool = False,
          path: Path | None = None, every: int = 50) -> dict:  # fmt: skip
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
        wrong = [key for key in fresh if fresh[key] is not None and type(result[key]) is not type(fresh[key])]
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
            raise ValueError(f"{path} was begun with {key} {its}, and this is {mine}: name another file")
    return result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m nanogpt.verify", description="Are cached tokens uncached tokens?"
    )
    option = parser.add_argument
    option("what", choices=["sweep"])
    option("--sequences", type=int, default=1000, help="texts to decode in two ways (1000)")
    option("--seed", type=int, default=0, help="another thousand (0)")
    option("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    option("--exact", action="store_true", help="in exact mode, where the logits must be the same bits")
    option(
        "--json", metavar="PATH", help="result; an unfinished one is gone on with (outputs/run/sweep-….json)"
    )
    args = parser.parse_args(argv)
    name = args.dtype + "-exact" * args.exact
    path = Path(args.json or ROOT / "outputs" / "run" / f"sweep-{name}.json")
    torch.set_num_threads(1)
    try:
        if args.sequences < 1:
            raise ValueError(f"--sequences {args.sequences}: at least 1")
        if args.dtype == "bfloat16" and not args.exact:
            raise ValueError("--dtype bfloat16 needs --exact: outside of exact mode its tokens may differ")
        check_writable(path)
        result = sweep(args.sequences, seed=args.seed, dtype=args.dtype, in_exact=args.exact, path=path)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from {path}", file=sys.stderr)
        return 130
    print(told(result), f"\nwritten: {path}")
    return 0 if passed(result) else 1


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
