"""The shape of a model as plain numbers, and how numbers are checked. Knows no tensor, no file."""

from dataclasses import dataclass, field, replace

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
