"""The ladder: every engine at the same tokens, timed in turns, beside the machine's own limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.checks import check_int
from ..decoding.generate import complete
from ..engines.base import Engine
from ..engines.compiled import Compiled
from ..engines.cuda_graph import Graph, GraphLoop
from ..engines.eager import Batched, Flat, PerHead, Static, Uncached
from ..engines.int8 import Native8
from ..engines.native import Native, library
from ..engines.toolchain import CannotBuild, scratch_folder
from ..model.convert import pack_heads, unpack_heads
from ..model.gpt import GPT
from .roofline import Limits, breakdown, work
from .timing import summary, time_in_turns


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: an engine, and what its work is counted from."""

    number: str
    label: str
    engine: type[Engine]
    per_head: bool = False
    cached: bool = True
    itemsize: int | None = None  # bytes of a weight; None: those of the model's dtype


EAGER = (
    Rung("1", "per-Head, no cache", Uncached, per_head=True, cached=False),
    Rung("2", "per-Head, cache by torch.cat", PerHead, per_head=True),
    Rung("3", "batched heads, torch.cat", Batched),
    Rung("4", "static cache, inference_mode", Static),
    Rung("5", "flat step, eager", Flat),
)
BUILT = {
    "cpu": (
        Rung("6", "compiled step", Compiled),
        Rung("7", "native loop", Native),
        Rung("8", "native loop, 8-bit weights", Native8, itemsize=1),
    ),
    "cuda": (
        Rung("6", "CUDA graph of a step", Graph),
        Rung("7", "CUDA graph of 16 steps", GraphLoop),
    ),
}


def rungs(device: torch.device) -> tuple[Rung, ...]:
    """The ladder on this kind of device, slowest first."""
    return EAGER + BUILT["cuda" if device.type == "cuda" else "cpu"]


def ladder(
    model: GPT,
    *,
    n_new: int = 255,
    repeats: int = 5,
    seed: int = 42,
    only: str | None = None,
    built: dict[Rung, tuple[Engine | None, dict]] | None = None,
    peers: dict[str, Callable[[], Tensor]] | None = None,
) -> dict:
    """Time every rung on this model: batch 1, a prompt of one token, n_new sampled tokens.

    The rungs take turns, repeat by repeat, after one warm-up each. The time includes noise and
    checks. `only` names rungs, as in "1467"; `built` are their engines, from `build`; `peers` are
    other systems, timed beside them.

    Returns plain data: for each rung the seconds its build took, first and again; tokens per
    second; the ratio to the first rung, pair by pair; whether its tokens equal the first rung's;
    and the machine's limits, measured between the turns. Raises ValueError.
    """
    check_int("n_new", n_new, 2, model.config.block_size)
    device, forms, peers = model.lm_head.weight.device, _forms(model), peers or {}
    built = built or build(model, only)
    chosen = list(built)
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=device)
    runs = {
        rung.number: _generation(forms[rung.per_head], prompt, n_new, engine, seed)
        for rung, (engine, _) in built.items()
        if engine
    } | peers
    if not runs:
        why = built[chosen[0]][1]["unavailable"]
        raise ValueError(f"nothing to time: rungs {only} cannot be built here ({why})")
    limits = Limits(model)
    seconds, tokens = time_in_turns(runs, repeats, device=device, after_turn=limits.measure)
    baseline = next(iter(runs))
    speeds = {name: _speed(own, seconds[baseline], n_new) for name, own in seconds.items()}
    rows = [{"rung": rung.number, "label": rung.label} | built[rung][1] for rung in chosen]
    for rung, row in zip(chosen, rows, strict=True):
        if rung.number in runs:
            row |= speeds[rung.number]
            row["equal"] = torch.equal(tokens[rung.number], tokens[baseline])
            row["split"] = _split(model, rung, row["seconds"]["median"] / n_new, n_new, limits)
    about = {"n_params": model.n_params, "n_new": n_new, "repeats": repeats, "baseline": baseline}
    best = _best(chosen, rows, seconds, n_new, limits)
    others = [{"label": name} | speeds[name] for name in peers]
    return about | {"rungs": rows, "best": best, "peers": others, "limits": limits.as_dict()}


def build(model: GPT, only: str | None = None, *, kept: bool = False) -> dict[Rung, tuple]:
    """The rungs' engines for this model: (engine, the seconds of its build), or None and why not.

    A build is timed in an empty folder, then with its files there. With `kept`, what this user has
    built before is taken, so that "first" is the time of a build only where there was none.
    Raises ValueError for rungs that are not on the ladder.
    """
    forms, there = _forms(model), {rung.number: rung for rung in rungs(model.lm_head.weight.device)}
    if only is not None and (not only or set(only) - set(there)):
        raise ValueError(f"rungs={only!r}: choose from {''.join(there)}, as in 1467")
    chosen = [rung for number, rung in there.items() if only is None or number in only]
    return {rung: _build(rung.engine, forms[rung.per_head], kept) for rung in chosen}


def throughput(
    model: GPT,
    batches: Sequence[int],
    chosen: Sequence[Rung],
    *,
    n_new: int,
    repeats: int = 3,
) -> list[dict]:
    """Tokens per second and seconds per step of some rungs, for several texts at once.

    A rung that this machine cannot build is left out: what decodes in its place is another rung.
    """
    device, forms, cells = model.lm_head.weight.device, _forms(model), []
    for batch in batches:
        prompt = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        runs = {
            rung.label: _generation(forms[rung.per_head], prompt, n_new, rung.engine, 42)
            for rung in chosen
            if isinstance(rung.engine.ready(forms[rung.per_head], batch), rung.engine)
        }
        seconds, tokens = time_in_turns(runs, repeats, device=device)
        first = next(iter(tokens.values()), None)
        cells += [
            {
                "label": label,
                "batch": batch,
                "equal": torch.equal(tokens[label], first),
                "tokens_per_second": summary(batch * n_new / s for s in own),
                "step": summary(s / n_new for s in own),
            }
            for label, own in seconds.items()
        ]
    return cells


def sharpened(model: GPT) -> GPT:
    """The model with larger matrices, in place: even untrained, its next token is no flat guess."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(4)
    return model


def _forms(model: GPT) -> dict[bool, GPT]:
    """The model as a list of Heads (True) and with all heads in one product (False)."""
    per_head = model.eval().config.per_head
    return {per_head: model, not per_head: (pack_heads if per_head else unpack_heads)(model)}


def _build(engine: type[Engine], model: GPT, kept: bool) -> tuple[Engine | None, dict]:
    """A rung's engine and the seconds of its build, first and with its files kept; or why not."""
    weight = model.lm_head.weight
    builds = []
    try:
        with nullcontext() if kept else scratch_folder("NANOGPT_CACHE"):
            for _ in range(2):
                library.cache_clear()
                builds.append(engine(model.config, dtype=weight.dtype, device=weight.device))
    except CannotBuild as error:
        return None, {"unavailable": str(error)}
    finally:
        library.cache_clear()
    first, again = (built.build_seconds for built in builds)
    return builds[0], {"build_seconds": first, "again_seconds": again}


def _generation(model: GPT, prompt: Tensor, n_new: int, engine, seed: int) -> Callable[[], Tensor]:
    def run() -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return complete(model, prompt, n_new, engine=engine, generator=generator)

    return run


def _speed(own: list[float], baseline: list[float], n_new: int) -> dict:
    return {
        "seconds": summary(own),
        "tokens_per_second": summary(n_new / s for s in own),
        "speedup": summary(a / b for a, b in zip(baseline, own, strict=True)),
    }


def _split(model: GPT, rung: Rung, seconds: float, n_new: int, limits: Limits) -> dict:
    own = model.lm_head.weight.element_size()
    sizes = {"itemsize": rung.itemsize or own, "kv_itemsize": own}
    need = work(model.config, n_new, cached=rung.cached, **sizes)
    return breakdown(seconds, need, *limits.medians())


def _best(chosen: list[Rung], rows: list, seconds: dict, n_new: int, limits: Limits) -> dict | None:
    """The fastest rung at full weights and equal tokens, and its share of the roofline bound."""
    pairs = zip(chosen, rows, strict=True)
    full = [row for rung, row in pairs if row.get("equal") and rung.itemsize is None]
    if not full:
        return None
    number = max(full, key=lambda row: row["tokens_per_second"]["median"])["rung"]
    pairs = zip(seconds[number], limits.bounds(), strict=True)
    return {"rung": number, "share_of_bound": summary(n_new / s / bound for s, bound in pairs)}
