"""One update of the weights (batch, loss, gradients, optimizers), and the losses between them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch import Tensor

from ..config.training import TrainConfig
from ..data.batches import random_batch, windows
from ..decoding.decoder import replica
from ..model.gpt import GPT
from ..system.device import Device, forked_random_state, send
from .distributed import ranks
from .optimizers import make_optimizers

EVAL_SEED = 4242  # of the fixed evaluation windows: the same for every training seed
BATCH = 16  # windows of a batch of them


@contextmanager
def memory_advice(config: TrainConfig):
    """Around training: where the memory is exhausted, a MemoryError that says what takes less."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        words = ("can't allocate memory", "not enough memory")  # of the CPU's allocator
        full = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if not full and not any(part in str(error) for part in words):
            raise
        size, most = config.batch_size, config.batch_size // ranks().size
        what = f"a batch of {size} windows in parts of {size // config.accumulate}"
        cure = f"a smaller model or batch_size, or more parts, up to accumulate={most}"
        raise MemoryError(f"the memory is exhausted by {what}: take {cure}") from error


@dataclass(eq=False)
class Trainer:
    """A model, its optimizers and where its batches come from; `step` moves the weights once.

    Where several processes train together each computes its share of every batch. The batches are
    the same for any number of processes, and so is the run, except for rounding. Raises ValueError
    for a batch that cannot be shared evenly.
    """

    model: GPT
    data: Tensor
    config: TrainConfig
    generator: torch.Generator
    device: Device

    def __post_init__(self):
        model, config, device, self.ranks = self.model, self.config, self.device, ranks()
        size, pieces = config.batch_size, config.accumulate * self.ranks.size
        if size % pieces:
            shared = f"{self.ranks.size} processes in {config.accumulate} parts each"
            cure = f"take a multiple of {pieces}"
            raise ValueError(f"batch_size={size} cannot be shared by {shared}: {cure}")
        torch.empty(4, config.batch_size, model.config.block_size)  # a batch that no memory holds
        self.optimizers = make_optimizers(model, config)
        self.rates = [opt.param_groups[0]["lr"] for opt in self.optimizers]
        self.net = torch.compile(model) if config.compile else model
        # Small gradients would vanish in float16: they are scaled up.
        small = device.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device.device.type, enabled=small)
        if self.ranks.size > 1:  # its backward pass averages gradients over all processes
            self.net = nn.parallel.DistributedDataParallel(self.net)
            self._settle_buckets()

    def step(self, step: int) -> Tensor:
        """Update number `step` (from 0); the loss of its batch before it, a 0-dim tensor."""
        for opt, rate in zip(self.optimizers, self.rates, strict=True):
            opt.param_groups[0]["lr"] = rate * self.config.scale(step)
        self._seed_dropout(step)
        T, batch_size = self.model.config.block_size, self.config.batch_size
        batch = random_batch(self.data, T, batch_size, self.generator)  # 2 × (B, T)
        own = (part.chunk(self.ranks.size)[self.ranks.rank] for part in batch)
        x, y = (send(part, self.device.device) for part in own)  # (B / processes, T)
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
        """Put the mean gradient of the batch into the parameters, in `accumulate` parts."""
        kind, dtype, n = self.device.device.type, self.device.dtype, self.config.accumulate
        total = 0.0
        for i, (x_part, y_part) in enumerate(zip(x.chunk(n), y.chunk(n), strict=True)):
            # The processes need to agree once a step only.
            alone = self.ranks.size > 1 and i < n - 1
            with self.net.no_sync() if alone else nullcontext():
                with torch.autocast(kind, dtype=dtype, enabled=dtype != torch.float32):
                    loss = self.net(x_part, y_part)[1] / n
                self.scaler.scale(loss).backward()
            total = total + loss.detach()
        return self.ranks.mean(total)

    def _settle_buckets(self) -> None:
        """One backward pass for nothing, after which DDP sorts its buckets of gradients.

        Sorted buckets are added up in another order. So they are sorted before the first step, of a
        resumed run as of a new one, and both compute the same bits.
        """
        share, T = self.config.batch_size // self.ranks.size, self.model.config.block_size
        zeros = torch.zeros(share, T, dtype=torch.int64, device=self.device.device)
        with forked_random_state(self.device):
            self._gradients(zeros, zeros)
        for opt in self.optimizers:
            opt.zero_grad(set_to_none=True)

    def _seed_dropout(self, step: int) -> None:
        """Dropout differs between processes; the first one has the state of a process alone.

        The others' follows from the step, so that a resumed run draws what the whole one drew.
        """
        if self.ranks.rank and self.model.config.dropout:
            torch.manual_seed(self.config.seed + 1_000_003 * self.ranks.rank + step)


@torch.no_grad()
def mean_loss(model: GPT, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean cross-entropy in nats over the (B, T) pairs given, in eval mode and without caches.

    The model's own modes and caches are neither used nor changed.
    """
    model = replica(model)
    losses = [model(x, y)[1].double() * y.numel() for x, y in batches]
    return torch.stack(losses).sum() / sum(y.numel() for _, y in batches)


def fixed_batches(data: Tensor, block_size: int, n: int, device) -> list:
    """n pairs (BATCH, block_size) of windows at places drawn from a seed of their own."""
    generator = torch.Generator().manual_seed(EVAL_SEED)
    drawn = [random_batch(data, block_size, BATCH, generator) for _ in range(n)]
    return [(send(x, device), send(y, device)) for x, y in drawn]


def full_loss(model: GPT, data: Tensor, every: int = 1) -> float:
    """The loss over all of `data` in non-overlapping windows of the model's block_size, in nats.

    With every=n the loss over each n-th of these windows.
    A loss depends on the block it is measured at: compare only losses of one block_size.
    """
    T, device = model.config.block_size, model.lm_head.weight.device
    starts = torch.arange(0, len(data) - T, T * every)
    pairs = (windows(data, some, T) for some in starts.split(BATCH))
    return float(mean_loss(model, [(send(x, device), send(y, device)) for x, y in pairs]))
