"""How to train: one run's numbers, and the recipes as data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .checks import LARGEST, check_int, check_number, check_positive, check_share, check_switch
from .shapes import GPTConfig


@dataclass(frozen=True)
class TrainConfig:
    """One training run. The schedule counts steps, never seconds, so that it reproduces."""

    steps: int = 2000  # updates of the weights
    batch_size: int = 4  # windows of block_size characters in one step
    lr: float = (
        8e-3  # AdamW: embeddings, head, biases, LayerNorms (everything, when muon_lr is None)
    )
    muon_lr: float | None = 0.02  # Muon: the matrices inside the blocks; None: AdamW for all
    warmup: int = 20  # steps from 0 up to the full learning rate
    decay: bool = True  # fall in a straight line, to 0 after the last step; False: stay constant
    weight_decay: float = 0.0  # share of the weights, times the rate, that a step takes away
    beta2: float = 0.99  # of AdamW: over about how many steps squared gradients are averaged
    final: float = 0.0  # share of the learning rate that the line falls to
    clip: float | None = None  # longest gradient; None: as it comes
    accumulate: int = (
        1  # parts that a batch is computed in, one after another: less memory, the same step
    )
    compile: bool = False  # torch.compile: pays back on a GPU, or after minutes on a CPU
    batched: bool = (
        True  # train a per-Head model with all heads in one product: the same function, sooner
    )
    fused: bool = True  # AdamW in one kernel
    zero_init: bool = True  # start every block as the identity, and the head at loss ln(vocab)
    eval_every: int = 200  # steps between two evaluations, each of which saves the run
    eval_batches: int = 4  # fixed batches of 16 windows of each split, the same at each evaluation
    seed: int = 1337  # weights and batches; sampling has a seed of its own

    def __post_init__(self):
        for name in ("steps", "batch_size", "accumulate", "eval_every", "eval_batches"):
            check_int(name, getattr(self, name), 1)
        for name in ("decay", "batched", "fused", "zero_init", "compile"):
            check_switch(name, getattr(self, name))
        check_positive("lr", self.lr)
        for name in ("muon_lr", "clip"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name in ("warmup", "weight_decay"):
            check_number(name, getattr(self, name), 0, LARGEST)
        check_number("final", self.final, 0, 1)
        check_share("beta2", self.beta2)
        check_int("seed", self.seed, 0, 2**63 - 1)
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size={self.batch_size} must be a multiple of accumulate={self.accumulate}"
            )

    def scale(self, step: int) -> float:
        """What the learning rates are multiplied by at `step` (from 0): warm-up, then a line to 0."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return rise * (1.0 - (1.0 - self.final) * (step / self.steps)) if self.decay else rise


@dataclass(frozen=True)
class Recipe:
    """How to train, and what of the architecture to change for it. Recipes are data."""

    train: TrainConfig
    about: str
    model: dict = field(default_factory=dict)  # fields of GPTConfig
    chars: int | None = (
        1024  # characters in one step, whatever the block; None: batch_size as it stands
    )


MODERN = {"rms_norm": True, "rope": True, "qk_norm": True, "relu2": True, "bias": False}


RECIPES = {
    "lecture": Recipe(
        TrainConfig(
            steps=5000,
            batch_size=16,
            lr=1e-3,
            muon_lr=None,
            warmup=0,
            decay=False,
            beta2=0.999,
            weight_decay=0.01,
            zero_init=False,
            batched=False,
            fused=False,
            eval_every=500,
        ),
        "Karpathy's, as in his notebook gpt-dev: head by head, AdamW, a constant rate",
        chars=None,
    ),
    "fast": Recipe(TrainConfig(), "the lecture's architecture, sooner to the same loss"),
    "sprint": Recipe(
        TrainConfig(), "a transformer of today: rotary positions, RMSNorm, ReLU²", MODERN
    ),
    "sprint+": Recipe(
        TrainConfig(lr=1.5e-2),
        "the same, with look-up tables for two and three characters",
        {**MODERN, "ngrams": 3},
    ),
}


def recipe_for(name: str, shape: GPTConfig) -> tuple[TrainConfig, GPTConfig]:
    """How that recipe trains a model of this shape, and the shape as it wants it. Raises ValueError."""
    if name not in RECIPES:
        raise ValueError(f"recipe={name!r} is unknown: choose {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    batch = (
        recipe.train.batch_size
        if recipe.chars is None
        else max(1, recipe.chars // shape.block_size)
    )
    return replace(recipe.train, batch_size=batch), replace(shape, **recipe.model)
