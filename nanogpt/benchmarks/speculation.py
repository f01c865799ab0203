"""Past the floor: what speculation buys over the best rung, at the same tokens.

python -m nanogpt bench speculate --json                          the small model that ships
python -m nanogpt bench speculate --target PATH --draft PATH      your own pair, as trained by nanogpt.train

The floor of the ladder is one reading of the weights for each token. A pass that reads known and
proposed tokens together needs one reading for several, so the best of these may lie beyond it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from ..decoding.drafts import LARGEST_TABLE, Draft, DraftModel, NGram, PromptLookup
from ..decoding.generate import generate
from ..decoding.sampling import PLAIN, draw_noise
from ..decoding.speculative import expected_tokens
from ..engines.int8 import Rough8
from ..engines.native import Native
from ..engines.native_library import Session
from ..engines.toolchain import CannotBuild
from ..model.gpt import GPT
from ..system.console import headless
from .roofline import read_bandwidth
from .timing import clock, summary

TABLES = {1: "a table of characters", 2: "a table for pairs", 3: "a table for triples"}


Drafts = dict[str, Callable[[int], Draft]]  # by name, for a number of proposals


def speculation(
    model: GPT,
    drafts: Drafts,
    ks: list[int],
    *,
    n_new: int = 255,
    repeats: int = 5,
    seed: int = 42,
    engine=Native,
    progress: bool = True,
) -> dict:
    """Time plain decoding and every draft with every k, in turns, each repeat with a seed of its own.

    Batch 1, a prompt of one token. Returns plain data, a row for each draft and k: whether all tokens
    were those of plain decoding; `agreement`, the share accepted of the proposals that were looked
    at; tokens a pass, measured, and as (1 - aᵏ⁺¹) / (1 - a) predicts; tokens per second; the ratio
    to plain decoding, pair by pair; and the floor, readings of all weights per second, in the same turns.
    `engine` None: the model's own modules, over a growing cache.
    """
    device = model.lm_head.weight.device
    if engine is not None and not isinstance(engine.ready(model, 1), engine):
        raise CannotBuild(
            f"{engine.__name__} cannot be built here: leave it out to time the modules"
        )
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=device)
    runs = {(None, 0): None} | {(name, k): make(k) for name, make in drafts.items() for k in ks}
    seconds, found = {key: [] for key in runs}, {key: [] for key in runs}
    size, floors = model.config.weight_bytes(model.lm_head.weight.element_size()), []
    quiet = not progress or headless()
    bar = tqdm(total=(1 + repeats) * len(runs), disable=quiet, file=sys.stdout, leave=False)
    for turn in range(1 + repeats):
        for key, draft in runs.items():
            gc.collect()  # not in the middle of a reading
            generator, before = torch.Generator().manual_seed(seed + turn), clock(device)
            steps = generate(model, prompt, n_new, engine=engine, draft=draft, generator=generator)
            tokens = torch.cat(list(steps), dim=1)
            if turn:
                seconds[key].append(clock(device) - before)
                found[key].append((tokens, getattr(steps, "stats", None)))
            bar.update()
        floors.append(read_bandwidth(size, repeats=1, device=device)["median"] / size)
    bar.close()
    base, rows = (None, 0), []
    for name, k in list(runs)[1:]:
        key, stats = (name, k), [one for _, one in found[name, k]]
        pairs = zip(found[key], found[base], strict=True)
        looked = sum(one.accepted + one.rejected for one in stats)
        a = sum(one.accepted for one in stats) / max(1, looked)
        rows.append(
            {
                "draft": name,
                "k": k,
                "agreement": a,
                "equal": all(torch.equal(x, y) for (x, _), (y, _) in pairs),
                "tokens_per_pass": n_new * repeats / sum(one.passes for one in stats),
                "predicted": expected_tokens(a, k),
                "tokens_per_second": summary(n_new / s for s in seconds[key]),
                "speedup": summary(x / y for x, y in zip(seconds[base], seconds[key], strict=True)),
            }
        )
    return {
        "n_params": model.n_params,
        "n_new": n_new,
        "repeats": repeats,
        "rows": rows,
        "plain": summary(n_new / s for s in seconds[base]),
        "floor": summary(floors),
    }


def costs(model: GPT, counts: list[int], *, place: int = 100, repeats: int = 15) -> dict[int, dict]:
    """Seconds of one native pass over so many tokens, after `place` others: a summary for each count."""
    engine = Native.ready(model, 1)
    if not isinstance(engine, Native):
        raise CannotBuild(
            "a pass over several tokens is timed in native code, and none can be built here"
        )
    place = min(place, model.config.block_size - 1 - max(counts))
    if place < 0 or min(counts) < 1:
        raise ValueError(
            f"{counts} tokens in one pass, with a block of {model.config.block_size}: choose "
            f"from 1 to {model.config.block_size - 1}"
        )
    text = torch.zeros(1, model.config.block_size, dtype=torch.int64)
    noise = draw_noise(model.config.block_size - 1, 1, model.config.vocab_size, torch.Generator())
    seconds = {count: [] for count in counts}
    with Session(engine, model, text, 1, noise, PLAIN) as session:
        session.decode(0, place)
        for _ in range(1 + repeats):
            for count, own in seconds.items():
                before = clock(text.device)
                session.check(place, place + count)
                own.append(clock(text.device) - before)
    return {count: summary(own[1:]) for count, own in seconds.items()}


def in_passes(row: dict, passes: dict) -> float:
    """About which share of a row's time the model's own passes take, the rest being the draft's.

    An estimate: full passes, timed apart by `costs`.
    """
    return (
        passes[row["k"] + 1]["median"] * row["tokens_per_second"]["median"] / row["tokens_per_pass"]
    )


def usual_drafts(model: GPT, text: Tensor) -> Drafts:
    """What proposes without another model being trained: the model in 8 bits, tables, the text so far."""
    V = model.config.vocab_size
    n = next(n for n in (3, 2, 1) if n == 1 or V**n <= LARGEST_TABLE)
    return {
        "itself, in 8 bits": lambda k: DraftModel(model, k, engine=Rough8),
        TABLES[n]: lambda k: NGram(text, V, n, k),
        "look-up in its own text": lambda k: PromptLookup(5, k),
    }
