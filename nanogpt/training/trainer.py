"""One update of the weights (batch, loss, gradients, optimizers), and evaluation losses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..config import ParameterError
from ..data import random_batch, send, windows
from ..device import Device
from ..fitting import EVAL_BATCH, EVAL_SEED
from ..model import LanguageModel, replica
from .epochs import Epochs
from .optimizers import make_optimizers
from .recipes import TrainConfig

Batches = list[tuple[Tensor, Tensor]]  # windows and their targets, 2 × (B, T) each


@contextmanager
def memory_advice(config: TrainConfig, processes: int = 1) -> Iterator[None]:
    """Wrap training: out of memory becomes a MemoryError that says how to use less."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        words = ("can't allocate memory", "not enough memory")  # the CPU allocator's
        full = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if not full and not any(part in str(error) for part in words):
            raise
        size = config.batch_size
        raise MemoryError(
            f"out of memory with a batch of {size} windows "
            f"in parts of {size // config.accumulate}: "
            f"use a smaller model or batch_size, or up to accumulate={size // processes}"
        ) from error


class BFloat16Linear(TorchFunctionMode):
    """Context manager: linear layers multiply in bfloat16, and all else stays in float32.

    On a CPU with bfloat16 instructions, products take about half the time. The attention kernel is
    slower in bfloat16 than in float32, so autocast, which changes both, gains nothing.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.linear:
            return func(*args, **kwargs)
        x, weight, bias = (*args, kwargs.get("bias"))[:3]
        bias = None if bias is None else bias.bfloat16()
        return func(x.bfloat16(), weight.bfloat16(), bias).float()


@dataclass(eq=False)
class Trainer:
    """A model, its optimizers and the source of its batches; `step` updates the weights once.

    processes.py has a subclass for several processes. Raises ValueError for a batch that cannot be
    split into equal shares, and for a stage longer than the model's block.
    """

    model: LanguageModel
    data: Tensor
    config: TrainConfig
    generator: torch.Generator
    device: Device

    size = 1  # processes that share each batch
    first = True  # whether this process evaluates, prints and writes

    def __post_init__(self) -> None:
        model = self.model
        config = self.config
        device = self.device
        self._check_windows()
        self.epochs = Epochs(self.data, config.seed) if config.epochs else None
        self.optimizers = make_optimizers(model, config)
        self.rates = [opt.param_groups[0]["lr"] for opt in self.optimizers]
        # Each stage's block is compiled separately: one graph for any length is slower.
        self.net: nn.Module = model
        if config.compile:
            # Torch's stubs type a compiled module as a function.
            self.net = torch.compile(model, dynamic=False)  # type: ignore[assignment]
        # Small gradients would underflow in float16, so they are scaled up.
        small = device.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device.device.type, enabled=small)

    def step(self, step: int) -> Tensor:
        """Make update number `step` (from 0). Returns the batch loss before it, a 0-dim tensor."""
        for opt, rate in zip(self.optimizers, self.rates, strict=True):
            opt.param_groups[0]["lr"] = rate * self.config.scale(step)
        x, y = self.batch(step)  # 2 × (B, T)
        return self.move(send(x, self.device.device), send(y, self.device.device), step)

    def move(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        """Update the weights on these windows and return their loss.  2 × (B, T) -> ()"""
        loss = self.gradients(x, y, step)
        self.update()
        return loss

    def update(self) -> None:
        """Update the weights with the accumulated gradients, and clear them."""
        if self.config.clip:
            for opt in self.optimizers:
                self.scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for opt in self.optimizers:
            self.scaler.step(opt)  # skips the step if a scaled gradient overflowed
            opt.zero_grad(set_to_none=True)
        self.scaler.update()

    def loss(self, x: Tensor, y: Tensor, step: int = 0) -> Tensor:
        """The mean loss of these windows, in training's precision.  2 × (B, T)"""
        with self._precision():
            loss: Tensor = self.net(x, y, self.positions(x.shape[1], step))[1]
            return loss

    def positions(self, T: int, step: int) -> Tensor | None:
        """The positions of that step's windows: (T,); None for 0 … T-1.

        Windows shorter than the block start anywhere in it, so that a table's rows all train.
        """
        config = self.model.config
        room = config.block_size - T
        if config.max_positions is None or room == 0:
            return None
        rng = torch.Generator().manual_seed(1_000_003 * self.config.seed + step)
        first = int(torch.randint(room + 1, (1,), generator=rng))
        return torch.arange(first, first + T, device=self.device.device)

    def window(self, step: int) -> tuple[int, int]:
        """Block and batch of that step: characters per window, and number of windows."""
        return self.config.window(step, self.model.config.block_size)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The windows of that step and their targets.  2 × (B, T)"""
        block, n = self.window(step)
        if not self.epochs:
            return random_batch(self.data, block, n, self.generator)
        stage = self.config.stage(step)
        drawn = (step - self.config.stage_begin(step)) * n  # windows of this stage so far
        return self.epochs.batch(stage, block, drawn, n)

    def _check_windows(self) -> None:
        """Raise ValueError for windows that do not fit the model or the processes."""
        config = self.config
        limit = self.model.config.block_size
        pieces = config.accumulate * self.size
        for block, n in map(self.window, config.stage_begins()):
            if block > limit:
                raise ValueError(
                    f"a stage has block {block}, the model {limit}: use shorter windows"
                )
            if n % pieces:
                raise ParameterError(
                    f"batch_size={config.batch_size} is {n} windows of block {block}, "
                    f"not a multiple of {pieces} parts: choose another",
                    "batch_size",
                )
            torch.empty(4, n, block)  # fails here, before the first step, if memory is short

    def _precision(self) -> AbstractContextManager[object]:
        """Context manager: a forward pass multiplies in training's precision."""
        device = self.device.device.type
        dtype = self.device.dtype
        if device == "cpu" and self.config.bf16:
            return BFloat16Linear()
        return torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32)

    def gradients(self, x: Tensor, y: Tensor, step: int = 0) -> Tensor:
        """Compute the mean gradient of the batch, in `accumulate` parts."""
        n = self.config.accumulate
        total = torch.zeros((), device=x.device)
        for i, (x_part, y_part) in enumerate(zip(x.chunk(n), y.chunk(n), strict=True)):
            total = total + self.backward(x_part, y_part, step, last=i == n - 1)
        return total

    def backward(self, x: Tensor, y: Tensor, step: int, last: bool) -> Tensor:
        """Accumulate the gradient of one part of a batch; returns its share of the loss."""
        loss = self.loss(x, y, step) / self.config.accumulate
        self.scaler.scale(loss).backward()
        return loss.detach()

    def stops(self, request: bool, step: int, last: bool) -> bool:
        """Whether training stops before this step, at the request of this or another process."""
        return request

    def agree(self, name: str, value: object) -> None:
        """Raise ValueError unless all processes have the same value."""


@torch.no_grad()
def mean_loss(model: LanguageModel, batches: Batches) -> Tensor:
    """Mean cross-entropy in nats over (B, T) pairs, regardless of the model's mode and caches."""
    copied = replica(model)
    losses = [copied(x, y)[1].double() * y.numel() for x, y in batches]
    return torch.stack(losses).sum() / sum(y.numel() for _, y in batches)


def fixed_batches(data: Tensor, block_size: int, n: int, device: torch.device) -> Batches:
    """n pairs (EVAL_BATCH, block_size) of windows at random positions, with their own seed."""
    generator = torch.Generator().manual_seed(EVAL_SEED)
    drawn = [random_batch(data, block_size, EVAL_BATCH, generator) for _ in range(n)]
    return [(send(x, device), send(y, device)) for x, y in drawn]


def full_loss(model: LanguageModel, data: Tensor, every: int = 1) -> float:
    """The loss in nats over `data`, or over every n-th of its non-overlapping windows with every=n.

    A loss depends on the block size: compare only losses at the same block_size.
    """
    T = model.config.block_size
    device = model.device
    starts = torch.arange(0, len(data) - T, T * every)
    pairs = (windows(data, some, T) for some in starts.split(EVAL_BATCH))
    return float(mean_loss(model, [(send(x, device), send(y, device)) for x, y in pairs]))
