"""Training by the reader's code: their attention_weights in every head, their one_step each step.

Around them stands the package's recipe: batches, rates, clipping, evaluation, what is saved.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..attention import visible
from ..trainer import Trainer


def trainer_with(attention_weights: Callable, one_step: Callable) -> type[Trainer]:
    """A Trainer whose model attends by these weights, and whose steps are made by one_step."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0):
        """(B, H, T, hs), (B, H, S, hs) twice, (T, S) -> (B, H, T, hs)"""
        if mask is None:
            pos = torch.arange(q.shape[-2], device=q.device)
            mask = visible(pos, pos)
        weights = attention_weights(q, k, mask)  # (B, H, T, S)
        return F.dropout(weights, dropout, training=dropout > 0) @ v

    class Practice(Trainer):
        """The recipe's batches and rates, and the reader's step."""

        def __post_init__(self):
            super().__post_init__()
            for block in self.model.blocks:
                block.sa.attend = attend
            self.windows = Windows(self)
            self.together = Together(self)

        def move(self, x, y, step):
            self.windows.step = step
            return torch.tensor(one_step(self.windows, self.together, x, y))

    return Practice


class Windows(nn.Module):
    """The model as one_step calls it, model(x, y), for windows that stand anywhere in the block."""

    def __init__(self, trainer: Trainer):
        super().__init__()
        self.net = trainer.net
        self.trainer = trainer
        self.step = 0

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and loss.  2 × (B, T) -> (B, T, V), ()"""
        with self.trainer._precision():
            return self.net(x, y, self.trainer.positions(x.shape[1], self.step))


class Together:
    """The recipe's optimizers as one, with its clipping."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    @property
    def param_groups(self) -> list[dict]:
        """The groups of parameters of all of them."""
        return [group for opt in self.trainer.optimizers for group in opt.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        for opt in self.trainer.optimizers:
            opt.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """Move the weights once, by the gradients that are there."""
        self.trainer.update()
