"""One training run: evaluation, history, saving, Ctrl-C and the clock, around its steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import Tensor

from ..model.gpt import GPT
from ..system.console import Progress
from ..system.device import forked_random_state
from .evaluate import fixed_batches, full_loss, mean_loss
from .files import RunFiles
from .state import deferred_interrupt
from .throughput import Meter
from .trainer import Trainer


class TrainingRun:
    """One run: its trainer, its fixed batches for evaluation, its history, files and clock."""

    def __init__(
        self,
        trainer: Trainer,
        val: Tensor,
        files: RunFiles | None,
        *,
        speed: bool = False,
        watch: Callable[[int, GPT], None] | None = None,
    ):
        self.trainer, self.config, self.model = trainer, trainer.config, trainer.model
        self.val, self.files, self.speed, self.watch = val, files, speed, watch
        self.first = trainer.ranks.first
        T, device, n = self.model.config.block_size, trainer.device, self.config.eval_batches
        self.fixed = {
            name: fixed_batches(part, T, n, device.device)
            for name, part in (("train", trainer.data), ("val", val))
        }
        self.history = {"step": [], "train": [], "val": [], "lr_scale": [], "batch_loss": []}
        self.done = 0  # steps of an earlier part of this run
        self.chars_per_step = self.config.batch_size * T
        self.meter = Meter(self.model.config, device, trainer.ranks.size)
        self.speed_note = ""  # on a GPU to look at every step would wait for the queue

    @contextmanager
    def begun(self):
        """Around the loop: a progress bar, Ctrl-C deferred, and the first evaluation."""
        with self._progress_bar() as self.bar, deferred_interrupt() as self.interrupts:
            if not self.history["step"]:
                if self.files and self.first:
                    self.files.clear_state()
                self.evaluate(0)
            yield

    def record(self, step: int, loss: Tensor) -> None:
        """Note the loss of a step. Raises FloatingPointError where it is not finite."""
        note = self.speed_note
        if self.trainer.device.device.type == "cpu":  # on a GPU this would wait for the queue
            self._check_finite(value := float(loss), step)
            note = f"loss {value:.2f}{', ' if note else ''}{note}"
        self.history["lr_scale"].append(self.config.scale(step))
        self.history["batch_loss"].append(loss)
        self.meter.tokens += self.chars_per_step
        self.bar.update(note=note)

    def evaluate(self, step: int) -> None:
        """Measure the losses, keep the checkpoints, log and print a line, call `watch`."""
        self.meter.lap("train")
        if self.first:
            means = [mean_loss(self.model, batches) for batches in self.fixed.values()]
            losses = dict(zip(self.fixed, torch.stack(means).tolist(), strict=True))  # one wait
            self._keep(step, losses)
            self._print(step, losses)
            if self.watch:
                with forked_random_state(self.trainer.device):
                    self.watch(step, self.model)
                self.model.train()
        self.meter.lap("evaluate")
        self.speed_note = str(self.meter) if step else ""

    def save(self, step: int) -> None:
        """Write all that the next step depends on."""
        if self.files and self.first:
            self.files.save_state(step, self.trainer, self.history)

    def resume(self) -> None:
        """Put everything back as it was saved; where nothing was, the run begins at step 0."""
        self.done = self.files.load_state(self.trainer, self.history)
        if row := self.done and self.files.logged_speed(self.done):
            self.meter.resume(row, row["step"] * self.chars_per_step)

    def stop_if_asked(self, step: int) -> None:
        """Save and raise KeyboardInterrupt, with advice, where Ctrl-C was pressed."""
        if not self._is_asked_to_stop(step):
            return
        self.save(step)
        saved = " and saved: the same call with resume=True resumes from here"
        lost = "; nothing was saved, as no `out` was given"
        raise KeyboardInterrupt(f"stopped after {step} steps{saved if self.files else lost}")

    def result(self) -> dict:
        """The history as plain data, with the loss over the whole validation text."""
        return self.history | {
            "batch_loss": torch.stack(self.history["batch_loss"]).tolist(),  # one transfer
            "full_val": full_loss(self.model, self.val) if self.first else None,
            "block_size": self.model.config.block_size,
        }

    def _keep(self, step: int, losses: dict[str, float]) -> None:
        for loss in losses.values():
            self._check_finite(loss, step)
        best = not self.history["val"] or losses["val"] < min(self.history["val"])
        for name, value in {"step": step, **losses}.items():
            self.history[name].append(value)
        if self.files:
            self.files.save_checkpoints(self.model, step, losses, best=best)
            self.files.write_log(self.history, self.meter.summary())

    def _print(self, step: int, losses: dict[str, float]) -> None:
        line = f"step {step:5d} of {self.config.steps}"
        line += f" | train {losses['train']:.4f} | val {losses['val']:.4f}"
        line += f" | {self.meter}" * self.speed
        self.bar.print(line)

    def _progress_bar(self) -> Progress:
        return Progress(self.config.steps, "train", done=self.done, hidden=not self.first)

    def _is_asked_to_stop(self, step: int) -> bool:
        """Whether Ctrl-C was pressed. Several processes agree on it, to stop at the same step."""
        asked, device = bool(self.interrupts), self.trainer.device.device
        if self.trainer.ranks.size == 1:
            return asked
        if device.type == "cuda" and step % 10 and step < self.config.steps:
            return False  # to agree waits for the queue
        return bool(self.trainer.ranks.mean(torch.tensor(float(asked), device=device)) > 0)

    def _check_finite(self, loss: float, step: int) -> None:
        """Raises FloatingPointError, with what to try, for a loss that is infinite or NaN."""
        if math.isfinite(loss):
            return
        c, kept = self.config, ""
        if self.files and self.history["val"]:
            best = best_step(self.history)
            kept = f"; the best model until then, of step {best}, is in {self.files.best}"
        raise FloatingPointError(
            f"the loss is {loss} at step {step}: try half the learning rate (lr={c.lr / 2:g}"
            f"{f', muon_lr={c.muon_lr / 2:g}' if c.muon_lr else ''}) or a longer warm-up "
            f"(warmup={max(10, 2 * c.warmup)}){kept}"
        )


def best_step(history: dict) -> int:
    """The step whose weights `<out>.safetensors` holds: the first of the lowest validation loss."""
    return history["step"][history["val"].index(min(history["val"]))]
