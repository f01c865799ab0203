"""The measurements of a training run: while it runs, and as plain data at its end."""

import math
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch
from torch import Tensor


class TrainingResult(TypedDict):
    """The history of a whole run as plain data, ready to plot or to write as JSON.

    The lists `step`, `train`, `val` and `block` have one entry per evaluation: steps done, training
    and validation loss in nats, and the characters in a window. `lr_scale` and `batch_loss` have
    one entry per step.
    """

    step: list[int]
    train: list[float]
    val: list[float]
    block: list[int]
    lr_scale: list[float]
    batch_loss: list[float]
    full_val: float | None  # loss over all validation text; None if another process evaluates
    block_size: int


@dataclass
class History:
    """The measurements of a run so far; batch losses stay tensors on the model's device."""

    step: list[int] = field(default_factory=list)
    train: list[float] = field(default_factory=list)
    val: list[float] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    lr_scale: list[float] = field(default_factory=list)
    batch_loss: list[Tensor] = field(default_factory=list)  # each ()
    full_val: float | None = None

    def add_evaluation(self, step: int, train: float, val: float, block: int) -> None:
        """Record the losses after `step` steps, on windows of `block` characters."""
        self.step.append(step)
        self.train.append(train)
        self.val.append(val)
        self.block.append(block)

    def add_step(self, lr_scale: float, batch_loss: Tensor) -> None:
        """Record one step: the factor on its learning rates, and the loss of its batch."""
        self.lr_scale.append(lr_scale)
        self.batch_loss.append(batch_loss)

    def newest(self) -> dict[str, float]:
        """The newest evaluation, by name."""
        return {
            "step": self.step[-1],
            "train": self.train[-1],
            "val": self.val[-1],
            "block": self.block[-1],
        }

    def newest_is_best(self) -> bool:
        """Whether the newest loss is the lowest at its block, and that block the longest so far."""
        # Losses at different blocks cannot be compared: longer windows have lower losses.
        block = self.block[-1]
        earlier = [
            loss
            for loss, other in zip(self.val[:-1], self.block[:-1], strict=True)
            if other == block
        ]
        return block == max(self.block) and self.val[-1] < min(earlier, default=math.inf)

    def to_json(self) -> dict[str, Any]:
        """Everything except the batch losses, which are saved as a tensor."""
        # Floats survive JSON exactly, so a resumed history is equal to an uninterrupted one.
        fields: dict[str, Any] = {
            "step": self.step,
            "train": self.train,
            "val": self.val,
            "block": self.block,
            "lr_scale": self.lr_scale,
        }
        if self.full_val is not None:
            fields["full_val"] = self.full_val
        return fields

    def restore(self, fields: dict[str, Any], batch_loss: Tensor) -> None:
        """Restore the output of `to_json` and the batch losses.  (steps,)"""
        self.step = fields["step"]
        self.train = fields["train"]
        self.val = fields["val"]
        self.block = fields["block"]
        self.lr_scale = fields["lr_scale"]
        self.batch_loss = list(batch_loss.unbind())
        self.full_val = fields.get("full_val")

    def result(self, block_size: int) -> TrainingResult:
        """The run as plain data, with one transfer from the device."""
        return {
            "step": self.step,
            "train": self.train,
            "val": self.val,
            "block": self.block,
            "lr_scale": self.lr_scale,
            "batch_loss": torch.stack(self.batch_loss).tolist() if self.batch_loss else [],
            "full_val": self.full_val,
            "block_size": block_size,
        }
