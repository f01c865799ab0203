"""One update of the weights: batch, loss, gradients, optimizers. The same for every recipe."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn as nn
from torch import Tensor

from ..config.training import TrainConfig
from ..data.batches import random_batch
from ..model.gpt import GPT
from ..system.device import Device
from .distributed import ranks
from .optimizers import make_optimizers


class Trainer:
    """A model, its optimizers and where its batches come from; `step` moves the weights once.

    Where several processes train together each computes its share of every batch: the batches, and
    so the run, are the same for any number of them, but for rounding. Raises ValueError for a batch
    that cannot be shared out evenly.
    """

    def __init__(
        self,
        model: GPT,
        data: Tensor,
        config: TrainConfig,
        generator: torch.Generator,
        device: Device,
    ):
        self.model, self.data, self.config = model, data, config
        self.generator, self.device = generator, device
        self.ranks = ranks()
        parts = config.accumulate * self.ranks.size
        if config.batch_size % parts:
            raise ValueError(
                f"batch_size={config.batch_size} cannot be shared by {self.ranks.size} processes"
                f"{f' in {config.accumulate} parts each' if config.accumulate > 1 else ''}: take a multiple "
                f"of {parts}"
            )
        self.optimizers = make_optimizers(model, config)
        self.rates = [group["lr"] for opt in self.optimizers for group in opt.param_groups]
        self.net = self.ranks.wrap(torch.compile(model) if config.compile else model)
        half = device.dtype == torch.float16  # its small gradients would vanish: they are scaled up
        self.scaler = torch.amp.GradScaler(device.device.type, enabled=half)

    def step(self, step: int) -> Tensor:
        """Update number `step` (from 0); the loss of its batch before it, a number on the device."""
        self._set_rates(self.config.scale(step))
        batch = random_batch(
            self.data, self.model.config.block_size, self.config.batch_size, self.generator
        )
        x, y = (self.ranks.share(part).to(self.device.device) for part in batch)
        loss = self._gradients(x, y)
        if self.config.clip:
            for opt in self.optimizers:
                self.scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for opt in self.optimizers:
            self.scaler.step(opt)
            opt.zero_grad(set_to_none=True)
        self.scaler.update()
        return loss

    def _gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Leave the mean gradient of the batch in the parameters, computed in `accumulate` parts."""
        where, n = self.device, self.config.accumulate
        total = 0.0
        for i, (x_part, y_part) in enumerate(zip(x.chunk(n), y.chunk(n), strict=True)):
            alone = (
                self.ranks.size > 1 and i < n - 1
            )  # the processes need to agree once a step only
            amp = torch.autocast(
                where.device.type, dtype=where.dtype, enabled=where.dtype != torch.float32
            )
            with self.net.no_sync() if alone else nullcontext():
                with amp:
                    loss = self.net(x_part, y_part)[1] / n
                self.scaler.scale(loss).backward()
            total = total + loss.detach()
        return self.ranks.mean(total)

    def _set_rates(self, scale: float) -> None:
        groups = [
            group for opt in self.optimizers for group in opt.param_groups
        ]  # new ones after a load
        for group, rate in zip(groups, self.rates, strict=True):
            group["lr"] = rate * scale
