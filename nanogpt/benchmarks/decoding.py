"""The ladder: the same tokens from every engine, timed in turns, beside the machine's own limits.

python -m nanogpt bench ladder --size small --json
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from ..decoding.generate import generate
from ..engines import native_library
from ..engines.base import Engine
from ..engines.compiled import Compiled
from ..engines.cuda_graph import Graph, GraphLoop
from ..engines.eager import Batched, Flat, PerHead, Static, Uncached
from ..engines.int8 import Native8
from ..engines.native import Native
from ..engines.toolchain import CannotBuild
from ..model.convert import pack_heads, unpack_heads
from ..model.gpt import GPT
from ..system.console import headless
from .roofline import peak_arithmetic, read_bandwidth, split, work
from .timing import clock, summary


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
        Rung("7", "native loop", Native),
        Rung("8", "native loop, 8-bit weights", Native8, itemsize=1),
    ]


def ladder(
    model: GPT,
    *,
    n_new: int = 255,
    repeats: int = 5,
    seed: int = 42,
    only: str | None = None,
    peers: dict[str, Callable] | None = None,
    progress: bool = True,
) -> dict:
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
    forms[not model.config.per_head] = (pack_heads if model.config.per_head else unpack_heads)(
        model
    )
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
        raise ValueError(
            f"nothing to time: rungs {only} cannot be built here ({results[0]['unavailable']})"
        )
    seconds, tokens, limits = _in_turns(runs, repeats, model, device, progress)
    first = next(iter(runs))
    for rung, result in zip(chosen, results, strict=True):
        if rung.number in runs:
            result |= _described(seconds, rung.number, first, n_new)
            result["equal"] = torch.equal(tokens[rung.number], tokens[first])
            own = model.lm_head.weight.element_size()
            need = work(
                model.config,
                n_new,
                cached=rung.cached,
                itemsize=rung.itemsize or own,
                kv_itemsize=own,
            )
            result["split"] = split(
                result["seconds"]["median"] / n_new,
                need,
                limits["read"]["median"],
                limits["peak"]["median"],
            )
    limits["floor"] = _floor(limits)
    return {
        "n_params": model.n_params,
        "n_new": n_new,
        "repeats": repeats,
        "baseline": first,
        "rungs": results,
        "best": _best(results, chosen, limits["floor"]),
        "peers": [
            {"label": name} | _described(seconds, name, first, n_new) for name in peers or {}
        ],
        "limits": limits,
    }


def _build(engine: type[Engine], model: GPT) -> tuple[Engine | None, dict]:
    """A rung's engine and the seconds of its build, first and with its files kept; or why there is none."""
    kind = {"dtype": model.lm_head.weight.dtype, "device": model.lm_head.weight.device}
    try:
        with _empty_cache():
            native_library.library.cache_clear()
            first = engine(model.config, **kind)
            native_library.library.cache_clear()
            again = engine(model.config, **kind)
        native_library.library.cache_clear()
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
        os.environ.pop("NANOGPT_CACHE") if before is None else os.environ.update(
            NANOGPT_CACHE=before
        )


def _run(model: GPT, prompt: Tensor, n_new: int, engine, seed: int) -> Callable[[], Tensor]:
    def run():
        generator = torch.Generator().manual_seed(seed)
        return torch.cat(
            list(generate(model, prompt, n_new, engine=engine, generator=generator)), dim=1
        )

    return run


def _in_turns(runs: dict, repeats: int, model: GPT, device: torch.device, progress: bool) -> tuple:
    """Seconds of every counted run, the last tokens of each, and the limits, all measured in turns."""
    seconds, tokens = {name: [] for name in runs}, {}
    size, reads, peaks = model.config.weight_bytes(model.lm_head.weight.element_size()), [], []
    bar = tqdm(
        total=(1 + repeats) * len(runs),
        disable=not progress or headless(),
        file=sys.stdout,
        leave=False,
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
    forms[not model.config.per_head] = (pack_heads if model.config.per_head else unpack_heads)(
        model
    )
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
            cells.append(
                {
                    "label": name,
                    "batch": batch,
                    "equal": torch.equal(tokens[name], first),
                    "tokens_per_second": summary(batch * n_new / s for s in own),
                    "step": summary(s / n_new for s in own),
                }
            )
    return cells


def _best(rows: list[dict], chosen: list[Rung], floor: dict) -> dict | None:
    """The fastest rung with full weights and equal tokens, and how near to the floor it comes."""
    full = [
        r for r, rung in zip(rows, chosen, strict=True) if r.get("equal") and rung.itemsize is None
    ]
    if not full:
        return None
    row = max(full, key=lambda r: r["tokens_per_second"]["median"])
    return {
        "rung": row["rung"],
        "share_of_floor": row["tokens_per_second"]["median"] / floor["median"],
    }


def spread_out(model: GPT) -> GPT:
    """Larger weights, so that an untrained model's next character is no longer anybody's guess."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(4)
    return model
