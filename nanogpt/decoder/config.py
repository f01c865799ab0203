"""The hyperparameters of a general decoder as a frozen dataclass, without tensors or files."""

from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import lru_cache
from typing import Any, get_args

from ..config import (
    GPTConfig,
    check_int,
    check_number,
    check_positive,
    check_switch,
    check_type,
    option,
)
from .layout import PartKind, counted

# The base of rotations in the paper (Su et al. 2021), and of files that name none.
ROPE_BASE = 10_000.0


def to_float(config: Any, name: str) -> None:
    """Convert a number of a frozen config, which may be None, to a float.

    So 10000 and 10000.0, which JSON files have both, are one config.
    """
    value = getattr(config, name)
    if value is not None:
        object.__setattr__(config, name, float(value))


class Choice(str, Enum):
    """An enum whose members print as their JSON value, for example "rotary"."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


class Positions(Choice):
    """How a model encodes the position of a token."""

    LEARNED = "learned"  # a table with a row for each position, added to the embedding
    ROTARY = "rotary"  # queries and keys are rotated (Su et al. 2021, arXiv 2104.09864)


class Norm(Choice):
    """How activations are normalised."""

    LAYER = "layer"  # LayerNorm: mean 0, variance 1
    RMS = "rms"  # RMSNorm: mean square 1 (Zhang and Sennrich 2019, arXiv 1910.07467)


class Activation(Choice):
    """The function between the two feed-forward layers."""

    RELU = "relu"
    RELU2 = "relu2"  # ReLU, squared (So et al. 2021, arXiv 2109.08668)
    GELU = "gelu"  # Hendrycks and Gimpel 2016, arXiv 1606.08415, with the error function
    GELU_TANH = "gelu_tanh"  # the same paper's approximation, which GPT-2 uses
    SILU = "silu"  # x · sigmoid(x); with gates it is SwiGLU (Shazeer 2020, arXiv 2002.05202)


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's RoPE scaling: slows down the slow pairs, for contexts longer than in training.

    Pairs that turn more than `high_freq_factor` times in `original_context` positions keep their
    speed; the speed of pairs that turn less than `low_freq_factor` times is divided by `factor`; in
    between, the speed is interpolated (`rope_type: llama3` in Hugging Face configs).
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            check_positive(name, getattr(self, name))
            to_float(self, name)
        check_int("original_context", self.original_context, 1)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor={self.high_freq_factor} must be above "
                f"low_freq_factor={self.low_freq_factor}"
            )


@dataclass(frozen=True)
class DecoderConfig:
    """The hyperparameters of a decoder. The defaults are the lecture's architecture.

    None means the usual value; the properties `kv_heads`, `head_size` and `hidden` return the
    number itself. Raises ValueError if the fields are inconsistent.
    """

    vocab_size: int = option(65, "distinct tokens")
    block_size: int = option(256, "longest context")
    n_layer: int = option(4, "blocks")
    n_head: int = option(4, "query heads in a block")
    n_embd: int = option(64, "width")
    n_kv_head: int | None = option(None, "key/value heads; None: n_head")
    head_dim: int | None = option(None, "size of a query, key or value; None: n_embd // n_head")
    ffn_dim: int | None = option(None, "width of the feed-forward layer; None: 4 · n_embd")
    positions: Positions = option(Positions.LEARNED, "learned or rotary")
    rope_base: float = option(ROPE_BASE, "the larger it is, the slower the slowest pair rotates")
    rope_scaling: RopeScaling | None = option(None, "Llama 3's, for long contexts")
    norm: Norm = option(Norm.LAYER, "layer or rms")
    norm_weights: bool = option(True, "norms have a learned scale for each element")
    norm_bias: bool = option(True, "LayerNorm also has a learned bias")
    norm_eps: float | None = option(
        1e-5, "added to the variance; None (RMSNorm only): the dtype's epsilon"
    )
    embed_norm: bool = option(False, "normalise embeddings before the first block")
    qk_norm: bool = option(False, "RMSNorm of every query and key")
    activation: Activation = option(Activation.RELU, "relu, relu2, gelu, gelu_tanh or silu")
    gated: bool = option(False, "gated feed-forward layers, activation(gate) · up")
    qkv_bias: bool = option(False, "biases of queries, keys and values")
    proj_bias: bool = option(True, "bias of the projection after attention")
    ffn_bias: bool = option(True, "biases of the feed-forward layers")
    head_bias: bool = option(True, "bias of the head that computes the logits")
    tied: bool = option(False, "the head shares the weights of the token embeddings")
    window: int | None = option(None, "positions a query sees, including its own; None: all")
    sinks: int = option(0, "first positions of the text that a query also sees")
    full_every: int = option(0, "every N-th layer has no window; 0: no such layer")
    logit_softcap: float | None = option(None, "c · tanh(logits / c); None: no softcap")
    dropout: float = option(0.0, "share of the activations that training drops")

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            check_int(name, getattr(self, name), 1)
        # What follows from a field's type alone: switches, enums, and below numbers as floats.
        for field in fields(self):
            if field.type is bool:
                check_switch(field.name, getattr(self, field.name))
            elif isinstance(field.type, type) and issubclass(field.type, Choice):
                self._to_enum(field.name, field.type)
        self._check_sizes()
        self._check_positions()
        self._check_window()
        if self.norm_eps is not None:
            check_number("norm_eps", self.norm_eps, 0, 1)
        elif self.norm is Norm.LAYER:
            raise ValueError("norm_eps=None is for norm='rms': LayerNorm needs a number")
        if self.logit_softcap is not None:
            check_positive("logit_softcap", self.logit_softcap)
        check_number("dropout", self.dropout, 0, 1 - 2**-53, span="[0, 1)")
        for field in fields(self):
            if float in (field.type, *get_args(field.type)):
                to_float(self, field.name)

    def _to_enum(self, name: str, kind: type[Choice]) -> None:
        """Convert a field from its JSON value to the enum."""
        given = getattr(self, name)
        try:
            object.__setattr__(self, name, kind(given))
        except ValueError:
            known = ", ".join(each.value for each in kind)
            raise ValueError(f"{name}={given!r}: must be one of {known}") from None

    def _check_sizes(self) -> None:
        if self.head_dim is None and self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}, "
                f"or give a head_dim"
            )
        usual = {"n_kv_head": self.n_head, "ffn_dim": 4 * self.n_embd}
        if self.n_embd % self.n_head == 0:
            usual["head_dim"] = self.n_embd // self.n_head
        for name in ("n_kv_head", "head_dim", "ffn_dim"):
            given = getattr(self, name)
            if given is None:
                continue
            check_int(name, given, 1)
            if given == usual.get(name):  # so that equal shapes are equal configs
                object.__setattr__(self, name, None)
        if self.n_head % self.kv_heads:
            raise ValueError(
                f"n_head={self.n_head} must be a multiple of n_kv_head={self.n_kv_head}: "
                f"each key/value head serves the same number of query heads"
            )

    def _check_positions(self) -> None:
        check_number("rope_base", self.rope_base, 1.0)
        check_type("rope_scaling", self.rope_scaling, (RopeScaling, type(None)))
        if self.rotary and self.head_size % 2:
            raise ValueError(
                f"rotary positions rotate pairs: head_size={self.head_size} must be even"
            )
        if self.rope_scaling is not None and not self.rotary:
            raise ValueError("rope_scaling is for rotary positions: set positions='rotary'")

    def _check_window(self) -> None:
        if self.window is not None:
            check_int("window", self.window, 1, 2**31)
        check_int("sinks", self.sinks, 0, 2**31)
        check_int("full_every", self.full_every, 0)
        if self.window is None and (self.sinks or self.full_every):
            raise ValueError(f"sinks={self.sinks}, full_every={self.full_every}: also set a window")

    # -------------------------------------------------------------- derived values

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads, which are computed and cached."""
        return self.n_kv_head or self.n_head

    @property
    def head_size(self) -> int:
        """Elements in a query, a key or a value."""
        return self.head_dim or self.n_embd // self.n_head

    @property
    def hidden(self) -> int:
        """Width of the feed-forward layer."""
        return self.ffn_dim or 4 * self.n_embd

    @property
    def rotary(self) -> bool:
        """Whether positions are rotary."""
        return self.positions is Positions.ROTARY

    @property
    def max_positions(self) -> int | None:
        """Rows of the position table; None for rotary positions, which have no limit."""
        return None if self.rotary else self.block_size

    @property
    def norm_shifts(self) -> bool:
        """Whether norms with weights also have a bias."""
        return self.norm is Norm.LAYER and self.norm_bias

    @property
    def group(self) -> int:
        """Number of query heads that share a key/value head."""
        return self.n_head // self.kv_heads

    @property
    def qkv_rows(self) -> int:
        """Rows of the combined matrix of all queries, then all keys, then all values."""
        return (self.n_head + 2 * self.kv_heads) * self.head_size

    def window_of(self, layer: int) -> int | None:
        """The window of a layer (counted from 0), or None if it sees everything."""
        full = self.full_every and (layer + 1) % self.full_every == 0
        return None if full else self.window

    # -------------------------------------------------------------- sizes

    @property
    def matrix_weights(self) -> int:
        """Weights in the matrices that multiply every token: the blocks and the output head."""
        return sum(n * p.n_weight for n, p in counted(self) if p.kind is PartKind.MATRIX)

    @property
    def vector_weights(self) -> int:
        """Parameters in biases and norms."""
        norms = sum(n * p.n_weight for n, p in counted(self) if p.kind is PartKind.NORM)
        return norms + sum(n * p.n_bias for n, p in counted(self))

    @property
    def n_params(self) -> int:
        """Number of parameters of a decoder of this shape. Shared weights count once."""
        own = sum(n * p.n_weight for n, p in counted(self) if p.shares is None)
        return own + sum(n * p.n_bias for n, p in counted(self))

    def weight_bytes(self, itemsize: int = 4) -> int:
        """Bytes of weights read to decode one token: everything except the tables."""
        return itemsize * (self.matrix_weights + self.vector_weights)

    def cache_bytes(self, length: int, batch: int = 1, itemsize: int = 4) -> int:
        """Bytes of KV cache for `batch` texts of `length` tokens, if nothing is evicted.

        2 (K and V) · layers · key/value heads · head size · tokens · batch · itemsize.
        """
        return 2 * self.n_layer * self.kv_heads * self.head_size * length * batch * itemsize


BIASES = tuple(field.name for field in fields(DecoderConfig) if field.name.endswith("_bias"))


# ------------------------------------------------------------------ the lecture's architecture


def decoder_config(config: GPTConfig | DecoderConfig) -> DecoderConfig:
    """The config of the Decoder that computes the same function."""
    return config if isinstance(config, DecoderConfig) else _of_lecture(config)


@lru_cache(maxsize=16)  # every text asks for it, and checking all fields takes 20 microseconds
def _of_lecture(c: GPTConfig) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=c.vocab_size,
        block_size=c.block_size,
        n_layer=c.n_layer,
        n_head=c.n_head,
        n_embd=c.n_embd,
        dropout=c.dropout,
    )


def lecture_config(config: DecoderConfig) -> GPTConfig:
    """The config of the lecture model that computes the same function.

    Raises ValueError, naming the fields that differ, if there is no such lecture model.
    """
    c = config
    fields = beyond_lecture(c)
    if fields:
        named = ", ".join(f"{name}={value}" for name, value in fields.items())
        raise ValueError(
            f"the lecture's model has no {named}: the Decoder cannot be converted to it"
        )
    return GPTConfig(c.vocab_size, c.block_size, c.n_layer, c.n_head, c.n_embd, c.dropout)


def beyond_lecture(config: GPTConfig | DecoderConfig) -> dict[str, Any]:
    """The fields in which this architecture differs from the lecture's, by name."""
    if isinstance(config, GPTConfig):
        return {}
    c = config
    plain = DecoderConfig(c.vocab_size, c.block_size, c.n_layer, 1, c.n_embd)
    plain = replace(plain, n_head=c.n_head if c.n_embd % c.n_head == 0 else 1, dropout=c.dropout)
    names = DecoderConfig.__dataclass_fields__
    pairs = {name: (getattr(c, name), getattr(plain, name)) for name in names}
    return {name: mine for name, (mine, usual) in pairs.items() if mine != usual}
