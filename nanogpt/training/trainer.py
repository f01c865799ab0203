"""One update of the weights: `Trainer.step` reads from top to bottom."""

from dataclasses import dataclass

import torch
import torch.nn as nn
from torch import Tensor

from ..config import ParameterError
from ..data import random_batch, send
from ..device import Device
from ..model import LanguageModel
from .epochs import Epochs
from .optimizers import make_optimizers
from .precision import precision
from .processes import ALONE, Team
from .recipes import TrainConfig


@dataclass(eq=False)
class Trainer:
    """A model, its optimizers and the source of its batches; `step` updates the weights once.

    With a `team` of several processes, each has a Trainer of its own. The batches are the same for
    any number of processes, and so is the run, except for rounding.

    Raises ValueError for a batch that cannot be split into equal shares, for a stage longer than
    the model's block, and for processes that have read different texts.
    """

    model: LanguageModel
    data: Tensor  # the training text as token ids, (N,)
    config: TrainConfig
    generator: torch.Generator  # of random batches
    device: Device
    team: Team = ALONE

    def __post_init__(self) -> None:
        self.team.agree_on_text(self.data)
        self._check_windows()
        config = self.config
        device = self.device
        self.epochs = Epochs(self.data, config.seed) if config.epochs else None
        self.optimizers = make_optimizers(self.model, config)
        self.rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.precision = precision(device, config.bf16)
        # Small gradients would underflow in float16, so they are scaled up.
        small = device.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device.device.type, enabled=small)
        # `net` is the model as a step calls it: compiled, and wrapped to average gradients.
        self.net: nn.Module = self.model
        if config.compile:
            # Each stage's block is compiled separately: one graph for any length is slower.
            # Torch's stubs type a compiled module as a function.
            self.net = torch.compile(self.model, dynamic=False)  # type: ignore[assignment]
        if self.team.size > 1:
            block, n = self.window(0)
            shape = (n // self.team.size // config.accumulate, block)
            self.net = self.team.averaging(self.net, shape, device)

    def step(self, step: int) -> Tensor:
        """Make update number `step` (from 0). Returns the batch loss before it, a 0-dim tensor."""
        config = self.config
        team = self.team
        device = self.device.device

        # 1. The learning rate of this step: each optimizer has its own, and all follow the same
        #    schedule.
        for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * config.scale(step)

        # 2. The batch: windows of the text, with targets shifted by one character. Every process
        #    draws the same batch and keeps its own share of the windows; a single one keeps all.
        x, y = self.batch(step)  # 2 × (B, T)
        x = send(x.chunk(team.size)[team.rank], device)  # (B / processes, T)
        y = send(y.chunk(team.size)[team.rank], device)
        positions = self.positions(x.shape[1], step)

        # 3. Dropout differs between processes. The first has the random state of a single process;
        #    the others derive theirs from the step, so that a resumed run repeats the same dropout.
        if team.rank > 0:
            torch.manual_seed(config.seed + 1_000_003 * team.rank + step)

        # 4. Forward and backward, in `accumulate` parts: PyTorch adds each part's gradient to those
        #    before it, so the sum is the gradient of the whole batch, in less memory.
        n = config.accumulate
        total = torch.zeros((), device=device)
        for part, (x_part, y_part) in enumerate(zip(x.chunk(n), y.chunk(n), strict=True)):
            if team.size > 1:
                # Average the gradients over the processes once, in the last part's backward pass.
                self.net.require_backward_grad_sync = part == n - 1  # type: ignore[assignment]
            with self.precision:
                _, loss = self.net(x_part, y_part, positions)
            loss = loss / n  # the mean over a batch is the sum of its parts' means, each over n
            self.scaler.scale(loss).backward()  # times 1, except in float16
            total = total + loss.detach()
        if team.size > 1:
            total = team.mean(total)

        # 5. Update the weights, and forget the gradients. The scaler undoes its scaling, skips the
        #    update if a scaled gradient overflowed in float16, and adapts its factor.
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        self.scaler.update()
        return total

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The windows of that step and their targets, on the CPU.  2 × (B, T)"""
        block, n = self.window(step)
        if not self.epochs:
            return random_batch(self.data, block, n, self.generator)
        stage = self.config.stage(step)
        drawn = (step - self.config.stage_begin(step)) * n  # windows of this stage so far
        return self.epochs.batch(stage, block, drawn, n)

    def positions(self, T: int, step: int) -> Tensor | None:
        """The positions of that step's windows: (T,); None for 0 … T-1.

        Windows shorter than the block start anywhere in it, so that a table's rows all train.
        """
        config = self.model.config
        room = config.block_size - T
        if config.max_positions is None or room == 0:
            return None
        # The generator is seeded with the step, so a resumed run needs no saved state for it.
        # A generator takes 64 bits, and a seed may have that many before it is multiplied.
        rng = torch.Generator().manual_seed((1_000_003 * self.config.seed + step) % 2**64)
        first = int(torch.randint(room + 1, (1,), generator=rng))
        return torch.arange(first, first + T, device=self.device.device)

    def window(self, step: int) -> tuple[int, int]:
        """Block and batch of that step: characters per window, and number of windows."""
        return self.config.window(step, self.model.config.block_size)

    def _check_windows(self) -> None:
        """Raise ValueError for windows that do not fit the model or the processes."""
        config = self.config
        limit = self.model.config.block_size
        parts = config.accumulate * self.team.size
        for block, n in map(self.window, config.stage_begins()):
            if block > limit:
                raise ValueError(
                    f"a stage has block {block}, the model {limit}: use shorter windows"
                )
            if n % parts:
                raise ParameterError(
                    f"batch_size={config.batch_size} is {n} windows of block {block}, "
                    f"not a multiple of {parts} parts: choose another",
                    "batch_size",
                )
