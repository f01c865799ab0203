"""Stopping a training run and resuming it to the same bits: its state in one file, and Ctrl-C.

The state is all that the next step depends on: weights, the optimizers' moments, the generators,
the history. It is one safetensors file, written whole or not at all; nothing is unpickled.
"""

from __future__ import annotations

import json
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ..model.checkpoint import CheckpointError, read_tensors, write_tensors
from .trainer import Trainer

FORMAT = "nanogpt-notebooks training state 2"


def state_path(out: Path) -> Path:
    """Where the state of the run that writes to `out` is."""
    return out.with_name(f"{out.name}-last.state.safetensors")


def save_state(out: Path, settings: dict, step: int, trainer: Trainer, history: dict) -> None:
    """Write the state after `step` steps. `settings` say which run it is: parts of plain data."""
    tensors = {f"model.{name}": tensor for name, tensor in trainer.model.state_dict().items()}
    for i, optimizer in enumerate(trainer.optimizers):
        for index, moments in optimizer.state_dict()["state"].items():
            for key, value in moments.items():
                tensors[f"optimizer.{i}.{index}.{key}"] = torch.as_tensor(value)
    losses = history["batch_loss"]
    tensors["batch_loss"] = torch.stack(losses) if losses else torch.empty(0)
    tensors["batches"], tensors["cpu"] = trainer.generator.get_state(), torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    plain = {key: value for key, value in history.items() if key != "batch_loss"}
    meta = {"format": FORMAT, "about": settings, "step": step, "history": plain}
    write_tensors(state_path(out), tensors, meta | {"scaler": trainer.scaler.state_dict()})


def check_state(out: Path, settings: dict) -> None:
    """Raises what load_state would raise for this file, before anything has been changed."""
    if state_path(out).is_file():
        _read(state_path(out), settings)


def load_state(out: Path, settings: dict, trainer: Trainer, history: dict) -> int:
    """Put everything back as it was saved; the number of steps done, 0 when nothing was saved.

    Raises CheckpointError for a damaged file, and ValueError when the run began with other
    settings: to continue with these would be neither the one run nor the other.
    """
    path = state_path(out)
    if not path.is_file():
        return 0
    tensors, meta = _read(path, settings)
    with _foreign_as_error(path):
        trainer.model.load_state_dict(_under("model.", tensors))
        for i, optimizer in enumerate(trainer.optimizers):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": _moments(tensors, i), "param_groups": groups})
        trainer.generator.set_state(tensors["batches"])
        torch.set_rng_state(tensors["cpu"])
        if torch.cuda.is_available() and "cuda" in tensors:
            torch.cuda.set_rng_state(tensors["cuda"])
        trainer.scaler.load_state_dict(meta["scaler"])
        losses = tensors["batch_loss"].to(trainer.device.device)  # beside those that follow
        history |= meta["history"] | {"batch_loss": list(losses.unbind())}
        return meta["step"]


def _read(path: Path, settings: dict) -> tuple[dict[str, Tensor], dict]:
    tensors, meta = read_tensors(path)
    with _foreign_as_error(path):
        if meta["format"] != FORMAT:
            raise CheckpointError(
                f"{path} has format {meta['format']!r}, this version reads {FORMAT!r}"
            )
        _check_same(path, meta["about"], json.loads(json.dumps(settings)))
    return tensors, meta


@contextmanager
def _foreign_as_error(path: Path):
    """What a file that lacks something of ours would raise is a CheckpointError that says so."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is not a state of this run ({error!r}): delete it to start again"
        ) from error


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _moments(tensors: dict[str, Tensor], i: int) -> dict[int, dict[str, Tensor]]:
    """The state of optimizer i: for each of its parameters, by index, its tensors by name."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _under(f"optimizer.{i}.", tensors).items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = tensor
    return state


def _check_same(path: Path, before: dict, now: dict) -> None:
    changed = [
        f"{part} {key} {before[part].get(key)!r}, not {value!r}"
        for part, values in now.items()
        for key, value in values.items()
        if before[part].get(key) != value
    ]
    if changed:
        raise ValueError(
            f"the run in {path} began with {'; '.join(changed)}: resume with the same settings, "
            f"or start again with resume=False"
        )


@contextmanager
def deferred_interrupt():
    """Gives a list that the first Ctrl-C is put into, so that no step is cut in half.

    A second Ctrl-C is raised. Where signals cannot be caught, outside of the main thread, or are
    ignored, nothing changes.
    """
    asked: list[int] = []
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number, frame):
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
