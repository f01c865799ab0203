"""The shape of a model, and what follows from it, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from .checks import LARGEST, check_int, check_number, check_share, check_switch

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
    n_kv_head: int | None = (
        None  # heads of keys and values, shared by groups of n_head; None: n_head
    )
    window: int | None = (
        None  # how many of the last positions a query sees, its own included; None: all
    )
    sinks: int = 0  # beside the window, so many of the first
    full_every: int = 0  # every so many layers, one without the window; 0: none

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            check_int(name, getattr(self, name), 1)
        for name in ("per_head", "rms_norm", "rope", "qk_norm", "relu2", "bias"):
            check_switch(name, getattr(self, name))
        check_share("dropout", self.dropout)
        check_int("ngrams", self.ngrams, 1, 3)
        check_number("rope_base", self.rope_base, 1.0, LARGEST)
        self._check_heads()
        self._check_window()

    def _check_heads(self) -> None:
        if self.n_embd % self.n_head:
            near = self.n_embd // self.n_head * self.n_head or self.n_head
            raise ValueError(
                f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}: every head gets an equal "
                f"share, so try n_embd={near}"
            )
        if self.rope and self.head_size % 2:
            raise ValueError(
                f"rope=True rotates pairs of numbers: head size {self.head_size} must be even"
            )
        if self.n_kv_head is not None:
            check_int("n_kv_head", self.n_kv_head, 1)
        if self.n_head % self.kv_heads:
            raise ValueError(
                f"n_head={self.n_head} must be a multiple of n_kv_head={self.n_kv_head}: each head of keys "
                f"serves as many heads of queries"
            )

    def _check_window(self) -> None:
        if self.window is not None:
            check_int("window", self.window, 1, 2**31)
        check_int("sinks", self.sinks, 0, 2**31)
        check_int("full_every", self.full_every, 0)
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
        names = (
            "rms_norm",
            "rope",
            "qk_norm",
            "relu2",
            "bias",
            "ngrams",
            "n_kv_head",
            "window",
            "sinks",
        )
        names += ("full_every",)
        plain = GPTConfig.__dataclass_fields__
        return {
            name: getattr(self, name)
            for name in names
            if getattr(self, name) != plain[name].default
        }


# The lecture's sizes. `article` is the one of the article that this series grew out of;
# `small` is the same with room for a longer text; `lecture` is Karpathy's large one.
SIZES = {
    "article": GPTConfig(block_size=32),
    "small": GPTConfig(),
    "lecture": GPTConfig(n_layer=6, n_head=6, n_embd=384, dropout=0.2),
}
