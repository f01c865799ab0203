"""Shapes, recipes and profiles as plain numbers. Knows no tensor, no file, no device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

# The repository's address, owner/name. The Colab badges and the set-up cell are written from
# it by `make badges REPO=owner/name`. As shipped it is no address at all (GitHub allows no
# underscore in an owner's name), so nobody can answer in our place.
REPO = "OWNER_NAME/nanogpt-notebooks"
REF = "main"


def _count(config, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r}: a whole number of at least 1 is needed")


def _number(config, name: str, low: float, high: float, what: str, kinds=(int, float)) -> None:
    value = getattr(config, name)
    if not isinstance(value, kinds) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name}={value!r}: {what}")


def _switch(config, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r}: True or False is needed")


LARGEST = 1e30  # what float32 can still multiply with
NGRAM_ROWS = 16_384  # of a look-up table, at most: pairs and triples of characters share them


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model. Raises ValueError when the numbers do not fit together."""

    vocab_size: int = 65  # distinct characters
    block_size: int = 256  # longest context: one row of the position table for each place
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 64  # width; each head gets n_embd // n_head of it
    dropout: float = 0.0
    per_head: bool = True  # True: the lecture's list of Heads. False: all heads in one matmul
    # What newer models do. As they stand here, all is as in the lecture.
    rms_norm: bool = False  # RMSNorm without weights, on the embeddings too, in place of LayerNorm
    rope: bool = False  # rotary positions in place of the position table
    rope_base: float = 10_000.0  # of the angles: the larger, the slower the slowest pair turns
    qk_norm: bool = False  # queries and keys of one length
    relu2: bool = False  # ReLU squared in the feed-forward part
    bias: bool = True  # in the linear layers that have one in the lecture
    ngrams: int = 1  # 2, 3: look-up tables for the last two, and the last three, characters
    n_kv_head: int | None = None  # heads of keys and values, shared by groups of n_head; None: n_head
    window: int | None = None  # how many of the last positions a query sees, its own included; None: all
    sinks: int = 0  # beside the window, so many of the first
    full_every: int = 0  # every so many layers, one without the window; 0: none

    def __post_init__(self):
        _count(self, "vocab_size", "block_size", "n_layer", "n_head", "n_embd", "ngrams")
        _switch(self, "per_head", "rms_norm", "rope", "qk_norm", "relu2", "bias")
        _number(self, "dropout", 0.0, 1.0 - 2**-53, "a share from 0 up to, not including, 1")
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd={self.n_embd} is no multiple of n_head={self.n_head}: every head gets an "
                f"equal share, so try n_embd={self.n_embd // self.n_head * self.n_head or self.n_head}"
            )

        _number(self, "rope_base", 1.0, LARGEST, "a number from 1 on is needed")
        if self.rope and self.head_size % 2:
            raise ValueError(f"rope=True turns pairs of numbers, and a head has {self.head_size}: an odd one")
        self._check_sharing()
        if self.ngrams > 3:
            raise ValueError(f"ngrams={self.ngrams}: there are tables for 2 and for 3 characters (1: none)")

    def _check_sharing(self) -> None:
        for name in ("n_kv_head", "window"):
            if getattr(self, name) is not None:
                _count(self, name)
        if self.window is not None:
            _number(self, "window", 1, 2**31, "no text has so many positions")
        _number(self, "sinks", 0, 2**31, "a whole number from 0 on is needed", kinds=int)
        _number(self, "full_every", 0, LARGEST, "a whole number of layers from 0 on is needed", kinds=int)
        if self.n_head % self.kv_heads:
            raise ValueError(
                f"n_head={self.n_head} is no multiple of n_kv_head={self.n_kv_head}: each head of keys "
                f"serves as many heads of queries"
            )
        if self.window is None and (self.sinks or self.full_every):
            raise ValueError(
                f"sinks={self.sinks} and full_every={self.full_every} change a window, and there is none: "
                f"set window"
            )
        if self.per_head and not self.has_heads:
            raise ValueError(
                f"n_kv_head={self.n_kv_head}, window={self.window}: the lecture's list of Heads has neither; "
                f"set per_head=False"
            )

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    @property
    def kv_heads(self) -> int:
        """Heads whose keys and values are computed, and cached."""
        return self.n_kv_head or self.n_head

    @property
    def has_heads(self) -> bool:
        """Whether the model has a form as a list of Heads, each with keys of its own that sees everything."""
        return self.kv_heads == self.n_head and self.window is None

    @property
    def positions(self) -> int | None:
        """How many places there are: rows of the position table; None, without end, where they are rotary."""
        return None if self.rope else self.block_size

    def window_of(self, layer: int) -> int | None:
        """The window of that layer (from 0), or None when it sees everything."""
        full = self.full_every and (layer + 1) % self.full_every == 0
        return None if full else self.window

    @property
    def beyond_lecture(self) -> dict:
        """The fields in which this architecture is not the lecture's, by name."""
        names = ("rms_norm", "rope", "qk_norm", "relu2", "bias", "ngrams", "n_kv_head", "window", "sinks")
        names += ("full_every",)
        plain = GPTConfig.__dataclass_fields__
        return {name: getattr(self, name) for name in names if getattr(self, name) != plain[name].default}


# The lecture's sizes. `article` is the one of the article that this series grew out of;
# `small` is the same with room for a longer text; `lecture` is Karpathy's large one.
SIZES = {
    "article": GPTConfig(block_size=32),
    "small": GPTConfig(),
    "lecture": GPTConfig(n_layer=6, n_head=6, n_embd=384, dropout=0.2),
}


@dataclass(frozen=True)
class TrainConfig:
    """One training run. The schedule counts steps, never seconds, so that it reproduces."""

    steps: int = 2000  # updates of the weights
    batch_size: int = 4  # windows of block_size characters in one step
    lr: float = 8e-3  # AdamW: embeddings, head, biases, LayerNorms (everything, when muon_lr is None)
    muon_lr: float | None = 0.02  # Muon: the matrices inside the blocks; None: AdamW for all
    warmup: int = 20  # steps from 0 up to the full learning rate
    decay: bool = True  # fall in a straight line, to 0 after the last step; False: stay constant
    weight_decay: float = 0.0  # share of the weights, times the rate, that a step takes away
    beta2: float = 0.99  # of AdamW: over about how many steps squared gradients are averaged
    final: float = 0.0  # share of the learning rate that the line falls to
    clip: float | None = None  # longest gradient; None: as it comes
    accumulate: int = 1  # parts that a batch is computed in, one after another: less memory, the same step
    compile: bool = False  # torch.compile: pays back on a GPU, or after minutes on a CPU
    batched: bool = True  # train a per-Head model with all heads in one product: the same function, sooner
    fused: bool = True  # AdamW in one kernel
    zero_init: bool = True  # start every block as the identity, and the head at loss ln(vocab)
    eval_every: int = 200  # steps between two evaluations, each of which saves the run
    eval_batches: int = 4  # fixed batches of 16 windows of each split, the same at each evaluation
    seed: int = 1337  # weights and batches; sampling has a seed of its own

    def __post_init__(self):
        _count(self, "steps", "batch_size", "accumulate", "eval_every", "eval_batches")
        _switch(self, "decay", "batched", "fused", "zero_init", "compile")
        _number(self, "final", 0, 1, "a share from 0 to 1 is needed")
        _number(self, "beta2", 0, 1 - 2**-53, "a number from 0 up to, not including, 1 is needed")
        if self.clip is not None:
            _number(self, "clip", 5e-324, LARGEST, "a number above 0, or None, is needed")
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size={self.batch_size}: no multiple of accumulate={self.accumulate}")
        _number(self, "lr", 5e-324, LARGEST, "a number above 0 is needed")
        if self.muon_lr is not None:
            _number(self, "muon_lr", 5e-324, LARGEST, "a number above 0, or None, is needed")
        _number(self, "warmup", 0, LARGEST, "a number of steps from 0 on is needed")
        _number(self, "weight_decay", 0, LARGEST, "a number from 0 on is needed")
        _number(self, "seed", 0, 2**63 - 1, "a whole number from 0 to 2**63 - 1 is needed", kinds=int)

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
    chars: int | None = 1024  # characters in one step, whatever the block; None: batch_size as it stands


MODERN = {"rms_norm": True, "rope": True, "qk_norm": True, "relu2": True, "bias": False}
RECIPES = {
    "lecture": Recipe(
        TrainConfig(steps=5000, batch_size=16, lr=1e-3, muon_lr=None, warmup=0, decay=False, beta2=0.999,
                    weight_decay=0.01, zero_init=False, batched=False, fused=False, eval_every=500),
        "Karpathy's, as in his notebook gpt-dev: head by head, AdamW, a constant rate", chars=None),
    "fast": Recipe(TrainConfig(), "the lecture's architecture, sooner to the same loss"),
    "sprint": Recipe(TrainConfig(), "a transformer of today: rotary positions, RMSNorm, ReLU²", MODERN),
    "sprint+": Recipe(TrainConfig(lr=1.5e-2), "the same, with look-up tables for two and three characters",
                      {**MODERN, "ngrams": 3}),
}  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """How much work one run of the series does: the same cells, other numbers."""

    name: str
    train_size: str  # what notebook 01 trains: a key of SIZES
    train: TrainConfig
    seeds: int  # seeds tried where equality is counted
    lengths: tuple[int, ...]  # new tokens, where speed is drawn against length
    sizes: tuple[str, ...]  # models, where speed is drawn against size
    batches: tuple[int, ...]  # batch sizes, where speed is drawn against batch
    repeats: int  # interleaved repeats of every timing, after one warm-up
    size: str = field(default="small", kw_only=True)  # the model of all other notebooks
    # CPU threads; None: as many as torch takes. At these sizes a second thread gains little, loses
    # much where the machine is shared, and makes the last bits depend on the number of cores.
    threads: int | None = field(default=None, kw_only=True)


PROFILES = {
    # Every cell, as little work as shows it: for tests.
    "smoke": Profile("smoke", "small", TrainConfig(steps=40, eval_every=20, eval_batches=1),
                     seeds=3, lengths=(1, 8, 32), sizes=("article", "small"), batches=(1, 4), repeats=2,
                     threads=1),
    # A laptop: the whole series in a few minutes on two cores.
    "cpu": Profile("cpu", "small", TrainConfig(steps=3000, eval_every=250, eval_batches=4),
                   seeds=20, lengths=(1, 2, 8, 32, 64, 128, 255), sizes=("article", "small", "lecture"),
                   batches=(1, 4, 16), repeats=5, threads=1),
    # A CUDA GPU: 01 trains Karpathy's large model.
    "gpu": Profile("gpu", "lecture",
                   TrainConfig(steps=1000, batch_size=64, eval_every=100, eval_batches=8, zero_init=True),
                   seeds=20, lengths=(1, 2, 8, 32, 64, 128, 255), sizes=("article", "small", "lecture"),
                   batches=(1, 8, 64), repeats=5),
}  # fmt: skip


def recipe_for(name: str, shape: GPTConfig) -> tuple[TrainConfig, GPTConfig]:
    """How that recipe trains a model of this shape, and the shape as it wants it. Raises ValueError."""
    if name not in RECIPES:
        raise ValueError(f"recipe={name!r} is unknown: choose {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    batch = recipe.train.batch_size if recipe.chars is None else max(1, recipe.chars // shape.block_size)
    return replace(recipe.train, batch_size=batch), replace(shape, **recipe.model)


def get_profile(name: str, *, cuda: bool = False) -> Profile:
    """The profile of that name; "auto" is "gpu" where CUDA is, else "cpu". Raises ValueError."""
    key = ("gpu" if cuda else "cpu") if name == "auto" else name
    if key not in PROFILES:
        raise ValueError(f"profile={name!r} is unknown: choose auto, {', '.join(PROFILES)}")
    return PROFILES[key]


def override(config, **changes):
    """The config with some fields changed; None leaves a field as it is. Raises ValueError."""
    changes = {name: value for name, value in changes.items() if value is not None}
    unknown = sorted(set(changes) - set(config.__dataclass_fields__))
    if unknown:
        raise ValueError(f"{type(config).__name__} has no field {', '.join(unknown)}; "
                         f"it has {', '.join(config.__dataclass_fields__)}")  # fmt: skip
    return replace(config, **changes)
