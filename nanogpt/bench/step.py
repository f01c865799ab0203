"""The time of one training step by part, and its share of the machine's peak arithmetic."""

from __future__ import annotations

import time
from statistics import median

import torch

from ..config import SIZES
from ..data import Corpus
from ..device import Device, synchronize
from ..training.recipes import RECIPES
from ..training.trainer import Trainer
from .throughput import flops_per_token, peak_flops
from .training import Entry, Runner

PARTS = ("forward", "backward", "optimizer")


def step_parts(trainer: Trainer, step: int, repeats: int = 8) -> dict[str, float]:
    """Median seconds of each part of that step: forward with its batch, backward, optimizer.

    The weights change, as in training. The first two runs, which allocate memory, do not count.
    """
    marks: list[float] = []

    def mark(*_: object) -> None:
        marks.append(_now(trainer))

    # Hooks mark the ends of the forward and of the backward pass, so what is timed is a step of
    # training itself.
    hooks = [
        trainer.net.register_forward_hook(mark),
        trainer.optimizers[0].register_step_pre_hook(mark),
    ]
    taken = []
    for _ in range(repeats + 2):
        marks.clear()
        mark()
        trainer.step(step)
        mark()
        taken.append([after - before for before, after in zip(marks, marks[1:], strict=False)])
    for hook in hooks:
        hook.remove()
    return {name: median(turn[i] for turn in taken[2:]) for i, name in enumerate(PARTS)}


def step_rows(recipe: str, corpus: Corpus, device: Device) -> list[dict[str, str]]:
    """A row for each stage of a recipe at its own size: milliseconds per part, rate, share of peak.

    The rate is the arithmetic of products and attention over the time of forward and backward.
    """
    shape = SIZES[RECIPES[recipe].size]
    sizes = {name: getattr(shape, name) for name in ("block_size", "n_layer", "n_head", "n_embd")}
    runner = Runner(Entry(recipe, recipe, shape=sizes), corpus, 1337, device)
    trainer = runner.trainer
    config = runner.config
    rows = []
    peak = peak_flops(device)
    for begin in dict.fromkeys(config.stage_begins()):
        block, n = trainer.window(begin)
        parts = step_parts(trainer, begin)
        work = flops_per_token(trainer.model.config, block) * block * n
        rate = work / (parts["forward"] + parts["backward"])
        row = {"recipe": recipe, "windows": f"{n} × {block}"}
        for name in PARTS:
            row[f"{name} (ms)"] = f"{1e3 * parts[name]:.1f}"
        row["GFLOP/s"] = f"{rate / 1e9:.0f}"
        row["of the peak"] = f"{rate / peak:.0%}" if peak else "unknown"
        rows.append(row)
    return rows


def _now(trainer: Trainer) -> float:
    synchronize(trainer.device.device)
    alone = trainer.device.device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time() if alone else time.perf_counter()
