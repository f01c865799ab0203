"""What the training benchmark trains: recipes, changes to them, steps. Data, no machinery."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..config.checks import override
from ..config.shapes import SIZES, GPTConfig
from ..config.training import TrainConfig, recipe_for


@dataclass(frozen=True)
class Entry:
    """One training run: a recipe, changes to it, and the loss that its length was chosen for."""

    name: str
    recipe: str
    goal: float | None = None
    shape: dict = field(default_factory=dict)  # fields of GPTConfig, on top of SIZES["article"]
    train: dict = field(default_factory=dict)  # fields of TrainConfig

    def configs(self, vocab_size: int, seed: int) -> tuple[TrainConfig, GPTConfig]:
        """How to train, and what."""
        start = override(SIZES["article"], vocab_size=vocab_size, **self.shape)
        recipe, shape = recipe_for(self.recipe, start)
        return override(recipe, seed=seed, **self.train), shape


# ------------------------------------------------------------------ how soon is each at a loss?

END = 1.8125  # about where the lecture's recipe ends at block 32
TWO_LAYERS = {"n_layer": 2, "n_head": 2, "n_embd": 72}
THREE_LAYERS = {"n_layer": 3, "n_embd": 72}
WIDE = {"block_size": 128, "n_head": 3, "n_embd": 96}

# nanoGPT's sizes, batch, steps, rates and clipping for a CPU, from its README and train.py. Our
# code has ReLU for its GELU, an output head of its own for tied weights, a line for its cosine.
NANOGPT = {
    "steps": 2000,
    "batch_size": 12,
    "lr": 1e-3,
    "warmup": 100,
    "decay": True,
    "final": 0.1,
    "weight_decay": 0.1,
    "clip": 1.0,
    "beta2": 0.99,
    "batched": True,
}

RACE = (
    Entry("lecture", "lecture"),
    Entry("fast", "fast", END, {}, {"steps": 980, "batch_size": 24}),
    Entry("sprint", "sprint", END, {"n_head": 2}, {"steps": 830, "batch_size": 24}),
    Entry("sprint+", "sprint+", END, TWO_LAYERS, {"steps": 320, "batch_size": 24}),
    Entry("sprint", "sprint", 1.70, {"n_layer": 3, "n_head": 2, "n_embd": 96}, {"steps": 1450}),
    Entry("sprint+", "sprint+", 1.70, THREE_LAYERS, {"steps": 760}),
    Entry("nanoGPT's", "lecture", None, {"block_size": 64, "n_embd": 128, "bias": False}, NANOGPT),
    Entry("fast", "fast", 1.78, {"block_size": 64}, {"steps": 900}),
    Entry("sprint", "sprint", 1.60, WIDE, {"steps": 2350}),
    Entry("sprint+", "sprint+", 1.60, {**WIDE, "n_layer": 3}, {"steps": 2300}),
    Entry("sprint", "sprint", 1.55, WIDE, {"steps": 4200}),
)

# ------------------------------------------------------------------ what does each idea add?

BATCHED = {"batched": True, "fused": True}
RATE = {**BATCHED, "lr": 5e-3, "warmup": 20, "decay": True}

# The steps are those of about 20 seconds of training, on one thread of a slow Xeon.
IDEAS = (
    Entry("the lecture's recipe", "lecture", None, {}, {"steps": 1246}),
    Entry("heads in one product, fused AdamW", "lecture", None, {}, {**BATCHED, "steps": 1827}),
    Entry("rate 5e-3, warm-up, line to zero", "lecture", None, {}, {**RATE, "steps": 1882}),
    Entry("Muon, zero start (fast)", "fast", None, {}, {"steps": 764}),
    Entry("RMSNorm, RoPE, QK-norm, ReLU² (sprint)", "sprint", None, {}, {"steps": 592}),
    Entry("a table for pairs", "sprint", None, {"ngrams": 2}, {"lr": 1.5e-2, "steps": 614}),
    Entry("a table for triples (sprint+)", "sprint+", None, {}, {"steps": 576}),
)

# ------------------------------------------------------------------ what do shared keys cost?

# The changes of notebook 08, one at a time; all else is equal: block 64, steps, characters.
STEPS = {"steps": 2000}
BATCHED_64 = {"block_size": 64, "per_head": False}
ROPE = {**BATCHED_64, "rope": True}
WINDOW = {**ROPE, "window": 16}

HEADS = (
    Entry("a table of positions", "fast", None, BATCHED_64, STEPS),
    Entry("rotary positions", "fast", None, ROPE, STEPS),
    Entry("2 heads of keys", "fast", None, {**ROPE, "n_kv_head": 2}, STEPS),
    Entry("1 head of keys", "fast", None, {**ROPE, "n_kv_head": 1}, STEPS),
    Entry("window 16", "fast", None, WINDOW, STEPS),
    Entry("window 16, every 2nd layer full", "fast", None, {**WINDOW, "full_every": 2}, STEPS),
    Entry("window 16, 1 head of keys", "fast", None, {**WINDOW, "n_kv_head": 1}, STEPS),
)

KINDS = {"race": RACE, "ideas": IDEAS, "heads": HEADS}
