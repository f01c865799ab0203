"""How soon each recipe reaches a loss: entries trained in turns, compared with a baseline.

Seconds are those of training alone, without evaluation: CPU seconds of this process on one thread,
wall-clock seconds with more threads or on a GPU. The runs of one seed take turns, so that they meet
the same load. Each learning rate schedule ends where its run ends. A loss is the mean over all of
the validation text in windows of the model's own block: compare only losses of equal blocks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..data.batches import split, windows
from ..data.corpus import Corpus
from ..data.tokenizer import CharTokenizer
from ..model.gpt import GPT
from ..system.console import Progress
from ..system.device import Device
from ..system.files import ROOT
from ..training.evaluate import estimate_loss, full_loss
from ..training.loop import prepare
from ..training.trainer import Trainer
from .entries import Entry
from .timing import clock, summary

TURNS = 40  # pieces that each run is trained in
EVALUATED = 2  # so many turns between two points of its curve
BASELINE = "lecture"  # the entry that the others are compared with


class Runner:
    """The run of one entry, trained a piece at a time, with its own clock."""

    def __init__(
        self, entry: Entry, corpus: Corpus, seed: int, device: Device, steps: int | None = None
    ):
        tokenizer = CharTokenizer(corpus.text)
        config, shape = entry.configs(len(tokenizer), seed)
        self.entry, self.seed, self.device = entry, seed, device
        self.config = replace(config, steps=steps) if steps else config
        model = GPT(shape, generator=torch.Generator().manual_seed(seed))
        self.model, generator = prepare(model, self.config, device)
        data, self.val = split(tokenizer.encode(corpus.text), shape.block_size)
        self.trainer = Trainer(self.model, data, self.config, generator, device)
        self.fifth = list(_fifth_of(self.val, shape.block_size, device))
        self.done, self.seconds, self.curve = 0, 0.0, []

    def advance(self, until: int) -> None:
        """Train up to step `until`, on the clock."""
        before = _clock(self.device)
        for step in range(self.done, until):
            self.trainer.step(step)
        self.seconds += _clock(self.device) - before
        self.done = until

    def evaluate(self) -> None:
        """Add a point to the curve, from a fifth of the validation text; not on the clock."""
        loss = estimate_loss(self.model, self.fifth)
        self.curve.append([round(self.seconds, 2), round(loss, 4)])

    def result(self) -> dict:
        """The run as plain data, with the loss over all of the validation text."""
        entry, shape = self.entry, self.model.config
        return {
            "name": entry.name,
            "recipe": entry.recipe,
            "goal": entry.goal,
            "seed": self.seed,
            "block_size": shape.block_size,
            "n_params": self.model.n_params,
            "steps": self.config.steps,
            "chars": self.config.batch_size * shape.block_size,
            "seconds": round(self.seconds, 2),
            "loss": round(full_loss(self.model, self.val), 4),
            "curve": self.curve,
        }


def train_in_turns(
    entries: Sequence[Entry],
    corpus: Corpus,
    *,
    seed: int,
    device: Device,
    steps: Sequence[int] | None = None,
) -> list[dict]:
    """Train every entry, a piece of each in turn. Returns `Runner.result` of each.

    `steps` replaces the number of steps of each entry.
    """
    counts = steps or [None] * len(entries)
    pairs = zip(entries, counts, strict=True)
    runners = [Runner(entry, corpus, seed, device, count) for entry, count in pairs]
    with torch.random.fork_rng(), Progress(TURNS, f"seed {seed}") as bar:
        torch.manual_seed(seed)
        for turn in range(TURNS + 1):
            for runner in runners:
                runner.advance(runner.config.steps * turn // TURNS)
                if turn % EVALUATED == 0:
                    runner.evaluate()
            bar.update(int(turn > 0))
    return [runner.result() for runner in runners]


def steps_for(
    entries: Sequence[Entry], corpus: Corpus, seconds: float, device: Device
) -> list[int]:
    """How many steps of each entry take that long here, from a short trial in turns.

    Raises ValueError when the seconds are too few for the slowest entry.
    """
    runners = [Runner(entry, corpus, 0, device) for entry in entries]
    for until in (10, 20, 30, 40, 50):
        for runner in runners:
            runner.advance(until)
            if until == 10:
                runner.seconds = 0.0  # the first steps allocate memory
    steps = [round(seconds / (runner.seconds / 40)) for runner in runners]
    if min(steps) < TURNS:
        least = seconds * TURNS / max(1, min(steps))
        raise ValueError(
            f"in {seconds:g} seconds the slowest entry trains {min(steps)} steps here, and needs "
            f"{TURNS}: choose {least:.2g} seconds"
        )
    return steps


def compared(runs: list[dict]) -> list[dict]:
    """One row for each entry: summaries over the seeds, and how much sooner than the baseline.

    `sooner` is the ratio of the baseline's seconds to the entry's, seed by seed. It is given only
    where the loss is no higher than the baseline's at the same block.
    """
    baseline = [run for run in runs if run["name"] == BASELINE]
    rows = []
    for group in _grouped(runs, "name", "goal"):
        facts = ("name", "goal", "block_size", "n_params", "steps", "chars")
        row = {key: group[0][key] for key in facts}
        row["seconds"] = summary(run["seconds"] for run in group)
        row["loss"] = summary(run["loss"] for run in group)
        if baseline and _reaches(row, baseline):
            seconds = {run["seed"]: run["seconds"] for run in baseline}
            row["sooner"] = summary(seconds[run["seed"]] / run["seconds"] for run in group)
        rows.append(row)
    return rows


def panels(result: dict) -> list[dict]:
    """The curves of a published result, a panel for each block size: each entry's median run."""
    lines: dict[int, list] = {}
    for group in _grouped(result["runs"], "name", "goal", "block_size"):
        median = sorted(group, key=lambda run: run["loss"])[len(group) // 2]
        line = {"label": median["name"], "loss": median["loss"], "curve": median["curve"]}
        line["seconds"] = summary(run["seconds"] for run in group)
        lines.setdefault(median["block_size"], []).append(line)
    return [{"title": f"block {block}", "lines": found} for block, found in sorted(lines.items())]


def published(name: str) -> dict:
    """The result that ships with the repository: race, ideas, heads, speculate, or load-SIZE.

    Raises ValueError when it is missing.
    """
    path = ROOT / "outputs" / "race" / f"{name}.json"
    if not path.is_file():
        bench = {"race": "train", "speculate": name}.get(name, f"train --{name}")
        bench = "load" if name.startswith("load-") else bench
        raise ValueError(
            f"{path} is missing: measure it with python -m nanogpt bench {bench} --json {path}"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def _grouped(runs: list[dict], *keys: str) -> list[list[dict]]:
    """The runs in groups of equal values of these keys, in the order of their first run."""
    groups: dict[tuple, list[dict]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in keys), []).append(run)
    return list(groups.values())


def _reaches(row: dict, baseline: list[dict]) -> bool:
    loss = summary(run["loss"] for run in baseline)["median"]
    return row["block_size"] == baseline[0]["block_size"] and row["loss"]["median"] <= loss


def _fifth_of(val: Tensor, block: int, device: Device) -> Iterator[tuple[Tensor, Tensor]]:
    """Every fifth window of the validation text, in batches of about 8192 characters."""
    starts = torch.arange(0, len(val) - block, block)[::5]
    for some in starts.split(max(1, 8192 // block)):
        x, y = windows(val, some, block)
        yield x.to(device.device), y.to(device.device)


def _clock(device: Device) -> float:
    # With several threads CPU seconds add up over them.
    alone = device.device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time() if alone else clock(device.device)
