"""The state of a run, everything that its next step depends on: collected and restored.

Weights, optimizer moments, random generators, the float16 scaler, history: with them a resumed run
computes the bits of an uninterrupted one. Batches of epochs and the positions of short windows
follow from the step's number, so they need no state.
"""

from typing import Any

import torch
from torch import Tensor

from .history import History
from .trainer import Trainer


def collect_state(
    step: int, trainer: Trainer, history: History
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state after `step` steps, as named tensors and plain data: the input of restore_state."""
    # 1. The weights.
    tensors = {f"model.{name}": tensor for name, tensor in trainer.model.state_dict().items()}
    # 2. The running means that the optimizers keep for each weight, by the weight's index.
    for i, optimizer in enumerate(trainer.optimizers):
        for index, moments in optimizer.state_dict()["state"].items():
            for key, value in moments.items():
                tensors[f"optimizer.{i}.{index}.{key}"] = torch.as_tensor(value)
    # 3. The generators: of batches, and the global ones, which dropout uses.
    tensors["batches"] = trainer.generator.get_state()
    tensors["cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    # 4. The history, which the run returns at its end.
    losses = history.batch_loss
    tensors["batch_loss"] = torch.stack(losses) if losses else torch.empty(0)
    data = {
        "step": step,
        "history": history.to_json(),
        "computed": conditions(trainer),
        "scaler": trainer.scaler.state_dict(),
    }
    return tensors, data


def restore_state(
    tensors: dict[str, Tensor], data: dict[str, Any], trainer: Trainer, history: History
) -> int:
    """Restore the output of collect_state. Returns the number of steps done.

    Raises what PyTorch raises for tensors that do not fit the model.
    """
    # 1. The weights.
    trainer.model.load_state_dict(_under("model.", tensors))
    # 2. The optimizers' running means; learning rates and other settings are the trainer's.
    for i, optimizer in enumerate(trainer.optimizers):
        moments: dict[int, dict[str, Tensor]] = {}  # by the weight's index
        for name, tensor in _under(f"optimizer.{i}.", tensors).items():
            index, key = name.split(".", 1)
            moments.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    # 3. The generators. A run that began on a CPU has none of a GPU.
    trainer.generator.set_state(tensors["batches"])
    torch.set_rng_state(tensors["cpu"])
    if torch.cuda.is_available() and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"])
    trainer.scaler.load_state_dict(data["scaler"])
    # 4. The history; its losses on the device, like those to come.
    losses = tensors["batch_loss"].to(trainer.device.device)
    history.restore(data["history"], losses)
    done: int = data["step"]
    return done


def conditions(trainer: Trainer) -> dict[str, int | bool | str]:
    """What a run's last bits depend on besides its settings. It may change when resuming."""
    config = trainer.config
    device = trainer.device
    gpu = device.device.type == "cuda"
    return {
        "threads": torch.get_num_threads(),
        "processes": trainer.team.size,
        "accumulate": config.accumulate,
        "compile": config.compile,
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "precision": str(device.dtype).removeprefix("torch."),
        "torch": torch.__version__,
    }


def changed_conditions(before: dict[str, Any], now: dict[str, int | bool | str]) -> str:
    """A line that says what must be as before for bit-identical results; empty if all of it is."""
    changed = [name for name in now if name in before and before[name] != now[name]]
    if not changed:
        return ""
    was = ", ".join(f"{name}={before[name]}" for name in changed)
    current = ", ".join(f"{name}={now[name]}" for name in changed)
    return (
        f"resuming with {current}, saved with {was}: the run continues, but the bits of a run that "
        f"was never stopped need {was}"
    )


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {k.removeprefix(prefix): tensors[k] for k in tensors if k.startswith(prefix)}
