"""Measure how fast each recipe reaches a loss: interleaved training, compared with a baseline.

Seconds are those of training without evaluation: CPU seconds of this process on one thread,
wall-clock seconds with more threads or on a GPU. The runs of one seed are interleaved, so that they
see the same load. Each learning-rate schedule ends with its run. A loss is the mean over all of the
validation text in windows of the model's own block: compare only losses at equal blocks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import torch

from ..config import SIZES, GPTConfig
from ..console import Progress
from ..data import CharTokenizer, Corpus, split
from ..decoder.config import DecoderConfig, decoder_config
from ..decoder.pack import build_model
from ..device import Device
from ..files import ROOT
from ..timing import Summary, clock, summary
from ..training.evaluation import full_loss
from ..training.preparation import prepare
from ..training.recipes import TrainConfig, recipe_for
from ..training.trainer import Trainer

TURNS = 40  # pieces per training run
_BASELINE = "lecture"  # the entry that the others are compared with


class RaceRun(TypedDict):
    """One training run as plain data."""

    name: str
    goal: float | None  # the loss for which its length was chosen
    seed: int
    block_size: int
    n_params: int
    steps: int
    chars: int  # per step
    seconds: float
    loss: float  # over all of the validation text
    curve: list[list[float]]  # (seconds, loss) pairs


class ComparedRow(TypedDict, total=False):
    """The runs of one entry over all seeds, compared with the baseline."""

    name: str
    goal: float | None
    block_size: int
    n_params: int
    steps: int
    chars: int
    seconds: Summary
    loss: Summary
    sooner: Summary  # the baseline's seconds over these, seed by seed


@dataclass(frozen=True)
class Entry:
    """One training run: a recipe, changes to it, and the loss for which its length was chosen."""

    name: str
    recipe: str
    goal: float | None = None
    # Fields of a config, on top of SIZES["article"], and of TrainConfig.
    shape: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)

    def configs(self, vocab_size: int, seed: int) -> tuple[TrainConfig, GPTConfig | DecoderConfig]:
        """The training settings and the model's config."""
        start: GPTConfig | DecoderConfig = SIZES["article"]
        if self.shape.keys() - GPTConfig.__dataclass_fields__:
            start = decoder_config(start)
        start = replace(start, vocab_size=vocab_size, **self.shape)
        recipe, shape = recipe_for(self.recipe, start)
        return replace(recipe, seed=seed, **self.train), shape


class Runner:
    """Trains one entry a piece at a time, with its own clock."""

    def __init__(
        self, entry: Entry, corpus: Corpus, seed: int, device: Device, steps: int | None = None
    ):
        tokenizer = CharTokenizer(corpus.text)
        config, shape = entry.configs(len(tokenizer), seed)
        self.entry = entry
        self.seed = seed
        self.device = device
        self.config = config if steps is None else replace(config, steps=steps)
        model = build_model(shape, torch.Generator().manual_seed(seed))
        self.model, generator = prepare(model, self.config, device)
        data, self.val = split(tokenizer.encode(corpus.text), shape.block_size)
        self.trainer = Trainer(self.model, data, self.config, generator, device)
        self.done = 0
        self.seconds = 0.0
        self.curve: list[list[float]] = []

    def advance(self, until: int) -> None:
        """Train up to step `until`, with the clock running."""
        before = _clock(self.device)
        for step in range(self.done, until):
            self.trainer.step(step)
        self.seconds += _clock(self.device) - before
        self.done = until

    def evaluate(self) -> None:
        """Add a point to the curve, from a fifth of the validation text, with the clock stopped."""
        loss = full_loss(self.model, self.val, every=5)
        self.curve.append([round(self.seconds, 2), round(loss, 4)])

    def result(self) -> RaceRun:
        """The run as plain data, with the loss over all of the validation text."""
        block_size = self.model.config.block_size
        return {
            "name": self.entry.name,
            "goal": self.entry.goal,
            "seed": self.seed,
            "block_size": block_size,
            "n_params": self.model.n_params,
            "steps": self.config.steps,
            "chars": self.config.batch_size * block_size,
            "seconds": round(self.seconds, 2),
            "loss": round(full_loss(self.model, self.val), 4),
            "curve": self.curve,
        }


def train_interleaved(
    entries: Sequence[Entry], corpus: Corpus, *, seed: int, device: Device
) -> list[RaceRun]:
    """Train every entry, a piece of each in turn. Returns `Runner.result` of each."""
    runners = [Runner(entry, corpus, seed, device) for entry in entries]
    with torch.random.fork_rng(), Progress(TURNS, f"seed {seed}") as bar:
        torch.manual_seed(seed)
        for turn in range(TURNS + 1):
            for runner in runners:
                runner.advance(runner.config.steps * turn // TURNS)
                if turn % 4 == 0:  # an evaluation takes as long as ten steps
                    runner.evaluate()
            bar.update(int(turn > 0))
    return [runner.result() for runner in runners]


def compared(runs: list[RaceRun]) -> list[ComparedRow]:
    """One row per entry: summaries over the seeds, and the speedup over the baseline.

    The speedup, `sooner`, is the ratio of the baseline's seconds to the entry's, seed by seed. It
    is present only if the loss is no higher than the baseline's at the same block.
    """
    baseline = {run["seed"]: run for run in runs if run["name"] == _BASELINE}
    least = summary(run["loss"] for run in baseline.values())["median"] if baseline else 0.0
    blocks = {run["block_size"] for run in baseline.values()}
    groups: dict[tuple[str, float | None, int], list[RaceRun]] = {}
    rows = []
    for run in runs:
        groups.setdefault((run["name"], run["goal"], run["block_size"]), []).append(run)
    for group in groups.values():
        first = group[0]
        row: ComparedRow = {
            "name": first["name"],
            "goal": first["goal"],
            "block_size": first["block_size"],
            "n_params": first["n_params"],
            "steps": first["steps"],
            "chars": first["chars"],
            "seconds": summary(run["seconds"] for run in group),
            "loss": summary(run["loss"] for run in group),
        }
        if row["block_size"] in blocks and row["loss"]["median"] <= least:
            pairs = [(baseline[run["seed"]], run) for run in group]
            row["sooner"] = summary(base["seconds"] / run["seconds"] for base, run in pairs)
        rows.append(row)
    return rows


def published(name: str) -> dict[str, Any]:
    """Load a bundled result: race, ideas, heads or speculate. Raises OSError."""
    path = ROOT / "outputs" / "race" / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def _clock(device: Device) -> float:
    # CPU seconds add up over threads.
    alone = device.device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time() if alone else clock(device.device)
