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
from enum import Enum
from itertools import pairwise
from typing import Any, TypedDict

import torch

from ..config import SIZES, GPTConfig
from ..console import Progress
from ..data import CharTokenizer, Corpus, split
from ..decoder.config import DecoderConfig, Positions, decoder_config
from ..decoder.pack import build_model
from ..device import Device
from ..files import ROOT
from ..timing import Summary, clock, summary
from ..training.evaluation import full_loss
from ..training.preparation import prepare
from ..training.recipes import MODERN, TrainConfig, recipe_for
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


class Group(TypedDict):
    """The runs of one entry over all seeds."""

    name: str
    goal: float | None
    block_size: int
    n_params: int
    steps: int
    chars: int
    seconds: Summary
    loss: Summary


class ComparedRow(Group, total=False):
    """A group compared with the baseline."""

    sooner: Summary  # the baseline's seconds over these, seed by seed


class Effect(TypedDict):
    """The change of a median, and the larger of the two ranges over seeds."""

    change: float
    range: float
    clear: bool  # whether the change is larger than the range


class Effects(TypedDict):
    """The effects of an idea."""

    loss: Effect
    seconds: Effect


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


# ------------------------------------------------------------------ time to a loss

END = 1.8125  # about where the lecture's recipe ends at block 32
_SMALL = {"block_size": 256, "n_layer": 3, "n_head": 3, "n_embd": 96}

RACE = (
    Entry("lecture", "lecture"),
    Entry("fast", "fast", END, {}, {"steps": 800, "stages": ()}),
    Entry("fast", "fast", 1.72, _SMALL),
)

# ------------------------------------------------------------------ the effect of each idea

# One shape, and 300 steps of 768 characters for every line: an idea changes the loss, the seconds
# of a step, or both.
_SHAPE = {**_SMALL, "block_size": 128}
_PLAIN = {"steps": 300, "batch_size": 6, "batched": True, "fused": True}
ADAMW = {"warmup": 20, "decay": True, "beta2": 0.99, "weight_decay": 0.0}
_RATE = {**ADAMW, "lr": 5e-3}
MUON = {**ADAMW, "lr": 8e-3, "muon_lr": 0.02}
CHANGES: dict[str, dict[str, Any]] = {
    "zero start": {"zero_init": True},
    "look-back": {"previous_token_init": True},
    "short windows first": {"stages": ((0.5, 32), (0.85, 64))},
    "epochs": {"epochs": True},
}
RATES = "rate 5e-3, warm-up, line to zero"
WHOLE = list(CHANGES)[-1]  # the line with every idea for the lecture's architecture
TODAY = "RMSNorm, RoPE, QK-norm, ReLU²"


class Place(str, Enum):
    """Where an idea is added or removed."""

    ON_TOP = "on top"  # compared with the line before it
    ALONE = "alone"  # compared with AdamW with its rate and schedule
    WITHOUT = "without"  # all ideas except this one

    def __str__(self) -> str:
        return self.value


PLACES = tuple(Place)


@dataclass(frozen=True)
class Ablation:
    """An entry with one idea alone, or with all ideas but one."""

    idea: str
    place: Place
    entry: Entry


def _idea(
    name: str,
    base: dict[str, Any],
    *changes: str,
    shape: dict[str, Any] | None = None,
    **more: Any,
) -> Entry:
    """The lecture's recipe and shape, with optimizer settings `base` and some changes."""
    train = {**_PLAIN, **base}
    for change in changes:
        train.update(CHANGES[change])
    train.update(more)
    return Entry(name, "lecture", None, {**_SHAPE, **(shape or {})}, train)


def _ladder() -> tuple[Entry, ...]:
    """Each idea on top of those before it."""
    names = list(CHANGES)
    entries = [
        _idea("the lecture's recipe", {}, batched=False, fused=False),
        _idea("heads in one product, fused AdamW", {}),
        _idea(RATES, _RATE),
        _idea("Muon", MUON),
    ]
    entries += [_idea(name, MUON, *names[: i + 1]) for i, name in enumerate(names)]
    entries.append(_idea(TODAY, MUON, *names, shape=MODERN))
    return tuple(entries)


def _only(idea: str, *changes: str, shape: dict[str, Any] | None = None) -> Ablation:
    return Ablation(idea, Place.ALONE, _idea(f"only {idea}", _RATE, *changes, shape=shape))


def _all_but(idea: str, base: dict[str, Any], *changes: str, **more: Any) -> Ablation:
    return Ablation(idea, Place.WITHOUT, _idea(f"all but {idea}", base, *changes, **more))


def _ablations() -> tuple[Ablation, ...]:
    """Each idea alone, and all ideas but one."""
    names = list(CHANGES)
    ablations = [_only(name, name) for name in names]
    ablations += [
        _only(TODAY, shape=MODERN),
        _all_but("Muon", _RATE, *names),
        _all_but("the falling rate", MUON, *names, decay=False),
        _all_but("the warm-up", MUON, *names, warmup=0),
    ]
    for name in names:
        ablations.append(_all_but(name, MUON, *(x for x in names if x != name)))
    return tuple(ablations)


LADDER = _ladder()
ABLATIONS = _ablations()
IDEAS = (*LADDER, *(ablation.entry for ablation in ABLATIONS))


def effects(rows: Sequence[ComparedRow]) -> dict[tuple[str, Place], Effects]:
    """The effects of each idea in each Place, by (idea, place), from the rows of IDEAS.

    The sign of WITHOUT is flipped, so that below zero always means the idea helps. With five seeds
    and normal noise, one comparison in 260 is clear by chance.
    """
    by_name = {row["name"]: row for row in rows}
    names = [entry.name for entry in LADDER]
    sides = {(b, Place.ON_TOP): (a, b) for a, b in pairwise(names)}
    sides["Muon", Place.ALONE] = RATES, "Muon"
    for ablation in ABLATIONS:
        name = ablation.entry.name
        if name not in by_name:
            continue
        pair = (RATES, name) if ablation.place is Place.ALONE else (name, WHOLE)
        sides[ablation.idea, ablation.place] = pair
    found: dict[tuple[str, Place], Effects] = {}
    for key, (before, after) in sides.items():
        a = by_name[before]
        b = by_name[after]
        found[key] = {
            "loss": _effect(a["loss"], b["loss"]),
            "seconds": _effect(a["seconds"], b["seconds"]),
        }
    return found


def _effect(before: Summary, after: Summary) -> Effect:
    """The change of the median between two summaries, and the larger of their ranges."""
    change = after["median"] - before["median"]
    widest = max(s["high"] - s["low"] for s in (before, after))
    return {"change": change, "range": widest, "clear": abs(change) > widest}


# ------------------------------------------------------------------ the cost of shared keys

# The changes of notebook 08, one at a time; all else is equal: block 64, steps, characters.
_STEPS = {
    "steps": 2000,
    "batch_size": 16,
    "previous_token_init": False,
    "epochs": False,
    "stages": (),
}
TABLE = {"block_size": 64, "positions": Positions.LEARNED}
_ROPE = {"block_size": 64, "positions": Positions.ROTARY}
WINDOW = {**_ROPE, "window": 16}

HEADS = (
    Entry("a table of positions", "fast", None, TABLE, _STEPS),
    Entry("rotary positions", "fast", None, _ROPE, _STEPS),
    Entry("2 heads of keys", "fast", None, {**_ROPE, "n_kv_head": 2}, _STEPS),
    Entry("1 head of keys", "fast", None, {**_ROPE, "n_kv_head": 1}, _STEPS),
    Entry("window 16", "fast", None, WINDOW, _STEPS),
    Entry("window 16, every 2nd layer full", "fast", None, {**WINDOW, "full_every": 2}, _STEPS),
    Entry("window 16, 1 head of keys", "fast", None, {**WINDOW, "n_kv_head": 1}, _STEPS),
)

KINDS = {"race": RACE, "ideas": IDEAS, "heads": HEADS}
