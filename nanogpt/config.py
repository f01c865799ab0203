"""Model hyperparameters as plain numbers, and argument checks, without tensors or files."""

from dataclasses import dataclass, field

LARGEST = 1e30  # small enough that float32 can still multiply with it
LARGEST_INT = 2**63 - 1  # of torch's and C++'s integers; Python's have no end


class ParameterError(ValueError):
    """An invalid parameter value; `names` are the parameters that the message is about.

    The message writes them as name=value, as in Python. A command writes --name value instead for
    the parameters that are its own options.
    """

    def __init__(self, message: str, *names: str):
        super().__init__(message)
        self.names = names


def check_int(name: str, value, low: int, high: int | None = None) -> None:
    """Raise ValueError unless the value is an integer in [low, high]; high is 64 bits if None."""
    # In Python True is an int, but nobody who passes True means a number.
    whole = isinstance(value, int) and not isinstance(value, bool)
    if high is None and (not whole or value < low):
        raise ParameterError(f"{name}={value!r}: must be an integer of at least {low}", name)
    # Beyond 64 bits torch would raise an OverflowError later, which does not name the parameter.
    high = LARGEST_INT if high is None else high
    if not whole or not low <= value <= high:
        raise ParameterError(f"{name}={value!r}: must be an integer in [{low}, {high}]", name)


def check_number(name: str, value, low: float, high=LARGEST, advice="", span="") -> None:
    """Raise ValueError unless the value is a number in [low, high]; NaN is not.

    `advice` is appended to the message; `span` describes the interval if it is half-open.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        span = span or f"[{low:g}, {high:g}]"
        raise ParameterError(f"{name}={value!r}: must be a number in {span}{advice}", name)
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        raise ParameterError(
            f"{name}={value}: an integer of more than 64 bits; write {float(value):g}", name
        )


def check_positive(name: str, value) -> None:
    """Raise ValueError unless the value is a finite number above 0."""
    check_number(name, value, 1 / LARGEST)


def check_switch(name: str, value) -> None:
    """Raise ValueError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ParameterError(f"{name}={value!r}: must be True or False", name)


def check_type(name: str, value, kind: type | tuple[type, ...]) -> None:
    """Raise TypeError unless the value is an instance of this type, or of one of these types."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(each.__name__ for each in kinds)
        raise TypeError(f"{name} must be a {wanted}, not {value!r:.80}")


def too_large(what: str, n_bytes: int, advice: str) -> MemoryError:
    """The error for numbers that could not be allocated; `advice` names the parameter."""
    return MemoryError(f"{what} take {n_bytes:,} bytes, more than could be allocated: {advice}")


def option(default, help: str):
    """A dataclass field with a default and a help line, also shown by the command line."""
    return field(default=default, metadata={"help": help})


# ------------------------------------------------------------------ the shape of a model


@dataclass(frozen=True)
class GPTConfig:
    """The hyperparameters of the lecture's model. Raises ValueError if they are inconsistent."""

    vocab_size: int = option(65, "distinct characters")
    block_size: int = option(256, "longest context: rows of the position table")
    n_layer: int = option(4, "blocks")
    n_head: int = option(4, "heads in a block")
    n_embd: int = option(64, "width; each head gets n_embd // n_head of it")
    dropout: float = option(0.0, "share of the activations that training drops")

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            check_int(name, getattr(self, name), 1)
        check_number("dropout", self.dropout, 0, 1 - 2**-53, span="[0, 1)")
        # The heads' outputs are concatenated and together must be as wide as the model.
        if self.n_embd % self.n_head:
            # Suggest the largest smaller number of heads that works.
            fewer = next(n for n in range(min(self.n_head, 1000), 0, -1) if self.n_embd % n == 0)
            raise ParameterError(
                f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}: "
                f"every head gets an equal share, for example with n_head={fewer}",
                "n_head",
            )

    @property
    def head_size(self) -> int:
        """Elements in a query, a key or a value."""
        return self.n_embd // self.n_head

    @property
    def max_positions(self) -> int | None:
        """Rows of the position table."""
        return self.block_size

    @property
    def n_params(self) -> int:
        """Number of parameters of a model of this shape."""
        # All weights that a token reads, plus the two tables, where it reads one row each.
        tables = self.vocab_size + self.block_size  # rows
        return self.weight_bytes(1) + tables * self.n_embd

    @property
    def matrix_weights(self) -> int:
        """Weights in the matrices that multiply every token: the blocks and the output head."""
        C = self.n_embd
        attention = 4 * C * C  # queries, keys, values, projection
        feed_forward = 8 * C * C  # from C to 4 C, and back
        return self.n_layer * (attention + feed_forward) + self.vocab_size * C

    def weight_bytes(self, itemsize: int = 4) -> int:
        """Bytes of weights read to decode one token: everything except the tables."""
        C = self.n_embd
        # Biases of a block: C in the projection, 4 C and C in the feed-forward layers. Queries,
        # keys and values have none. LayerNorms have a weight and a bias: two in each block, and a
        # final one.
        biases = 6 * C * self.n_layer + self.vocab_size
        norms = 2 * C * (2 * self.n_layer + 1)
        return itemsize * (self.matrix_weights + biases + norms)

    def cache_bytes(self, length: int, batch: int = 1, itemsize: int = 4) -> int:
        """Bytes of KV cache for `batch` texts of `length` tokens.

        2 (K and V) · layers · heads · head size · tokens · batch · itemsize (4 for float32).
        """
        return 2 * self.n_layer * self.n_embd * length * batch * itemsize


SIZES = {
    "article": GPTConfig(block_size=32),
    "small": GPTConfig(n_layer=3, n_head=3, n_embd=96),
    "medium": GPTConfig(n_embd=128),
    "lecture": GPTConfig(n_layer=6, n_head=6, n_embd=384, dropout=0.2),
}
"""The models of the series. `article` matches the article that this series grew out of. A laptop
trains `small`; the published run trained `medium`. `lecture` is Karpathy's large model."""
