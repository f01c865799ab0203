"""The race: recipes against each other to the same loss, and what each idea in them buys.

python -m nanogpt bench train --json          how soon each recipe is at a loss
python -m nanogpt bench train --ideas --json  one idea more on every rung, each with the same seconds
python -m nanogpt bench train --heads --json  what shared keys, rotations and windows cost, with equal steps

Seconds are those of training alone, without evaluation: CPU seconds of this process on one thread, by
the clock with more threads or on a GPU. The runs of one seed take turns, so that they meet the same
machine. Every run's schedule ends where the run ends. A loss is the mean over the whole
validation text in windows of the model's own block: compare only losses of one block.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor
from tqdm import tqdm

from ..config.fields import override
from ..config.shapes import SIZES, GPTConfig
from ..config.training import TrainConfig, recipe_for
from ..data.batches import split, windows
from ..data.corpus import Corpus
from ..data.tokenizer import CharTokenizer
from ..model.gpt import GPT
from ..system.console import headless
from ..system.device import Device
from ..system.files import ROOT
from ..training.evaluate import estimate_loss, full_loss
from ..training.loop import prepare
from ..training.trainer import Trainer
from .timing import clock, summary

TURNS = 40  # pieces that every run is cut into


POINTS = 20  # of them, after which the loss is looked at


@dataclass(frozen=True)
class Entry:
    """One run: a recipe, changes to it, and the loss that its length was chosen for."""

    name: str
    recipe: str
    goal: float | None = None
    shape: dict = field(default_factory=dict)  # fields of GPTConfig, on top of SIZES["article"]
    train: dict = field(default_factory=dict)  # fields of TrainConfig

    def configs(self, vocab_size: int, seed: int) -> tuple[TrainConfig, GPTConfig]:
        """How to train, and what."""
        start = override(SIZES["article"], vocab_size=vocab_size, **self.shape)
        recipe, shape = recipe_for(self.recipe, start)
        return override(recipe, seed=seed, **self.train), shape


END = 1.8125  # where the lecture's recipe ends at block 32, or nearly


# nanoGPT's sizes, batch, steps, rates and clipping for a CPU, from its README and train.py, in our code:
# ReLU and a head of its own instead of GELU and tied weights, a line instead of a cosine.
NANOGPT = {
    "steps": 2000,
    "batch_size": 12,
    "lr": 1e-3,
    "warmup": 100,
    "decay": True,
    "final": 0.1,
    "weight_decay": 0.1,
    "clip": 1.0,
    "beta2": 0.99,
    "batched": True,
}


WIDE = {"block_size": 128, "n_head": 3, "n_embd": 96}


TWO, THREE = {"n_layer": 2, "n_head": 2, "n_embd": 72}, {"n_layer": 3, "n_embd": 72}


RACE = (
    Entry("lecture", "lecture"),
    Entry("fast", "fast", END, {}, {"steps": 980, "batch_size": 24}),
    Entry("sprint", "sprint", END, {"n_head": 2}, {"steps": 830, "batch_size": 24}),
    Entry("sprint+", "sprint+", END, TWO, {"steps": 320, "batch_size": 24}),
    Entry("sprint", "sprint", 1.70, {**THREE, "n_head": 2, "n_embd": 96}, {"steps": 1450}),
    Entry("sprint+", "sprint+", 1.70, THREE, {"steps": 760}),
    Entry("nanoGPT's", "lecture", None, {"block_size": 64, "n_embd": 128, "bias": False}, NANOGPT),
    Entry("fast", "fast", 1.78, {"block_size": 64}, {"steps": 900}),
    Entry("sprint", "sprint", 1.60, WIDE, {"steps": 2350}),
    Entry("sprint+", "sprint+", 1.60, {**WIDE, "n_layer": 3}, {"steps": 2300}),
    Entry("sprint", "sprint", 1.55, WIDE, {"steps": 4200}),
)


RATE = {"lr": 5e-3, "warmup": 20, "decay": True, "batched": True, "fused": True}


IDEAS = (
    Entry("the lecture's recipe", "lecture"),
    Entry(
        "heads in one product, fused AdamW", "lecture", None, {}, {"batched": True, "fused": True}
    ),
    Entry("rate 5e-3, warm-up, line to zero", "lecture", None, {}, RATE),
    Entry("Muon, zero start (fast)", "fast"),
    Entry("RMSNorm, RoPE, QK-norm, ReLU² (sprint)", "sprint"),
    Entry("a table for pairs", "sprint", None, {"ngrams": 2}, {"lr": 1.5e-2}),
    Entry("a table for triples (sprint+)", "sprint+"),
)


# One change of notebook 06 after another, all else as it was: block 64, the same steps and characters.
STEPS, SMALL = {"steps": 2000}, {"block_size": 64, "per_head": False}


ROPE, NEAR = {**SMALL, "rope": True}, {**SMALL, "rope": True, "window": 16}


HEADS = (
    Entry("a table of positions", "fast", None, SMALL, STEPS),
    Entry("rotary positions", "fast", None, ROPE, STEPS),
    Entry("2 heads of keys", "fast", None, {**ROPE, "n_kv_head": 2}, STEPS),
    Entry("1 head of keys", "fast", None, {**ROPE, "n_kv_head": 1}, STEPS),
    Entry("window 16", "fast", None, NEAR, STEPS),
    Entry("window 16, every 2nd layer full", "fast", None, {**NEAR, "full_every": 2}, STEPS),
    Entry("window 16, 1 head of keys", "fast", None, {**NEAR, "n_kv_head": 1}, STEPS),
)


KINDS = {"race": RACE, "ideas": IDEAS, "heads": HEADS}


class Runner:
    """One run that is taken a piece at a time, with its own clock."""

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
        self.some = list(_some_batches(self.val, shape.block_size, device))
        self.done, self.seconds, self.curve = 0, 0.0, []

    def advance(self, until: int) -> None:
        """Train up to step `until`, on the clock."""
        before = _clock(self.device)
        for step in range(self.done, until):
            self.trainer.step(step)
        self.seconds += _clock(self.device) - before
        self.done = until

    def look(self) -> None:
        """A point of the curve, from a fifth of the validation text; not on the clock."""
        self.curve.append([round(self.seconds, 2), round(estimate_loss(self.model, self.some), 4)])

    def result(self) -> dict:
        """The run as plain data, with the loss over the whole validation text."""
        entry = asdict(self.entry)
        return {
            **{key: entry[key] for key in ("name", "recipe", "goal")},
            "seed": self.seed,
            "block_size": self.model.config.block_size,
            "n_params": self.model.n_params,
            "steps": self.config.steps,
            "chars": self.config.batch_size * self.model.config.block_size,
            "seconds": round(self.seconds, 2),
            "loss": round(full_loss(self.model, self.val), 4),
            "curve": self.curve,
        }


def race(
    entries: Sequence[Entry],
    corpus: Corpus,
    *,
    seed: int,
    device: Device,
    steps: Sequence[int | None] | None = None,
) -> list[dict]:
    """Train every entry, in turns, and return what `Runner.result` says of each."""
    counts = steps or [None] * len(entries)
    runners = [
        Runner(entry, corpus, seed, device, n) for entry, n in zip(entries, counts, strict=True)
    ]
    with torch.random.fork_rng(), tqdm(total=TURNS, desc=f"seed {seed}", disable=headless()) as bar:
        torch.manual_seed(seed)
        for turn in range(TURNS + 1):
            for runner in runners:
                runner.advance(runner.config.steps * turn // TURNS)
                if turn % (TURNS // POINTS) == 0:
                    runner.look()
            bar.update(turn > 0)
    return [runner.result() for runner in runners]


def steps_for(
    entries: Sequence[Entry], corpus: Corpus, seconds: float, device: Device
) -> list[int]:
    """How many steps of each entry take that long here, from a short trial in turns."""
    runners = [Runner(entry, corpus, 0, device) for entry in entries]
    for until in (10, 20, 30, 40, 50):
        for runner in runners:
            runner.advance(until)
            if until == 10:
                runner.seconds = 0.0  # the first ones allocate
    steps = [round(seconds / (runner.seconds / 40)) for runner in runners]
    if min(steps) < TURNS:
        least = seconds * TURNS / max(1, min(steps))
        raise ValueError(
            f"{seconds:g} seconds are {min(steps)} steps of the slowest entry here, and {TURNS} are the "
            f"least: take {least:.2g} seconds"
        )
    return steps


def table(runs: list[dict]) -> list[dict]:
    """One row for each entry: medians over the seeds, and how much sooner than the lecture's recipe.

    The ratio is that of seconds, seed by seed, and given only where the loss is no higher than the
    lecture's at the same block.
    """
    keys = dict.fromkeys((run["name"], run["goal"]) for run in runs)
    groups = {key: [run for run in runs if (run["name"], run["goal"]) == key] for key in keys}
    base = {run["seed"]: run for run in runs if run["name"] == "lecture"}
    rows = []
    for group in groups.values():
        row = {
            key: group[0][key]
            for key in ("name", "goal", "block_size", "n_params", "steps", "chars")
        }
        row |= {
            "seconds": summary(r["seconds"] for r in group),
            "loss": summary(r["loss"] for r in group),
        }
        same = base and group[0]["block_size"] == next(iter(base.values()))["block_size"]
        if same and row["loss"]["median"] <= summary(r["loss"] for r in base.values())["median"]:
            row["sooner"] = summary(base[r["seed"]]["seconds"] / r["seconds"] for r in group)
        rows.append(row)
    return rows


def published(name: str) -> dict:
    """The figures that ship with the repository, of that kind or of speculate. Raises ValueError without."""
    path = ROOT / "outputs" / "race" / f"{name}.json"
    if not path.is_file():
        what = {"race": "train", "speculate": name}.get(name, f"train --{name}")
        raise ValueError(
            f"{path} is missing: measure it with python -m nanogpt bench {what} --json {path}"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def panels(result: dict) -> list[dict]:
    """The curves of a race, one panel for each block size: of every entry its run of the median loss."""
    keys = dict.fromkeys((run["name"], run["goal"], run["block_size"]) for run in result["runs"])
    lines: dict[int, list] = {}
    for name, goal, block in keys:
        group = [
            run
            for run in result["runs"]
            if (run["name"], run["goal"], run["block_size"]) == (name, goal, block)
        ]
        middle = sorted(group, key=lambda run: run["loss"])[len(group) // 2]
        lines.setdefault(block, []).append(
            {"label": name, "loss": middle["loss"], "curve": middle["curve"]}
        )
    return [{"title": f"block {block}", "lines": found} for block, found in sorted(lines.items())]


def _some_batches(val: Tensor, block: int, device: Device):
    starts = torch.arange(0, len(val) - block, block)[::5]
    for some in starts.split(max(1, 8192 // block)):
        x, y = windows(val, some, block)
        yield x.to(device.device), y.to(device.device)


def _clock(device: Device) -> float:
    alone = (
        device.device.type == "cpu" and torch.get_num_threads() == 1
    )  # else CPU seconds add up over threads
    return time.process_time() if alone else clock(device.device)


def chosen(entries: Sequence[Entry], only: str | None) -> Sequence[Entry]:
    """The entries whose recipe is named, and always the lecture's. Raises ValueError."""
    if only is None:
        return entries
    names, known = only.split(","), list(dict.fromkeys(entry.recipe for entry in entries))
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--only {','.join(unknown)}: choose among {', '.join(known)}")
    return [entry for i, entry in enumerate(entries) if entry.recipe in names or i == 0]
