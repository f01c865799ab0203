"""What the referee can ask of a model: ours, another library's, or your own object."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .memory import available_memory


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def check_int(name: str, value: object, low: int, high: int = 2**63 - 1) -> None:
    """Raise ValueError unless the value is an integer in [low, high]."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole and low <= int(str(value)) <= high):
        raise ValueError(f"{name}={value!r}: must be an integer in [{low}, {high}]")


def check_forward(model: nn.Module) -> None:
    """Raise ValueError for a forward set on an instance: a copy would run the original's."""
    for module in model.modules():
        if "forward" in vars(module):
            raise ValueError(
                f"a {type(module).__name__} has another forward, set on the instance: define it "
                f"in a class, or remove it"
            )


class NotOffered(Exception):
    """A model does not support an operation; the message says why."""


Pieces = Sequence[Tensor | int]


class Session:
    """The cache of one batch of texts. Only `read` is required."""

    def read(self, ids: Tensor) -> Tensor:
        """The logits of the next tokens of each text.  (B, t) -> (B, t, V)"""
        raise NotImplementedError

    def rewind(self, n: int) -> None:
        """Forget the last n tokens of each text. Raises NotOffered."""
        raise NotOffered("it cannot rewind")

    def reorder(self, rows: list[int]) -> None:
        """Continue text i from text rows[i], as beam search does. Raises NotOffered."""
        raise NotOffered("its texts cannot change places")

    def keep(self, rows: list[int]) -> None:
        """Keep only these texts; the others leave the batch. Raises NotOffered."""
        raise NotOffered("it cannot remove a text from a batch")

    def fork(self) -> Session:
        """A second, independent session that continues from here. Raises NotOffered."""
        raise NotOffered("it cannot be forked")


class Subject:
    """A model as the referee sees it. Only `plain` and `cached` are required.

    A `piece` is tokens to read, (B, t), or an integer n: forget the last n tokens. The returned
    logits are those of the tokens that were kept. `caches` names the caches that `cached` can use,
    the default one first. `longest` is the most tokens of a text, `window` the number of them that
    a query attends to; None: no limit. `edges` are other lengths at which something changes, such
    as the sizes of blocks, pages and buffers. `expects` declares a lossy cache: how far it may move
    logits, as a fraction of the spread of a token's logits. `right_padding` says whether `padded`
    also accepts right padding; None: it is detected. `chunks`, `last_only`, `max_batch` and
    `shortest` say what a model does not support; None: offers.py detects it.
    """

    name = "model"
    vocab_size = 32
    caches: tuple[str, ...] = ("its cache",)
    longest: int | None = None
    window: int | None = None
    rewinds = False  # whether pieces may be integers
    edges: tuple[int, ...] = ()
    builds = ""  # code that rebuilds MODEL, for a script that shows a bug
    wraps = ""  # code that makes SUBJECT of MODEL there, if it is not MODEL itself
    copies = False  # whether `to` returns a copy and leaves this one as it is
    reads = ""  # code that reads `pieces` into `got`, and the text into `wanted`, for that script
    expects: float | None = None
    right_padding: bool | None = None
    deepest: int | None = None  # most tokens that one rewind can take back
    specials: tuple[int, ...] = (0, 1, 2)  # ids that a text may contain, but rarely does
    chunks: bool | None = None  # whether several tokens can be read at once after a prompt
    last_only: bool | None = None  # whether a pass returns only the last token's logits
    max_batch: int | None = None  # texts in one pass
    shortest: int | None = None  # fewest tokens of a prompt
    sessions: int | None = None  # how many can be interleaved; None: any number

    def plain(self, ids: Tensor) -> Tensor:
        """The logits of one pass without a cache.  (B, T) -> (B, T, V)"""
        raise NotImplementedError

    def cached(self, pieces: Pieces, cache: str | None = None) -> Tensor:
        """The logits of pieces read in order through one cache, empty at first.  -> (B, T, V)"""
        raise NotImplementedError

    def padded(self, ids: Tensor, mask: Tensor, lengths: list[int] | None) -> Tensor:
        """Texts of different lengths, padded on the left.  (B, T) twice -> (B, T, V)

        `mask` is 0 at padding. They are read in pieces of these lengths through a cache, or in one
        pass without one (None). Raises NotOffered.
        """
        raise NotOffered("it reads no padded batches")

    def placed(self, ids: Tensor, pos: Tensor) -> Tensor:
        """The logits of one pass without a cache, of tokens at these positions.  (B, T), (T,)

        Raises NotOffered. Used to find out whether positions are wrong.
        """
        raise NotOffered("its plain pass takes no positions")

    def session(self, cache: str | None = None, rows: int = 1) -> Session:
        """A new cache for a batch of texts, independent of other sessions.

        Raises NotOffered.
        """
        raise NotOffered("it reads one text at a time")

    def to(self, dtype: torch.dtype) -> Subject:
        """A copy of the model with weights in this dtype. Raises NotOffered."""
        raise NotOffered("it has one dtype")


def through(
    read: Callable[[Tensor], Tensor], rewind: Callable[[int], object], pieces: Pieces
) -> Tensor:
    """Read or rewind in order; returns the logits of the tokens that were kept.  -> (B, T, V)"""
    logits: list[Tensor] = []
    for piece in pieces:
        if isinstance(piece, int):
            rewind(piece)
            logits = [torch.cat(logits, dim=1)[:, :-piece]]
        else:
            logits.append(read(piece))
    return torch.cat(logits, dim=1)


def check_memory(model: nn.Module, dtype: torch.dtype) -> None:
    """Raise NotOffered if a copy of the model in this dtype would not fit in memory."""
    need = sum(p.numel() for p in model.parameters()) * dtype.itemsize * 1.2
    free = available_memory()
    if free is not None and need > free:
        raise NotOffered(
            f"{dtype} needs {need / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are available"
        )


def copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the model on the CPU, in this dtype. Raises NotOffered if it would not fit."""
    check_memory(model, dtype)
    return copy.deepcopy(model).to("cpu", dtype)
