"""The ladder: the same tokens from every engine, timed in turns, beside the machine's own limits.

python -m nanogpt.bench ladder --size small --json
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from . import native
from .bench import clock, spread, summary
from .build import CannotBuild
from .checkpoint import load_checkpoint
from .compiled import Compiled
from .config import SIZES
from .convert import pack_heads, unpack_heads
from .engine import Batched, Engine, Flat, PerHead, Static, Uncached
from .generate import generate
from .graph import Graph, GraphLoop
from .limits import peak_arithmetic, read_bandwidth, split, weight_bytes, work
from .model import GPT
from .runtime import ROOT, check_writable, environment, headless, pick_device, write_json


@dataclass(frozen=True)
class Rung:
    """One step of the ladder."""

    number: str
    label: str
    engine: type[Engine]
    per_head: bool = False
    cached: bool = True
    itemsize: int | None = None  # bytes of a weight, where they are not those of the model's dtype


def rungs(device: torch.device) -> list[Rung]:
    """The ladder on this kind of device, slowest first."""
    first = [
        Rung("1", "per-Head, no cache", Uncached, per_head=True, cached=False),
        Rung("2", "per-Head, cache by torch.cat", PerHead, per_head=True),
        Rung("3", "batched heads, torch.cat", Batched),
        Rung("4", "static cache, inference_mode", Static),
        Rung("5", "flat step, eager", Flat),
    ]
    if device.type == "cuda":
        return [
            *first,
            Rung("6", "CUDA graph of a step", Graph),
            Rung("7", "CUDA graph of 16 steps", GraphLoop),
        ]
    return [
        *first,
        Rung("6", "compiled step", Compiled),
        Rung("7", "native loop", native.Native),
        Rung("8", "native loop, 8-bit weights", native.Native8, itemsize=1),
    ]


def ladder(model: GPT, *, n_new: int = 255, repeats: int = 5, seed: int = 42, only: str | None = None,
           peers: dict[str, Callable] | None = None, progress: bool = True) -> dict:  # fmt: skip
    """Time every rung on this model: batch 1, a prompt of one token, n_new sampled tokens.

    The rungs take turns, repeat by repeat, after one warm-up each; noise, checks and all are inside
    the time. Returns plain data: for each rung the seconds its build took, first and again; tokens
    per second; the ratio to the first rung, pair by pair; whether its tokens are the first rung's;
    and the machine's limits, measured between the repeats. Raises ValueError.
    """
    device = model.lm_head.weight.device
    limit = model.config.block_size
    if not 2 <= n_new <= limit:
        raise ValueError(f"n_new={n_new}: choose 2 to {limit} tokens, the model's block_size")
    forms = {model.config.per_head: model.eval()}
    forms[not model.config.per_head] = (pack_heads if model.config.per_head else unpack_heads)(model)
    there = {r.number: r for r in rungs(device)}
    if only is not None and (not only or set(only) - set(there)):
        raise ValueError(f"rungs={only!r}: choose from {''.join(there)}, as in 1467")
    chosen = [r for r in there.values() if only is None or r.number in only]
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=device)
    results, runs = [], {}
    for rung in chosen:
        form = forms[rung.per_head]
        engine, built = _build(rung.engine, form)
        results.append({"rung": rung.number, "label": rung.label} | built)
        if engine is not None:
            runs[rung.number] = _run(form, prompt, n_new, engine, seed)
    runs |= peers or {}
    if not runs:
        raise ValueError(f"nothing to time: rungs {only} cannot be built here ({results[0]['unavailable']})")
    seconds, tokens, limits = _in_turns(runs, repeats, model, device, progress)
    first = next(iter(runs))
    for rung, result in zip(chosen, results, strict=True):
        if rung.number in runs:
            result |= _described(seconds, rung.number, first, n_new)
            result["equal"] = torch.equal(tokens[rung.number], tokens[first])
            own = model.lm_head.weight.element_size()
            need = work(
                model.config, n_new, cached=rung.cached, itemsize=rung.itemsize or own, kv_itemsize=own
            )
            result["split"] = split(result["seconds"]["median"] / n_new, need, limits["read"]["median"],
                                    limits["peak"]["median"])  # fmt: skip
    limits["floor"] = _floor(limits)
    return {
        "n_params": model.n_params,
        "n_new": n_new,
        "repeats": repeats,
        "baseline": first,
        "rungs": results,
        "best": _best(results, chosen, limits["floor"]),
        "peers": [{"label": name} | _described(seconds, name, first, n_new) for name in peers or {}],
        "limits": limits,
    }


def _build(engine: type[Engine], model: GPT) -> tuple[Engine | None, dict]:
    """A rung's engine and the seconds of its build, first and with its files kept; or why there is none."""
    kind = {"dtype": model.lm_head.weight.dtype, "device": model.lm_head.weight.device}
    try:
        with _empty_cache():
            native.library.cache_clear()
            first = engine(model.config, **kind)
            native.library.cache_clear()
            again = engine(model.config, **kind)
        native.library.cache_clear()
    except CannotBuild as error:
        return None, {"unavailable": str(error)}
    return first, {"build_seconds": first.build_seconds, "again_seconds": again.build_seconds}


@contextlib.contextmanager
def _empty_cache():
    """A cache folder that nobody has built into, for the length of a with-block."""
    before = os.environ.get("NANOGPT_CACHE")
    try:
        with tempfile.TemporaryDirectory(prefix="nanogpt-") as folder:
            os.environ["NANOGPT_CACHE"] = folder
            yield
    finally:
        os.environ.pop("NANOGPT_CACHE") if before is None else os.environ.update(NANOGPT_CACHE=before)


def _run(model: GPT, prompt: Tensor, n_new: int, engine, seed: int) -> Callable[[], Tensor]:
    def run():
        generator = torch.Generator().manual_seed(seed)
        return torch.cat(list(generate(model, prompt, n_new, engine=engine, generator=generator)), dim=1)

    return run


def _in_turns(runs: dict, repeats: int, model: GPT, device: torch.device, progress: bool) -> tuple:
    """Seconds of every counted run, the last tokens of each, and the limits, all measured in turns."""
    seconds, tokens = {name: [] for name in runs}, {}
    size, reads, peaks = weight_bytes(model.config, model.lm_head.weight.element_size()), [], []
    bar = tqdm(
        total=(1 + repeats) * len(runs), disable=not progress or headless(), file=sys.stdout, leave=False
    )
    for turn in range(1 + repeats):
        for name, run in runs.items():
            bar.set_description(name)
            gc.collect()  # not in the middle of a reading
            before = clock(device)
            tokens[name] = run()
            if turn:
                seconds[name].append(clock(device) - before)
            bar.update()
        reads.append(read_bandwidth(size, repeats=1, device=device))
        peaks.append(peak_arithmetic(repeats=1, device=device, dtype=model.lm_head.weight.dtype))
    bar.close()
    limits = {}
    for name, measured in (("read", reads[1:]), ("peak", peaks[1:])):
        limits[name] = summary(m["median"] for m in measured) | {"how": measured[0]["how"]}
    return seconds, tokens, limits | {"weight_bytes": size}


def _described(seconds: dict, name: str, first: str, n_new: int) -> dict:
    own = seconds[name]
    return {
        "seconds": summary(own),
        "tokens_per_second": summary(n_new / s for s in own),
        "speedup": summary(a / b for a, b in zip(seconds[first], own, strict=True)),
    }


def _floor(limits: dict) -> dict:
    """Tokens per second if reading each weight once were all there is to do."""
    return {key: limits["read"][key] / limits["weight_bytes"] for key in ("median", "low", "high")}


def throughput(
    model: GPT, batches: list[int], chosen: list[Rung], *, n_new: int, repeats: int = 3
) -> list[dict]:
    """Tokens per second and milliseconds per token of some rungs, for several texts at once.

    A rung that this machine cannot build has no cells: what stands in for it is another rung.
    """
    device, cells = model.lm_head.weight.device, []
    forms = {model.config.per_head: model.eval()}
    forms[not model.config.per_head] = (pack_heads if model.config.per_head else unpack_heads)(model)
    for batch in batches:
        prompt = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        runs = {
            r.label: _run(forms[r.per_head], prompt, n_new, r.engine, 42)
            for r in chosen
            if isinstance(r.engine.ready(forms[r.per_head], batch), r.engine)
        }
        seconds, tokens = {name: [] for name in runs}, {}
        for turn in range(1 + repeats):
            for name, run in runs.items():
                before = clock(device)
                tokens[name] = run()
                if turn:
                    seconds[name].append(clock(device) - before)
        first = next(iter(tokens.values()))
        for name, own in seconds.items():
            cells.append({"label": name, "batch": batch, "equal": torch.equal(tokens[name], first),
                          "tokens_per_second": summary(batch * n_new / s for s in own),
                          "step": summary(s / n_new for s in own)})  # fmt: skip
    return cells


# ------------------------------------------------------------------ others


def hugging_face(model: GPT, n_new: int) -> dict[str, Callable]:
    """generate() of a GPT-2 of the same shape from transformers, weights as drawn: static and dynamic cache.

    Its arithmetic is its own (GELU, its own sampling), so its tokens are not compared. Raises
    ImportError without transformers (requirements-peers.txt).
    """
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise ImportError(f"{error}: pip install -r requirements-peers.txt") from error

    c = model.config
    shape = GPT2Config(vocab_size=c.vocab_size, n_positions=c.block_size + 1, n_embd=c.n_embd,
                       n_layer=c.n_layer, n_head=c.n_head, bos_token_id=None, eos_token_id=None)  # fmt: skip
    device = model.lm_head.weight.device
    theirs = GPT2LMHeadModel(shape).to(device=device, dtype=model.lm_head.weight.dtype).eval()
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=device)
    mask = torch.ones_like(prompt)

    def run(**cache):
        out = theirs.generate(prompt, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=n_new,
                              min_new_tokens=n_new, pad_token_id=0, **cache)  # fmt: skip
        if out.shape[1] != 1 + n_new:
            raise RuntimeError(f"transformers gave {out.shape[1] - 1} tokens, not {n_new}")
        return out[:, 1:]

    return {
        "Hugging Face, dynamic cache": lambda: run(use_cache=True),
        "Hugging Face, static cache": lambda: run(cache_implementation="static"),
    }


# ------------------------------------------------------------------ the program


def show(result: dict) -> None:
    """The table, for a terminal."""
    limits = result["limits"]
    read, peak, floor = limits["read"], limits["peak"], limits["floor"]["median"]
    print(f"\n{result['n_params']:,} parameters, batch 1, {result['n_new']} tokens after a prompt of one, "
          f"median of {result['repeats']} in turns [lowest – highest]\n")  # fmt: skip
    ratio = f"ratio to rung {result['baseline']}"
    print(f"   {'':30}{'tokens/s':>26}{ratio:>24}  tokens  first build, again (s)")
    for row in result["rungs"] + result["peers"]:
        head = f"{row.get('rung', ''):3}{row['label']:30}"
        if "unavailable" in row:
            print(f"{head} not here: {row['unavailable']}")
            continue
        equal = {True: "equal", False: "differ", None: "own"}[row.get("equal")]
        built = row.get("build_seconds", 0) > 0.01  # else nothing is built: Python, or another's code
        build = f"{row['build_seconds']:6.1f}, {row['again_seconds']:.2f}" if built else ""
        speed = f"{spread(row['tokens_per_second'], 0):>26}{spread(row['speedup'], 1):>24}"
        print(f"{head}{speed}  {equal:8}{build}")
    print(f"\nread bandwidth {read['median'] / 1e9:.0f} GB/s over {limits['weight_bytes'] / 1e6:.1f} MB, "
          f"peak {peak['median'] / 1e9:.0f} GFLOP/s (one thread; {read['how']}, {peak['how']})")  # fmt: skip
    print(f"floor: every weight read once for each token, {floor:,.0f} tokens/s")
    best = result["best"]
    if best:
        share = f"{best['share_of_floor']:.0%} of that floor"
        if best["share_of_floor"] > 1:
            share += " (it is one thread's, and moves with what else uses the memory: repeat the run)"
        print(f"best at the same weights and tokens: rung {best['rung']}, {share}")


def _best(rows: list[dict], chosen: list[Rung], floor: dict) -> dict | None:
    """The fastest rung with full weights and equal tokens, and how near to the floor it comes."""
    full = [r for r, rung in zip(rows, chosen, strict=True) if r.get("equal") and rung.itemsize is None]
    if not full:
        return None
    row = max(full, key=lambda r: r["tokens_per_second"]["median"])
    return {"rung": row["rung"], "share_of_floor": row["tokens_per_second"]["median"] / floor["median"]}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m nanogpt.bench", description="How fast does this machine decode?"
    )
    add = parser.add_argument
    add("what", choices=["ladder", "train", "speculate"], help="ladder: decoding; the others: … train --help")
    add("--size", choices=sorted(SIZES), default="small")
    add("--checkpoint", metavar="PATH", help="trained weights instead of drawn ones")
    add("--tokens", type=int, help="new tokens (255, or as many as the block allows)")
    add("--repeats", type=int, default=5, help="counted repeats, after one warm-up (5)")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add("--rungs", help="only these, as in 1467")
    add("--peer", choices=["hf"], help="add Hugging Face generate (requirements-peers.txt)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--dtype", choices=["float32", "bfloat16"], default="float32")
    add(
        "--json", nargs="?", const="", metavar="PATH", help="write the figures (outputs/run/ladder-SIZE.json)"
    )
    args = parser.parse_args(argv)
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = Path(args.json or ROOT / "outputs" / "run" / f"ladder-{name}.json")
    try:
        if args.json is not None:
            check_writable(path)  # better known before the measuring than after
        if args.repeats < 1 or args.threads < 1:
            raise ValueError(f"--repeats {args.repeats}, --threads {args.threads}: both must be at least 1")
        torch.set_num_threads(args.threads)
        device = pick_device(args.device)
        model = (
            load_checkpoint(args.checkpoint).model if args.checkpoint else spread_out(GPT(SIZES[args.size]))
        )
        model = model.to(device=device.device, dtype=getattr(torch, args.dtype)).eval()
        n_new = min(255, model.config.block_size) if args.tokens is None else args.tokens
        peers = hugging_face(model, n_new) if args.peer else {}
        result = ladder(model, n_new=n_new, repeats=args.repeats, only=args.rungs, peers=peers)
        show(result)
        if args.json is not None:
            about = {"model": name, "dtype": args.dtype, "environment": environment(device)}
            write_json(path, {**about, **result})
            print(f"\nwritten: {path}")
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped: nothing was written", file=sys.stderr)
        return 130
    return 0


def spread_out(model: GPT) -> GPT:
    """Larger weights, so that an untrained model's next character is no longer anybody's guess."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(4)
    return model
