"""Use the reader's code: train with the package's recipe, generate, serve and export.

The recipe supplies batches, learning rates, clipping, evaluation and checkpoints around that step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..attention import visible
from ..comparison import rounding
from ..data import send
from ..decoder.checkpoint import load_checkpoint
from ..decoder.config import beyond_lecture
from ..decoder.model import CausalSelfAttention
from ..decoder.pack import unpack_heads
from ..model import GPT, LanguageModel
from ..sampling import draw_noise
from ..training.trainer import Trainer
from . import proof
from .lesson import Lesson, LessonError, read_lesson

if TYPE_CHECKING:
    from ..serving.jobs import Job  # it imports the servers, which a notebook does not need


def trainer_with(
    attention_weights: Callable[[Tensor, Tensor, Tensor], Tensor],
    one_step: Callable[..., float],
) -> type[Trainer]:
    """A Trainer class that uses these attention weights, and one_step for its steps."""

    class Mine(CausalSelfAttention):
        """Attention with the reader's weights."""

        def attend(
            self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0
        ) -> Tensor:
            """(B, H, T, hs), (B, H, S, hs) twice, (T, S) -> (B, H, T, hs)"""
            if mask is None:
                pos = torch.arange(q.shape[-2], device=q.device)
                mask = visible(pos, pos)
            weights = attention_weights(q, k, mask)  # (B, H, T, S)
            return F.dropout(weights, dropout, training=dropout > 0) @ v

    class Practice(Trainer):
        """The recipe's batches and learning rates, and the reader's step."""

        def __post_init__(self) -> None:
            super().__post_init__()
            # Every layer gets the reader's attention, with the same parameters: the optimizers,
            # which exist already, update them.
            for layer, block in enumerate(self.model.blocks):
                packages = block.get_submodule("sa")
                if isinstance(packages, CausalSelfAttention):
                    mine = Mine(packages.config, layer)
                    mine.load_state_dict(packages.state_dict(keep_vars=True), assign=True)
                    block.sa = mine
            self.windows = WindowedModel(self)
            self.together = Together(self)

        def step(self, step: int) -> Tensor:
            # The recipe's learning rate and batch, as in Trainer.step; the rest is the reader's.
            for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
                optimizer.param_groups[0]["lr"] = rate * self.config.scale(step)
            x, y = (send(part, self.device.device) for part in self.batch(step))  # 2 × (B, T)
            self.windows.step = step
            return torch.tensor(one_step(self.windows, self.together, x, y))

    return Practice


class WindowedModel(nn.Module):
    """Wraps the model for one_step, as model(x, y), with windows at any position in the block."""

    def __init__(self, trainer: Trainer):
        super().__init__()
        self.net = trainer.net
        self.trainer = trainer
        self.step = 0

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and loss.  2 × (B, T) -> (B, T, V), ()"""
        with self.trainer.precision:
            logits, loss = self.net(idx, targets, self.trainer.positions(idx.shape[1], self.step))
            return logits, loss


class Together:
    """The recipe's optimizers as one optimizer, with its gradient clipping."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all of them."""
        groups = []
        for opt in self.trainer.optimizers:
            groups += opt.param_groups
        return groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        for opt in self.trainer.optimizers:
            opt.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update the weights once, with the existing gradients or those computed by closure()."""
        loss = closure() if closure else None
        for opt in self.trainer.optimizers:
            opt.step()
        return loss


# ------------------------------------------------------------------ commands: --lesson


def lesson_of(path: Path, *names: str) -> Lesson:
    """The lesson at a path; prints whose code runs. Raises LessonError, OSError."""
    lesson = read_lesson(path).check(names)
    for name in names:
        if name in lesson.broken:
            raise LessonError(lesson.broken[name])
    lesson.say(names, "{} run")
    return lesson


def model_with(lesson: Lesson, model: LanguageModel) -> GPT:
    """The model with the lesson's heads. Raises LessonError if they do not support it."""
    c = model.config
    if beyond_lecture(c):
        raise LessonError(
            "your Head is the lecture's, but this model has newer ones: pass a checkpoint of "
            "the lecture's architecture, for example outputs/mine/model.safetensors"
        )
    lecture = model if isinstance(model, GPT) else unpack_heads(model)
    try:
        return proof.with_heads(lesson.scope, lecture)
    except proof.Fault as fault:
        raise LessonError(f"your {fault}") from None


@torch.no_grad()
def logits_apart(lesson: Lesson, model: LanguageModel) -> float:
    """The largest difference between the lesson heads' logits and the package's, for one text.

    Raises LessonError if rounding does not explain the difference.
    """
    ids = torch.arange(model.config.block_size)[None] * 7 % model.config.vocab_size
    right = model(ids)[0]
    apart = float((model_with(lesson, model)(ids)[0] - right).abs().max())
    if not apart <= rounding(right):
        raise LessonError(f"with your heads the logits differ by {apart:.1e}: not exported")
    return apart


class LessonWriter:
    """Generates a job's texts with the reader's loop, one after the other."""

    def __init__(self, path: Path, checkpoint: str | Path, temperature: float):
        self.lesson = lesson_of(path, "Head", "KVCache", "sample", "generate_with_cache")
        self.saved = load_checkpoint(checkpoint)
        self.model = model_with(self.lesson, self.saved.model).eval()
        self.temperature = temperature

    def shards(self, job: Job) -> Iterator[tuple[int, list[str]]]:
        """(number, texts) of every unfinished shard of a job."""
        n = job.max_new_tokens
        for number in job.todo:
            yield number, [self.text(prompt, seed, n) for _, prompt, seed in job.texts_of(number)]

    def text(self, prompt: str, seed: int, n: int) -> str:
        """The n characters after a prompt. Raises LessonError if the loop stops early."""
        tokenizer = self.saved.tokenizer
        generator = torch.Generator().manual_seed(seed)
        noise = draw_noise(n, 1, len(tokenizer), generator) ** self.temperature
        ids = tokenizer.encode(prompt)[None]
        try:
            cache = self.lesson.scope["KVCache"]
            return tokenizer.decode(
                proof.write(self.lesson.scope, self.model, ids, noise, cache)[0]
            )
        except proof.Fault as fault:
            raise LessonError(f"your {fault}") from None
