"""One update of the weights: batch, loss, gradients, optimizers. The same for every recipe."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn as nn
from torch import Tensor

from .config import TrainConfig
from .data import random_batch
from .model import GPT
from .parallel import ranks
from .runtime import Device


def zero_init(model: GPT, generator: torch.Generator) -> None:
    """Start each block as the identity and the head at zero, so the first loss is exactly ln(vocab).

    Embeddings are drawn from normal(0, 0.3): with nothing else moving the stream, they are the signal.
    Look-up tables start empty.
    """
    with torch.no_grad():
        for block in model.blocks:
            block.sa.proj.weight.zero_()
            block.ffwd.net[2].weight.zero_()
        model.lm_head.weight.zero_()
        for table in (model.token_embedding_table, model.position_embedding_table):
            if table is not None:
                nn.init.normal_(table.weight, std=0.3, generator=generator)
        for parameter in model.ngrams.parameters() if model.ngrams else ():
            parameter.zero_()


def make_optimizers(model: GPT, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for all else; or AdamW alone.

    Muon (Keller Jordan, 2024, https://kellerjordan.github.io/posts/muon/) makes each update of a
    matrix orthogonal, so that all its directions learn at one speed.
    """
    muon = {id(p) for p in model.blocks.parameters() if p.ndim == 2} if config.muon_lr else set()
    rest = [p for p in model.parameters() if id(p) not in muon]
    matrices = [p for p in model.parameters() if id(p) in muon]
    settings = {"lr": config.lr, "betas": (0.9, float(config.beta2)), "weight_decay": config.weight_decay}
    # eps: the first gradients of tables and a head that start at zero are tiny, and would be damped.
    optimizers = [torch.optim.AdamW(rest, **settings, eps=1e-10, fused=config.fused)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=config.weight_decay))
    return optimizers


class Trainer:
    """A model, its optimizers and where its batches come from; `step` moves the weights once.

    Where several processes train together each computes its share of every batch: the batches, and
    so the run, are the same for any number of them, but for rounding. Raises ValueError for a batch
    that cannot be shared out evenly.
    """

    def __init__(self, model: GPT, data: Tensor, config: TrainConfig, generator: torch.Generator,
                 device: Device):  # fmt: skip
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
        batch = random_batch(self.data, self.model.config.block_size, self.config.batch_size, self.generator)
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
            alone = self.ranks.size > 1 and i < n - 1  # the processes need to agree once a step only
            amp = torch.autocast(where.device.type, dtype=where.dtype, enabled=where.dtype != torch.float32)
            with self.net.no_sync() if alone else nullcontext():
                with amp:
                    loss = self.net(x_part, y_part)[1] / n
                self.scaler.scale(loss).backward()
            total = total + loss.detach()
        return self.ranks.mean(total)

    def _set_rates(self, scale: float) -> None:
        groups = [group for opt in self.optimizers for group in opt.param_groups]  # new ones after a load
        for group, rate in zip(groups, self.rates, strict=True):
            group["lr"] = rate * scale
