"""What the referee can ask of a model: ours, another library's, or the reader's own object."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..device import available_memory


class NotOffered(Exception):
    """A model has no such way to be run; the message says why."""


Pieces = Sequence[Tensor | int]


class Session:
    """The cache of one batch of texts. Only `read` must be there."""

    def read(self, ids: Tensor) -> Tensor:
        """The logits of the next tokens of each text.  (B, t) -> (B, t, V)"""
        raise NotImplementedError

    def rewind(self, n: int) -> None:
        """Forget the last n tokens of each text. Raises NotOffered."""
        raise NotOffered("it takes no tokens back")

    def reorder(self, rows: list[int]) -> None:
        """Each text goes on as the one with that number, as beams do. Raises NotOffered."""
        raise NotOffered("its texts cannot change places")

    def keep(self, rows: list[int]) -> None:
        """Only these texts go on; the others leave the batch. Raises NotOffered."""
        raise NotOffered("no text leaves its batch")

    def fork(self) -> Session:
        """A second session that goes on from here by itself. Raises NotOffered."""
        raise NotOffered("it is not forked")


class Subject:
    """A model as the referee sees it. Only `plain` and `cached` must be there.

    A `piece` is tokens to read, (B, t), or an integer n: the last n tokens are forgotten again.
    Logits that are returned belong to the tokens that were kept. `caches` names the caches that
    `cached` can use, the usual one first. `longest` is the most tokens of a text, `window` how many
    of them a query sees; None: no limit. `edges` names other lengths at which something changes, as
    blocks, pages and buffers do. `expects` declares a lossy cache: which part of the spread of a
    token's logits it may move. `right_padding` says whether `padded` takes that too; None: it is
    found out. `chunks`, `last_only`, `max_batch` and `shortest` say what a model refuses; None: it
    is found out, as offers.py does.
    """

    name = "model"
    vocab_size = 32
    caches: tuple[str, ...] = ("its cache",)
    longest: int | None = None
    window: int | None = None
    rewinds = False  # whether pieces may be integers
    edges: tuple[int, ...] = ()
    builds = ""  # lines that make MODEL once more, for a script that shows a bug
    reads = ""  # lines that read `pieces` into `got`, and the text into `wanted`, for that script
    expects: float | None = None
    right_padding: bool | None = None
    deepest: int | None = None  # tokens that one rewind takes back at most
    specials: tuple[int, ...] = (0, 1, 2)  # ids that a text may hold, and rarely does
    chunks: bool | None = None  # whether several tokens can be read at once, after others
    last_only: bool | None = None  # whether a pass returns the logits of its last token alone
    max_batch: int | None = None  # texts in one pass
    shortest: int | None = None  # tokens of a first pass
    sessions: int | None = None  # that can be read by turns; None: any number

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

        Raises NotOffered. It is asked for where positions may be what is wrong.
        """
        raise NotOffered("its plain pass takes no positions")

    def session(self, cache: str | None = None, rows: int = 1) -> Session:
        """A cache of its own for a batch of texts, beside which others may be read.

        Raises NotOffered.
        """
        raise NotOffered("it reads one text at a time")

    def to(self, dtype: torch.dtype) -> Subject:
        """The same model with weights of this dtype, as a copy. Raises NotOffered."""
        raise NotOffered("it has one dtype")


def through(
    read: Callable[[Tensor], Tensor], rewind: Callable[[int], object], pieces: Pieces
) -> Tensor:
    """Read pieces in order, or forget; the logits of the tokens that stayed.  -> (B, T, V)"""
    logits: list[Tensor] = []
    for piece in pieces:
        if isinstance(piece, int):
            rewind(piece)
            logits = [torch.cat(logits, dim=1)[:, :-piece]]
        else:
            logits.append(read(piece))
    return torch.cat(logits, dim=1)


def check_memory(model: nn.Module, dtype: torch.dtype) -> None:
    """Raise NotOffered where a copy of the model in this dtype would not fit."""
    need = sum(p.numel() for p in model.parameters()) * dtype.itemsize * 1.2
    free = available_memory()
    if free is not None and need > free:
        raise NotOffered(
            f"{dtype} needs {need / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are available"
        )


def copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model in memory, in this dtype. Raises NotOffered where it would not fit."""
    check_memory(model, dtype)
    return copy.deepcopy(model).to("cpu", dtype)
