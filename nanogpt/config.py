"""Shapes and recipes as plain numbers, each checked where it is given. Knows no tensor, no file."""

from dataclasses import dataclass, field, replace
from math import ceil, nextafter

LARGEST = 1e30  # what float32 can still multiply with


def check_int(name: str, value, low: int, high: int | None = None) -> None:
    """Raise ValueError unless the value is an integer in [low, high]."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        need = f"of at least {low}" if high is None else f"in [{low}, {high}]"
        raise ValueError(f"{name}={value!r}: must be an integer {need}")


def check_number(name: str, value, low: float, high=LARGEST, advice="", span="") -> None:
    """Raise ValueError unless the value is a number in [low, high]; NaN is not."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        span = (span or f"[{low:g}, {high:g}]") + f"; {advice}" * bool(advice)
        raise ValueError(f"{name}={value!r}: must be a number in {span}")


def check_positive(name: str, value) -> None:
    """Raise ValueError unless the value is a finite number above 0."""
    check_number(name, value, 1 / LARGEST)


def check_switch(name: str, value) -> None:
    """Raise ValueError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: must be True or False")


def check_type(name: str, value, kind: type | tuple[type, ...]) -> None:
    """Raise TypeError unless the value is of this kind, or of one of these."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        raise TypeError(f"{name} must be a {wanted}, not {value!r:.80}")


def option(default, help: str):
    """A field with a default and the line that explains it, on a command line as here."""
    return field(default=default, metadata={"help": help})


def override(config, **changes):
    """The config with some fields changed; None leaves a field. Raises ValueError, TypeError."""
    return replace(config, **{name: x for name, x in changes.items() if x is not None})


# ------------------------------------------------------------------ the shape of a model

# The fields that change the lecture's architecture.
NEWER = ("rms_norm", "rope", "qk_norm", "relu2", "bias", "n_kv_head", "window", "sinks")
NEWER += ("full_every",)


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model. Raises ValueError when the numbers do not fit together."""

    vocab_size: int = option(65, "distinct characters")
    block_size: int = option(256, "longest context: rows of the position table")
    n_layer: int = option(4, "blocks")
    n_head: int = option(4, "heads of queries in a block")
    n_embd: int = option(64, "width; each head gets n_embd // n_head of it")
    dropout: float = option(0.0, "share of the activations that training drops")
    per_head: bool = option(True, "the lecture's list of Heads; False: all heads in one matmul")
    # What newer models do. The defaults are the lecture's.
    rms_norm: bool = option(False, "RMSNorm without weights, on the embeddings too; no LayerNorm")
    rope: bool = option(False, "rotary positions in place of the position table")
    rope_base: float = option(10_000.0, "the larger it is, the slower the slowest pair rotates")
    qk_norm: bool = option(False, "normalise queries and keys")
    relu2: bool = option(False, "ReLU squared in the feed-forward part")
    bias: bool = option(True, "biases, in the linear layers that have one in the lecture")
    n_kv_head: int | None = option(None, "heads of keys and values, shared by groups; None: n_head")
    window: int | None = option(None, "positions a query sees, its own included; None: all")
    sinks: int = option(0, "first positions that a query sees beside its window")
    full_every: int = option(0, "every so many layers, one without a window; 0: none")

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            check_int(name, getattr(self, name), 1)
        for name in ("per_head", "rms_norm", "rope", "qk_norm", "relu2", "bias"):
            check_switch(name, getattr(self, name))
        check_number("dropout", self.dropout, 0, 1 - 2**-53, span="[0, 1)")
        check_number("rope_base", self.rope_base, 1.0, LARGEST)
        self._check_heads()
        self._check_window()

    def _check_heads(self) -> None:
        if self.n_embd % self.n_head:
            fewer = next(n for n in range(min(self.n_head, 1000), 0, -1) if self.n_embd % n == 0)
            need = f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}"
            raise ValueError(f"{need}: every head gets an equal share, as of n_head={fewer}")
        if self.rope and self.head_size % 2:
            raise ValueError(f"rope=True rotates pairs: head size {self.head_size} must be even")
        if self.n_kv_head is not None:
            check_int("n_kv_head", self.n_kv_head, 1)
        if self.n_head % self.kv_heads:
            need = f"n_head={self.n_head} must be a multiple of n_kv_head={self.n_kv_head}"
            raise ValueError(f"{need}: each head of keys serves as many heads of queries")

    def _check_window(self) -> None:
        if self.window is not None:
            check_int("window", self.window, 1, 2**31)
        check_int("sinks", self.sinks, 0, 2**31)
        check_int("full_every", self.full_every, 0)
        if self.window is None and (self.sinks or self.full_every):
            raise ValueError(f"sinks={self.sinks}, full_every={self.full_every}: set a window too")
        if self.per_head and not self.has_heads:
            given = f"n_kv_head={self.n_kv_head}, window={self.window}"
            raise ValueError(f"{given}: a list of Heads has neither; set per_head=False")

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    @property
    def kv_heads(self) -> int:
        """Heads whose keys and values are computed and cached."""
        return self.n_kv_head or self.n_head

    @property
    def has_heads(self) -> bool:
        """Whether the model can be a list of Heads: each has its own keys and sees everything."""
        return self.kv_heads == self.n_head and self.window is None

    @property
    def positions(self) -> int | None:
        """Rows of the position table; None where positions are rotary and have no end."""
        return None if self.rope else self.block_size

    def window_of(self, layer: int) -> int | None:
        """The window of that layer (from 0), or None when it sees everything."""
        full = self.full_every and (layer + 1) % self.full_every == 0
        return None if full else self.window

    @property
    def beyond_lecture(self) -> dict:
        """The fields in which this architecture differs from the lecture's, by name."""
        values = {name: getattr(self, name) for name in NEWER}
        return {name: x for name, x in values.items() if x != getattr(GPTConfig, name)}

    @property
    def n_params(self) -> int:
        """Parameters of a model of this shape."""
        tables = self.vocab_size + (self.positions or 0)  # rows
        return self.weight_bytes(1) + tables * self.n_embd

    @property
    def matrix_weights(self) -> int:
        """Weights of the matrices that every token is multiplied by: the blocks' and the head's."""
        C = self.n_embd
        kv = self.kv_heads * self.head_size
        queries_and_projection = 2 * C * C
        keys_and_values = 2 * C * kv
        feed_forward = 8 * C * C
        block = queries_and_projection + keys_and_values + feed_forward
        return self.n_layer * block + self.vocab_size * C

    def weight_bytes(self, itemsize: int = 4) -> int:
        """Bytes of weights that one decoded token reads: all but the tables."""
        C = self.n_embd
        L = self.n_layer
        biases = 6 * C * L + self.vocab_size if self.bias else 0
        norms = 0 if self.rms_norm else 2 * C * (2 * L + 1)
        return itemsize * (self.matrix_weights + biases + norms)

    def cache_bytes(self, length: int, batch: int = 1, itemsize: int = 4) -> int:
        """Bytes that caches of `length` tokens of `batch` texts take, when nothing is forgotten.

        K and V are 2 · layers · heads · head size · tokens · batch · itemsize, where heads counts
        those with their own keys; `itemsize` is 4 for float32.
        """
        tokens = length * batch
        return 2 * self.n_layer * self.kv_heads * self.head_size * tokens * itemsize


# `article` has the size of the article that this series grew out of. A laptop trains `small`, the
# published run `medium`. `lecture` is Karpathy's large one.
SIZES = {
    "article": GPTConfig(block_size=32),
    "small": GPTConfig(n_layer=3, n_head=3, n_embd=96),
    "medium": GPTConfig(n_embd=128),
    "lecture": GPTConfig(n_layer=6, n_head=6, n_embd=384, dropout=0.2),
}


# ------------------------------------------------------------------ how to train


@dataclass(frozen=True)
class TrainConfig:
    """One training run. The schedule counts steps, never seconds, so that it reproduces.

    Raises ValueError for a number that no run can follow.
    """

    steps: int = option(2000, "updates of the weights")
    batch_size: int = option(4, "windows of block_size characters in one step")
    lr: float = option(8e-3, "AdamW: embeddings, head, biases, LayerNorms; without Muon, all")
    muon_lr: float | None = option(0.02, "Muon: the matrices inside the blocks; None: AdamW")
    warmup: int = option(20, "steps from 0 up to the full learning rate")
    decay: bool = option(True, "fall in a straight line until the last step; without it, stay")
    weight_decay: float = option(0.0, "share of the matrices (AdamW alone: of all), times lr")
    beta2: float = option(0.99, "AdamW averages squared gradients over about 1 / (1 - beta2) steps")
    final: float = option(0.0, "share of the learning rate that the straight line falls to")
    clip: float | None = option(None, "longest gradient; None: no limit")
    accumulate: int = option(1, "parts of a batch, one after another: less memory, the same step")
    compile: bool = option(False, "torch.compile: pays back on a GPU, or after minutes on a CPU")
    batched: bool = option(True, "a per-Head model's heads in one matmul: the same, sooner")
    fused: bool = option(True, "AdamW in one kernel")
    zero_init: bool = option(True, "blocks begin as the identity, and the head at loss ln(vocab)")
    look_back: bool = option(False, "head h of the first block begins by looking h + 1 back")
    stages: tuple[tuple[float, int], ...] = option(
        (), "short windows first: 0.5:64,0.85:128 until these shares of the steps, then block_size"
    )
    epochs: bool = option(False, "every window of the text once before any comes again")
    bf16: bool = option(False, "linear layers in bfloat16 on a CPU: sooner where it has that")
    eval_every: int = option(200, "steps between two evaluations, each of which saves the run")
    eval_batches: int = option(4, "fixed batches of 16 windows of each split in an evaluation")
    seed: int = option(1337, "for weights and batches; sampling has a seed of its own")

    def __post_init__(self):
        for name in ("steps", "batch_size", "accumulate", "eval_every", "eval_batches"):
            check_int(name, getattr(self, name), 1, 2**31 - 1)
        switches = ("decay", "compile", "batched", "fused", "zero_init", "look_back")
        for name in (*switches, "epochs", "bf16"):
            check_switch(name, getattr(self, name))
        check_positive("lr", self.lr)
        for name in ("muon_lr", "clip"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name in ("warmup", "weight_decay"):
            check_number(name, getattr(self, name), 0)
        check_number("final", self.final, 0, 1)
        check_number("beta2", self.beta2, 0, 1 - 2**-53, span="[0, 1)")
        check_int("seed", self.seed, 0, 2**63 - 1)
        self._check_stages()
        n = self.batch_size
        if n % self.accumulate:
            raise ValueError(f"batch_size={n} must be a multiple of accumulate={self.accumulate}")

    def _check_stages(self) -> None:
        """Raise ValueError unless the stages are pairs of a growing share and a block."""
        kinds = (tuple, list)
        given = self.stages if isinstance(self.stages, kinds) else [self.stages]
        if not all(isinstance(stage, kinds) and len(stage) == 2 for stage in given):
            need = "pass pairs (share of the steps, block), as in ((0.5, 64), (0.85, 128))"
            raise ValueError(f"stages={self.stages!r}: {need}")
        stages = tuple(map(tuple, given))
        object.__setattr__(self, "stages", stages)  # JSON has lists
        last = 0.0
        for share, block in stages:
            check_number("a share in stages", share, nextafter(last, 1), 1, span=f"({last:g}, 1]")
            check_int("a block in stages", block, 1, 2**31 - 1)
            last = share

    def stage(self, step: int) -> int:
        """The number of the stage of `step` (from 0): len(stages) once windows are whole."""
        return sum(step >= share * self.steps for share, _ in self.stages)

    def stage_begin(self, step: int) -> int:
        """The first step of the stage to which `step` belongs."""
        stage = self.stage(step)
        return ceil(self.stages[stage - 1][0] * self.steps) if stage else 0

    def window(self, step: int, block_size: int) -> tuple[int, int]:
        """Block and batch of `step`, for a model of this block_size: characters and windows.

        A step reads about as many characters in every stage: batch_size windows of block_size.
        """
        stage = self.stage(step)
        if stage == len(self.stages):
            return block_size, self.batch_size
        block = self.stages[stage][1]
        return block, max(1, self.batch_size * block_size // block)

    def scale(self, step: int) -> float:
        """The factor of the learning rates at `step` (from 0): warm-up, then a straight line."""
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return rise * (1.0 - (1.0 - self.final) * (step / self.steps)) if self.decay else rise


@dataclass(frozen=True)
class Recipe:
    """How to train, and what to change in the architecture for it. Recipes are data."""

    train: TrainConfig
    about: str
    model: dict = field(default_factory=dict)  # fields of GPTConfig
    chars: int | None = 1024  # characters in one step at any block_size; None: batch_size decides
    parts: tuple[tuple[float, int], ...] = ()  # stages: until which share, which part of the block
    size: str = "small"  # the shape that it is made for


MODERN = {"rms_norm": True, "rope": True, "qk_norm": True, "relu2": True, "bias": False}

LATER = dict.fromkeys(["decay", "zero_init", "batched", "fused"], False)  # what came after it
ADAMW = {"lr": 1e-3, "muon_lr": None, "warmup": 0, "beta2": 0.999, "weight_decay": 0.01}
LECTURE = TrainConfig(steps=5000, batch_size=16, eval_every=500, **ADAMW, **LATER)
SOONER = {"look_back": True, "epochs": True}

RECIPES = {
    "lecture": Recipe(LECTURE, "Karpathy's in gpt-dev: AdamW, a constant rate", chars=None),
    "fast": Recipe(
        TrainConfig(steps=1700, eval_every=170, **SOONER),
        "the lecture's architecture, sooner to the same loss",
        chars=768,
        parts=((0.5, 4), (0.85, 2)),
    ),
    "sprint": Recipe(
        TrainConfig(steps=800, eval_every=80, **SOONER),
        "modern: rotary positions, RMSNorm, ReLU²",
        MODERN,
        parts=((0.5, 4), (0.85, 2)),
    ),
    "keeper": Recipe(
        TrainConfig(steps=3400, warmup=30, weight_decay=0.1, eval_every=200, **SOONER),
        "the same for longer: the model that ships",
        MODERN,
        chars=1280,
        parts=((0.35, 4), (0.75, 2)),
        size="medium",
    ),
}


def recipe_for(name: str, shape: GPTConfig) -> tuple[TrainConfig, GPTConfig]:
    """How that recipe trains this shape, and the shape as it changes it. Raises ValueError."""
    check_type("name", name, str)
    check_type("shape", shape, GPTConfig)
    if name not in RECIPES:
        raise ValueError(f"recipe={name!r} is unknown: choose {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    train = recipe.train
    model = replace(shape, **recipe.model)
    if recipe.chars is not None:
        train = replace(train, batch_size=max(1, recipe.chars // shape.block_size))
    stages = tuple((share, max(1, shape.block_size // part)) for share, part in recipe.parts)
    return replace(train, stages=stages), model
