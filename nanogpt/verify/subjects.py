"""What the referee can ask of a model: ours, or the reader's own object."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..cache import DynamicCache, StaticCache, build_caches, require_owners
from ..caches.paged import PagedCache
from ..caches.rolling import RollingCache
from ..config import check_int
from ..device import available_memory
from ..generation import CachedDecoder, ModuleDecoder
from .texts import high_water


class NotOffered(Exception):
    """A model has no such way to be run; the message says why."""


Pieces = Sequence[Tensor | int]


class Session(Protocol):
    """A cache of its own for one batch of texts."""

    def read(self, ids: Tensor) -> Tensor:
        """The logits of the next tokens."""

    def reorder(self, rows: list[int]) -> None:
        """Each text goes on as the one with that number. Raises NotOffered."""


class Subject:
    """A model as the referee sees it. Only `plain` and `cached` must be there.

    A `piece` is tokens to read, (B, t), or an integer n: the last n tokens are forgotten again.
    Logits that are returned belong to the tokens that were kept. `caches` names the caches that
    `cached` can use, the usual one first. `longest` is the most tokens of a text, `window` how many
    of them a query sees; None: no limit. `edges` names other lengths at which something changes, as
    blocks, pages and buffers do. `expects` declares a lossy cache: which part of the largest logit
    it may move. `right_padding` says whether `padded` takes that too; None: it is found out.
    """

    name = "model"
    vocab_size = 32
    caches: tuple[str, ...] = ("its cache",)
    longest: int | None = None
    window: int | None = None
    rewinds = False  # whether pieces may be integers
    edges: tuple[int, ...] = ()
    builds = ""  # lines that make MODEL once more, for a script that shows a bug
    expects: float | None = None
    right_padding: bool | None = None
    deepest: int | None = None  # tokens that one rewind takes back at most
    specials: tuple[int, ...] = (0, 1, 2)  # ids that a text may hold, and rarely does

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

    def session(self, cache: str | None = None) -> Session:
        """A cache of its own for one batch of texts, beside which others may be read.

        It has read(ids) -> logits and, where it can, reorder(rows): each text goes on as the one
        with that number, as beams do. Raises NotOffered.
        """
        raise NotOffered("it reads one text at a time")

    def to(self, dtype: torch.dtype) -> Subject:
        """The same model with weights of this dtype, as a copy. Raises NotOffered."""
        raise NotOffered("it has one dtype")


class Given(Subject):
    """Any object with plain(ids) and cached(pieces); what else it has of Subject's is used too."""

    def __init__(self, given: Any):
        offered = [name for name in dir(Subject) if name[0] != "_" and hasattr(given, name)]
        vars(self).update({name: getattr(given, name) for name in offered})
        self.name = getattr(given, "name", type(given).__name__)
        self.given = given
        check_int("vocab_size", self.vocab_size, 1)
        for name in ("longest", "window"):
            check_int(name, getattr(self, name) or 1, 1)
        if not hasattr(given, "caches"):
            vars(self)["cached"] = lambda pieces, cache=None: given.cached(pieces)


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


class Ours(Subject):
    """A GPT of this package, or a model that is called as it is, with every cache that it can use.

    `caches` are classes. The same cache objects serve one request after the other, after reset().
    Raises ValueError for a model whose blocks hold no cache, and as build_caches does.
    """

    rewinds = True

    def __init__(self, model: Any, caches: Sequence[Any] = (DynamicCache, StaticCache, PagedCache)):
        owners = require_owners(model)
        config = model.config
        self.model = model
        self.name = type(model).__name__
        self.vocab_size = config.vocab_size
        self.window = getattr(config, "window", None)
        self.longest = getattr(config, "max_positions", getattr(config, "block_size", None))
        rolling = [RollingCache] if self.window and RollingCache not in caches else []
        self.kinds = {getattr(kind, "__name__", str(kind)): kind for kind in (*caches, *rolling)}
        self.caches = tuple(self.kinds)
        self._held: dict[tuple[str, int], CachedDecoder] = {}
        for kind in caches:
            build_caches(owners, kind, 1)

    @torch.no_grad()
    def plain(self, ids: Tensor) -> Tensor:
        ids = ids.to(next(self.model.parameters()).device)
        return ModuleDecoder(self.model).forward(ids, 0)

    @torch.no_grad()
    def cached(self, pieces: Pieces, cache: str | None = None) -> Tensor:
        name = cache or self.caches[0]
        capacity = self._capacity(high_water(pieces))
        decoder = self._held.get((name, capacity))
        if decoder is None:
            decoder = CachedDecoder(self.model, self.kinds[name], capacity)
        if all(hasattr(one, "reset") for one in decoder.caches):  # else each text gets new ones
            self._held[name, capacity] = decoder
            decoder.length = 0
            for one in decoder.caches:
                one.reset()

        def rewind(n: int) -> None:
            if not all(hasattr(one, "rewind") for one in decoder.caches):
                raise NotOffered("it has no rewind(n)")
            decoder.rewind(n)

        return through(decoder.read, rewind, pieces)

    def _capacity(self, needed: int) -> int:
        """Slots for so many tokens: all that the model has, unless most would stay empty."""
        if self.longest and self.longest <= 3 * needed:
            return self.longest
        return needed

    def session(self, cache: str | None = None) -> Session:
        capacity = self.longest or 1024
        return Decoding(CachedDecoder(self.model, self.kinds[cache or self.caches[0]], capacity))

    def to(self, dtype: torch.dtype) -> Subject:
        return Ours(copied(self.model, dtype), tuple(self.kinds.values()))


class Decoding:
    """A decoder as a session: it reads, and its texts stay where they are."""

    def __init__(self, decoder: CachedDecoder):
        self.decoder = decoder

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        return self.decoder.read(ids)

    def reorder(self, rows: list[int]) -> None:
        raise NotOffered("its texts cannot change places")


def copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model in memory, in this dtype. Raises NotOffered where it would not fit."""
    need = sum(p.numel() for p in model.parameters()) * dtype.itemsize * 1.2
    free = available_memory()
    if free is not None and need > free:
        raise NotOffered(
            f"{dtype} needs {need / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are available"
        )
    return copy.deepcopy(model).to("cpu", dtype)
