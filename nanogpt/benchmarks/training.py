"""How soon each recipe reaches a loss: entries trained in turns, compared with a baseline.

Seconds are those of training alone, without evaluation: CPU seconds of this process on one thread,
wall-clock seconds with more threads or on a GPU. The runs of one seed take turns, so that they meet
the same load. Each learning rate schedule ends where its run ends. A loss is the mean over all of
the validation text in windows of the model's own block: compare only losses of equal blocks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import torch

from ..config.checks import override
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
        self.config = override(config, steps=steps)
        model = GPT(shape, generator=torch.Generator().manual_seed(seed))
        self.model, generator = prepare(model, self.config, device)
        data, self.val = split(tokenizer.encode(corpus.text), shape.block_size)
        self.trainer = Trainer(self.model, data, self.config, generator, device)
        # Every fifth window of it, in batches of about 8192 characters.
        starts = torch.arange(0, len(self.val) - shape.block_size, shape.block_size)[::5]
        some = starts.split(max(1, 8192 // shape.block_size))
        pairs = [windows(self.val, part, shape.block_size) for part in some]
        self.fifth = [(x.to(device.device), y.to(device.device)) for x, y in pairs]
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
    entries: Sequence[Entry], corpus: Corpus, *, seed: int, device: Device
) -> list[dict]:
    """Train every entry, a piece of each in turn. Returns `Runner.result` of each."""
    runners = [Runner(entry, corpus, seed, device) for entry in entries]
    with torch.random.fork_rng(), Progress(TURNS, f"seed {seed}") as bar:
        torch.manual_seed(seed)
        for turn in range(TURNS + 1):
            for runner in runners:
                runner.advance(runner.config.steps * turn // TURNS)
                if turn % EVALUATED == 0:
                    runner.evaluate()
            bar.update(int(turn > 0))
    return [runner.result() for runner in runners]


def compared(runs: list[dict]) -> list[dict]:
    """One row for each entry: summaries over the seeds, and how much sooner than the baseline.

    `sooner` is the ratio of the baseline's seconds to the entry's, seed by seed. It is given only
    where the loss is no higher than the baseline's at the same block.
    """
    baseline = {run["seed"]: run for run in runs if run["name"] == BASELINE}
    least = summary(run["loss"] for run in baseline.values())["median"] if baseline else 0.0
    blocks = {run["block_size"] for run in baseline.values()}
    rows = []
    for group in _grouped(runs):
        facts = ("name", "goal", "block_size", "n_params", "steps", "chars")
        row = {key: group[0][key] for key in facts}
        row["seconds"] = summary(run["seconds"] for run in group)
        row["loss"] = summary(run["loss"] for run in group)
        if row["block_size"] in blocks and row["loss"]["median"] <= least:
            pairs = [(baseline[run["seed"]], run) for run in group]
            row["sooner"] = summary(base["seconds"] / run["seconds"] for base, run in pairs)
        rows.append(row)
    return rows


def panels(result: dict) -> list[dict]:
    """The curves of a published result, a panel for each block size: each entry's median run."""
    lines: dict[int, list] = {}
    for group in _grouped(result["runs"]):
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
        raise ValueError(f"{path} is missing: measure it with python -m nanogpt bench --help")
    return json.loads(path.read_text(encoding="utf-8"))


def _grouped(runs: list[dict]) -> list[list[dict]]:
    """The runs of each entry, in the order of their first run."""
    groups: dict[tuple, list[dict]] = {}
    for run in runs:
        groups.setdefault((run["name"], run["goal"], run["block_size"]), []).append(run)
    return list(groups.values())


def _clock(device: Device) -> float:
    # With several threads CPU seconds add up over them.
    alone = device.device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time() if alone else clock(device.device)
