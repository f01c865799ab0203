"""The files of a run: checkpoints, a log, and the state from which it resumes bit-identically.

The state is one safetensors file, written atomically; nothing is unpickled. A state is checked to
be ours, undamaged (by its digest) and of a run with these settings; what it contains is believed.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import ParameterError
from ..data import CharTokenizer, Corpus
from ..decoder import checkpoint
from ..decoder.checkpoint import CheckpointError
from ..decoder.config import decoder_config
from ..decoder.model import Decoder
from ..decoder.pack import lecture_with
from ..files import check_file, sha256, write_whole
from ..model import GPT, LanguageModel
from .history import History
from .recipes import TrainConfig
from .state import changed_conditions, collect_state, conditions, restore_state
from .trainer import Trainer

STATE_FORMAT = f"{checkpoint.TRAINING_STATE} 5"


def state_path(out: Path) -> Path:
    """The state file of the run that writes to `out`."""
    return out.with_name(f"{out.name}-last.state.safetensors")


class RunFiles:
    """The files of one run. `out` is a path without suffix.

    <out>.safetensors             the checkpoint of the lowest validation loss, and a .json
    <out>-last.safetensors        the newest checkpoint, and a .json
    <out>.jsonl                   a line for each evaluation: follow it with tail -f
    <out>-last.state.safetensors  everything that the next step depends on, to resume the run
    """

    def __init__(
        self,
        out: str | Path,
        model: LanguageModel,
        corpus: Corpus,
        config: TrainConfig,
        tokenizer: CharTokenizer,
    ):
        self.out = checkpoint.check_path("out", out)
        self.state = state_path(self.out)
        self.log = self.out.with_name(f"{self.out.name}.jsonl")
        self.last = self.out.with_name(f"{self.out.name}-last")
        self.kind = type(model)  # the class in the checkpoints, whatever form is trained
        # 1. What every checkpoint of the run says about it.
        self.meta: dict[str, Any] = {
            "format": checkpoint.FORMAT,
            "config": checkpoint.config_to_json(model.config),
            "vocabulary": tokenizer.chars,
            "corpus": {"name": corpus.name, "sha256": corpus.sha256},
            "train": asdict(config),
            "versions": {"torch": torch.__version__},
        }
        # 2. What must be unchanged for the run to be resumed; `accumulate` and `compile` need not:
        #    the same run, computed differently.
        free = ("accumulate", "compile")
        self.settings = {
            "model": type(model).__name__,
            **checkpoint.config_to_json(decoder_config(model.config)),
            **self.meta["config"],
            **{name: x for name, x in self.meta["train"].items() if name not in free},
            "text": f"{corpus.name}, {corpus.sha256[:12]}",
            "characters": sha256(tokenizer.chars.encode())[:12],
            "dtype": str(model.dtype),
        }

    def check(self, resume: bool) -> None:
        """Check, before anything changes, that a run can begin or resume here.

        Raises ValueError for a file that no run wrote, CheckpointError for a lost state.
        """
        # 1. The state: readable if it will be resumed, and in any case ours before it is replaced.
        saved = self.state.is_file()
        if resume and saved:
            self.read_state()
        check_file(self.state, checkpoint.is_written(self.state, checkpoint.TRAINING_STATE))
        # 2. The checkpoints and the log that this run would replace are ours too. The state is
        #    written first, so a log without one belongs to something else.
        for path in (self.out, self.last):
            checkpoint.check_checkpoint(path)
        log = self.log.read_bytes() if self.log.is_file() else b""
        check_file(self.log, not log or (saved and log.startswith(b'{"step": ')))
        # 3. Trained weights without a state: somebody deleted or moved it. Do not replace them.
        for path in () if saved else (self.out, self.last):
            weights = path.with_name(f"{path.name}.safetensors")
            step = checkpoint.read_tensors(weights)[1].get("step", 0) if weights.is_file() else 0
            if step:  # at 0 nothing was trained
                raise CheckpointError(
                    f"{weights} was trained for {step:,} steps, and the state of its run is lost: "
                    f"restore {self.state}, or pass another out=PATH"
                )

    def save_newest(
        self, model: LanguageModel, history: History, speed: dict[str, float | None]
    ) -> None:
        """Write the newest evaluation: a line of the log, and checkpoints."""
        # 1. The checkpoint's description: its step and losses.
        newest = history.newest()
        losses = {"train": newest["train"], "val": newest["val"]}
        if history.full_val is not None:
            losses["full_val"] = history.full_val  # the loss of the last weights, i.e. these
        meta = {**self.meta, "step": newest["step"], "losses": losses}
        # 2. In the class that the caller trains: a packed worker is saved as the lecture's model.
        if self.kind is GPT and isinstance(model, Decoder):
            model = lecture_with(model)  # it may have been trained with custom attention
        # 3. The checkpoints, then the log.
        if history.newest_is_best():
            checkpoint.write_checkpoint(self.out, model, meta)
        checkpoint.write_checkpoint(self.last, model, meta)
        self._write_log(len(history.step), {**newest, **speed})

    def _write_log(self, lines: int, newest: dict[str, float | None]) -> None:
        """Write line number `lines` of the log, replacing any lines left by a killed run."""
        # A killed run evaluates again when it resumes: then its old line, or half of it, is there.
        old = self.log.read_bytes().splitlines(keepends=True) if self.log.is_file() else []
        earlier = old[: lines - 1]
        if earlier != old:
            write_whole(self.log, b"".join(earlier))
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(newest) + "\n")

    def save_state(self, step: int, trainer: Trainer, history: History) -> None:
        """Save everything that the step after `step` steps depends on."""
        tensors, data = collect_state(step, trainer, history)
        meta = {"format": STATE_FORMAT, "about": self.settings, **data}
        checkpoint.write_tensors(self.state, tensors, meta)

    def load_state(self, trainer: Trainer, history: History) -> int:
        """Restore the saved state and return the number of steps done. Raises like read_state.

        Prints a line if the run continues under different conditions, which changes the last bits.
        """
        # Without a state the run was killed before its first evaluation, or never began.
        done = 0
        if self.state.is_file():
            tensors, meta = self.read_state()
            with _foreign_as_error(self.state):
                done = restore_state(tensors, meta, trainer, history)
                note = changed_conditions(meta.get("computed", {}), conditions(trainer))
            if note and trainer.team.first:
                print(note, flush=True)
        # Each process reads the file. One that does not find it would begin at step 0.
        trainer.team.agree("saved steps:", done)
        return done

    def read_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Read the tensors of the state and its metadata.

        Raises CheckpointError for a damaged file, ValueError for a run that began with other
        settings.
        """
        # 1. Is the file ours and undamaged? Its digest says so.
        tensors, meta = checkpoint.read_tensors(self.state)
        with _foreign_as_error(self.state):
            if meta["format"] != STATE_FORMAT:
                raise CheckpointError(
                    f"{self.state} is not {STATE_FORMAT!r}: pass another out=PATH"
                )
            # 2. Is it of this run? Compare the settings as JSON, in which a tuple is a list.
            before = meta["about"]
            now = json.loads(json.dumps(self.settings))
            changed = {
                name: f"{name}={before.get(name)!r}, not {value!r}"
                for name, value in now.items()
                if not _same(name, before.get(name), value)
            }
        if changed:
            raise ParameterError(
                f"the run in {self.state} began with {'; '.join(changed.values())}: "
                f"resume with the same settings, or start a new run with out=PATH",
                *changed,
                "out",
            )
        return tensors, meta


def _same(name: str, before: object, now: object) -> bool:
    """Whether a setting is unchanged; texts are compared by digest, whatever the file's name."""
    if name == "text":
        return str(before).rpartition(", ")[2] == str(now).rpartition(", ")[2]
    return bool(before == now)


@contextmanager
def _foreign_as_error(path: Path) -> Iterator[None]:
    """Turn the errors of a file that is not a state of ours into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is not a state of this run ({error!r}): "
            f"restore it, or start a new run with out=PATH"
        ) from error
