"""The files of one training run, and which run they belong to."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch

from ..config.training import TrainConfig
from ..data.corpus import Corpus
from ..data.tokenizer import CharTokenizer
from ..model.checkpoint import FORMAT, save_checkpoint, stem
from ..model.gpt import GPT
from ..system.files import atomic_path
from ..system.lock import held
from .log import logged_speed, write_log
from .state import check_state, load_state, save_state, state_path
from .trainer import Trainer


class RunFiles:
    """Where one run is saved. `out` is a path without suffix.

    <out>.safetensors             the checkpoint of the lowest validation loss, and a .json
    <out>-last.safetensors        the newest checkpoint, and a .json
    <out>.jsonl                   a line for each evaluation: follow it with tail -f
    <out>-last.state.safetensors  all that the next step depends on, to resume the run
    """

    def __init__(
        self,
        out: str | Path,
        model: GPT,
        corpus: Corpus,
        config: TrainConfig,
        tokenizer: CharTokenizer,
    ):
        self.out = stem(out)
        self.meta = {
            "format": FORMAT,
            "config": asdict(replace(model.config, per_head=model.config.has_heads)),
            "vocabulary": tokenizer.chars,
            "corpus": {"name": corpus.name, "sha256": corpus.sha256},
            "train": asdict(config),
            "versions": {"torch": torch.__version__},
        }
        self.settings = _settings(self.meta, str(model.lm_head.weight.dtype))

    def held(self):
        """A with-block in which no other run writes these files. Raises ValueError."""
        return held(self.out.with_name(f".{self.out.name}.lock"), f"to {self.out}")

    @property
    def best(self) -> Path:
        """The checkpoint of the lowest validation loss."""
        return self.out.with_name(f"{self.out.name}.safetensors")

    def save_checkpoints(self, model: GPT, step: int, losses: dict, *, best: bool) -> None:
        """Write the newest checkpoint, and the same as the best one where it is that."""
        for path in [self.out] * best + [self.out.with_name(f"{self.out.name}-last")]:
            save_checkpoint(path, model, {**self.meta, "step": step, "losses": losses})

    def write_log(self, history: dict, speed: dict) -> None:
        """Add the newest evaluation to the log."""
        write_log(self.out, history, speed)

    def logged_speed(self, step: int) -> dict | None:
        """What the log says of the speed until `step`."""
        return logged_speed(self.out, step)

    def check_state(self) -> None:
        """Raises ValueError for a state of another run, CheckpointError for a damaged one."""
        check_state(self.out, self.settings)

    def load_state(self, trainer: Trainer, history: dict) -> int:
        """Put the saved state back; the number of steps done, 0 when nothing was saved."""
        done = load_state(self.out, self.settings, trainer, history)
        trainer.ranks.agree("saved steps:", done)
        return done

    def save_state(self, step: int, trainer: Trainer, history: dict) -> None:
        """Write all that the next step depends on."""
        save_state(self.out, self.settings, step, trainer, history)

    def clear_state(self) -> None:
        """Remove the state of an earlier run: it must not be taken for that of the new one.

        Raises OSError, before anything is lost, where the folder cannot be written.
        """
        probe = self.out.with_name(f".{self.out.name}.writable")
        with atomic_path(probe):
            pass
        probe.unlink(missing_ok=True)
        state_path(self.out).unlink(missing_ok=True)


def _settings(meta: dict, dtype: str) -> dict:
    """What must be the same for a run to be resumed: parts, each a dict of names and values."""
    train = dict(meta["train"])
    for how in ("accumulate", "compile"):  # the same run, computed in another way
        train.pop(how)
    return {
        "config": dict(meta["config"]),
        "train": train,
        "corpus": {"sha256": meta["corpus"]["sha256"]},
        "vocabulary": {"characters": meta["vocabulary"]},
        "weights": {"dtype": dtype},
    }
