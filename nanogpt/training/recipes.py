"""How to train: the settings of a run, and recipes as data. No tensors, no files."""

from dataclasses import dataclass, field, fields, replace
from math import ceil, nextafter
from typing import Any

from ..config import (
    GPTConfig,
    ParameterError,
    check_int,
    check_number,
    check_positive,
    check_switch,
    check_type,
    option,
)
from ..decoder.config import Activation, DecoderConfig, Norm, Positions, decoder_config

# The windows of an evaluation stay in memory, 8 bytes a character: at block_size=256, this many
# batches of both splits take 270 MB. Their 65,536 windows are more than most texts have.
MOST_EVAL_BATCHES = 4096


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run. Schedules count steps, never seconds, so runs are reproducible.

    Raises ValueError for an impossible setting.
    """

    steps: int = option(2000, "updates of the weights")
    batch_size: int = option(4, "windows of block_size characters in one step")
    lr: float = option(8e-3, "AdamW: embeddings, head, biases, LayerNorms; without Muon, all")
    muon_lr: float | None = option(0.02, "Muon: the matrices inside the blocks; None: AdamW")
    warmup: int = option(20, "steps from 0 up to the full learning rate")
    decay: bool = option(True, "fall to 0 in a straight line until the end; without it, stay")
    weight_decay: float = option(0.0, "share of the matrices (AdamW alone: of all), times lr")
    beta2: float = option(0.99, "AdamW averages squared gradients over about 1 / (1 - beta2) steps")
    accumulate: int = option(1, "parts of a batch, one after another: less memory, the same step")
    compile: bool = option(False, "run torch.compile on the model, as nanoGPT's train.py does")
    batched: bool = option(True, "train a list of heads in one matmul: the same, faster")
    fused: bool = option(True, "AdamW in one kernel")
    zero_init: bool = option(True, "blocks begin as the identity, and the head at loss ln(vocab)")
    previous_token_init: bool = option(False, "first heads begin by attending 1, 2, … back")
    stages: tuple[tuple[float, int], ...] = option(
        (), "short windows first: 0.5:64,0.85:128 until these shares of the steps, then block_size"
    )
    epochs: bool = option(False, "every window of the text once before any comes again")
    bf16: bool = option(False, "linear layers in bfloat16 on a CPU that has the instructions")
    eval_every: int = option(200, "steps between two evaluations, each of which saves the run")
    eval_batches: int = option(4, "fixed batches of 16 windows of each split in an evaluation")
    seed: int = option(1337, "for weights and batches; sampling has a seed of its own")

    def __post_init__(self) -> None:
        # Whatever a run cannot follow is refused here, by the name of its field, before it begins.
        for name in ("steps", "batch_size", "accumulate", "eval_every"):
            check_int(name, getattr(self, name), 1, 2**31 - 1)
        check_int("eval_batches", self.eval_batches, 1, MOST_EVAL_BATCHES)
        for switch in fields(self):
            if switch.type is bool:
                check_switch(switch.name, getattr(self, switch.name))
        check_positive("lr", self.lr)
        if self.muon_lr is not None:
            check_positive("muon_lr", self.muon_lr)
        for name in ("warmup", "weight_decay"):
            check_number(name, getattr(self, name), 0)
        check_number("beta2", self.beta2, 0, 1 - 2**-53, span="[0, 1)")
        check_int("seed", self.seed, 0, 2**63 - 1)
        self._check_stages()
        n = self.batch_size
        if n % self.accumulate:
            raise ParameterError(
                f"batch_size={n} must be a multiple of accumulate={self.accumulate}",
                "batch_size",
                "accumulate",
            )

    def _check_stages(self) -> None:
        """Raise ValueError unless the stages are pairs of an increasing share and a block."""
        kinds = (tuple, list)
        given = self.stages if isinstance(self.stages, kinds) else [self.stages]
        if not all(isinstance(stage, kinds) and len(stage) == 2 for stage in given):
            raise ParameterError(
                f"stages={self.stages!r}: pass pairs (share of the steps, block), "
                f"for example ((0.5, 64), (0.85, 128))",
                "stages",
            )
        stages = tuple(map(tuple, given))
        object.__setattr__(self, "stages", stages)  # JSON has lists
        last = 0.0
        for share, block in stages:
            check_number("a share in stages", share, nextafter(last, 1), 1, span=f"({last:g}, 1]")
            check_int("a block in stages", block, 1, 2**31 - 1)
            last = share

    def stage(self, step: int) -> int:
        """The index of the stage of `step` (from 0): len(stages) once windows have full length."""
        return sum(step >= share * self.steps for share, _ in self.stages)

    def stage_begins(self) -> list[int]:
        """The first step of each stage, and finally that of full-length windows."""
        return [0, *(ceil(share * self.steps) for share, _ in self.stages)]

    def stage_begin(self, step: int) -> int:
        """The first step of the stage to which `step` belongs."""
        return self.stage_begins()[self.stage(step)]

    def window(self, step: int, block_size: int) -> tuple[int, int]:
        """Block and batch of `step` for a model with this block_size: characters and windows.

        Every stage reads about the same number of characters per step: batch_size windows of
        block_size.
        """
        # After the last stage, windows have the model's full length.
        stage = self.stage(step)
        if stage == len(self.stages):
            return block_size, self.batch_size
        block = self.stages[stage][1]
        return block, max(1, self.batch_size * block_size // block)

    def scale(self, step: int) -> float:
        """The learning-rate factor at `step` (from 0): warm-up, then linear decay."""
        # The first steps are small: the optimizers' running means still rest on few gradients.
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if not self.decay:
            return rise
        # Small steps at the end: they average out the noise of single batches.
        return rise * (1.0 - step / self.steps)


@dataclass(frozen=True)
class Recipe:
    """How to train, and the changes to the architecture that go with it. Recipes are data."""

    train: TrainConfig
    about: str
    # Fields of DecoderConfig; empty: the lecture's model.
    model: dict[str, Any] = field(default_factory=dict)
    chars: int | None = 1024  # characters per step at any block_size; None: use batch_size
    parts: tuple[tuple[float, int], ...] = ()  # stages: (share of the steps, part of the block)
    size: str = "small"  # the shape that it is made for


# The architecture of nanochat (Karpathy 2025): rotary positions, norms without weights, ReLU².
MODERN: dict[str, Any] = {
    "positions": Positions.ROTARY,
    "norm": Norm.RMS,
    "norm_weights": False,
    "norm_eps": None,
    "embed_norm": True,
    "qk_norm": True,
    "activation": Activation.RELU2,
    "proj_bias": False,
    "ffn_bias": False,
    "head_bias": False,
}

RECIPES = {
    "lecture": Recipe(
        TrainConfig(
            steps=5000,
            batch_size=16,
            eval_every=500,
            lr=1e-3,
            muon_lr=None,
            warmup=0,
            beta2=0.999,
            weight_decay=0.01,
            decay=False,
            zero_init=False,
            batched=False,
            fused=False,
        ),
        "Karpathy's in gpt-dev: AdamW, a constant rate",
        chars=None,
    ),
    "fast": Recipe(
        TrainConfig(steps=1700, eval_every=170, previous_token_init=True, epochs=True),
        "the lecture's architecture, faster to the same loss",
        chars=768,
        parts=((0.5, 4), (0.85, 2)),
    ),
    "sprint": Recipe(
        TrainConfig(steps=800, eval_every=80, previous_token_init=True, epochs=True),
        "modern: rotary positions, RMSNorm, ReLU²",
        MODERN,
        parts=((0.5, 4), (0.85, 2)),
    ),
    "keeper": Recipe(
        TrainConfig(
            steps=3400,
            warmup=30,
            weight_decay=0.1,
            eval_every=200,
            previous_token_init=True,
            epochs=True,
        ),
        "the same for longer: the model that ships",
        MODERN,
        chars=1280,
        parts=((0.35, 4), (0.75, 2)),
        size="medium",
    ),
}
"""Recipes by name: the training settings, what they change in the architecture, and
the size they were tuned for."""


def recipe_for(
    name: str, shape: GPTConfig | DecoderConfig
) -> tuple[TrainConfig, GPTConfig | DecoderConfig]:
    """The training settings of a recipe for this shape, and its version of the shape.

    Raises ValueError for an unknown recipe.
    """
    check_type("name", name, str)
    check_type("shape", shape, (GPTConfig, DecoderConfig))
    if name not in RECIPES:
        raise ValueError(f"recipe={name!r} is unknown: choose {', '.join(RECIPES)}")
    # 1. The architecture: the recipe's fields replace those of the shape.
    recipe = RECIPES[name]
    train = recipe.train
    model = replace(decoder_config(shape), **recipe.model) if recipe.model else shape
    # 2. The batch: as many windows as the recipe's characters per step fill.
    if recipe.chars is not None:
        train = replace(train, batch_size=max(1, recipe.chars // shape.block_size))
    # 3. The stages: parts of this shape's block.
    stages = tuple((share, max(1, shape.block_size // part)) for share, part in recipe.parts)
    return replace(train, stages=stages), model
