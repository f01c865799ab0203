"""The contract that README.md describes: a model of any library, as the referee asks it."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .errors import REFUSALS, NotOffered, OutOfTime, first_line
from .logits import logits_of
from .objects import check_memory, modules_in
from .report import Reach, Unsupported
from .texts import text
from .yardstick import thinned

ONLY_CACHE = "its cache"  # the name of the cache of a model that has one


def check_int(name: str, value: object, low: int, high: int = 2**63 - 1) -> None:
    """Raise ValueError unless the value is an integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}={value!r}: must be an integer in [{low}, {high}]")


@dataclass
class ModelLimits:
    """What a model can read in one pass, and why not more: declared, or found by limits.py."""

    max_batch: int | None = None  # texts; None: no known limit
    shortest: int = 1  # fewest tokens of a prompt
    longest: int | None = None  # most tokens of a text
    chunks: bool = True  # several tokens at once after a prompt
    last_only: bool = False  # only the last token's logits
    distinct: bool = False  # whether texts must not repeat a token
    refusals: list[Unsupported] = field(default_factory=list)


@dataclass
class TokenMeter:
    """Counts what the model has read, and keeps the time: one meter for all copies of a model."""

    start: float = 0.0  # of time.monotonic()
    end: float = float("inf")  # after which nothing new starts
    tokens: int = 0  # read so far, with and without a cache
    reach: Reach = field(default_factory=Reach)

    def spend(self, ids: Tensor) -> None:
        """Count the tokens of a pass that is about to start. Raises OutOfTime.  (B, T)"""
        if time.monotonic() > self.end:
            raise OutOfTime
        self.tokens += ids.numel()


class Model:
    """An adapter as the referee asks it: within its limits, metered, with normalised logits."""

    # What an adapter may declare; the README says what each means.
    caches: tuple[str, ...] = (ONLY_CACHE,)
    vocab_size: int = 0
    longest: int | None = None
    window: int | None = None
    edges: tuple[int, ...] = ()
    expects: float | None = None
    rewinds: bool | None = None
    chunks: bool | None = None
    last_only: bool | None = None
    max_batch: int | None = None
    shortest: int | None = None
    sessions: int | None = None
    threads: bool = True
    bidirectional: bool = False
    copies: bool = False  # whether `to` returns a new object and leaves this one as it is
    not_offered: tuple[type[BaseException], ...] = ()

    def __init__(self, given: Any, meter: TokenMeter, like: Model | None = None):
        """Wrap an adapter. `like` is the same one in another dtype: nothing is asked again."""
        self.given = given
        self.meter = meter
        self.limits: ModelLimits = ModelLimits() if like is None else like.limits
        self.dtype: torch.dtype | None = None  # None: its own
        self.started = 0  # sessions so far
        module = self.module
        self.name = str(getattr(given, "name", type(given if module is None else module).__name__))
        for name in _DECLARED:
            if hasattr(given, name):
                setattr(self, name, getattr(given, name))
        counts = ("vocab_size", "longest", "window", "max_batch", "shortest", "sessions")
        for name in counts:
            check_int(name, getattr(self, name) or 1, 1)
        if like is not None:
            self.vocab_size, self.rewinds = like.vocab_size, like.rewinds

    def text(self, batch: int, seed: int, length: int) -> Tensor:
        """Texts that this model can be judged by.  (B, T)"""
        return text(self.vocab_size, batch, seed, length, self.limits.distinct)

    @property
    def refusals(self) -> tuple[type[BaseException], ...]:
        """The classes of exceptions that mean "not offered"."""
        return (*REFUSALS, *self.not_offered)

    @property
    def module(self) -> nn.Module | None:
        """The nn.Module that the adapter is or holds, if any."""
        return next(modules_in(self.given), None)

    def _moved(self, ids: Tensor) -> Tensor:
        """A copy of the ids on the module's device: a copy, because a model may modify them."""
        first = None if self.module is None else next(self.module.parameters(), None)
        return ids.clone() if first is None else ids.clone().to(first.device)

    @torch.no_grad()
    def plain(self, ids: Tensor) -> Tensor:
        """The logits of one pass without a cache.  (B, T) -> (B, T, V)"""
        self.check_batch(len(ids))
        self.meter.spend(ids)
        out = self.given.plain(self._moved(ids))
        return thinned(logits_of(out, ids, "plain(ids)"))

    def start(self, cache: str, rows: int = 1, room: int = 0, rewinds: bool = False) -> Session:
        """A new session of `rows` texts, for an adapter with several caches with what it needs.

        `room` is the most tokens that it will hold, `rewinds` whether any will be taken back.
        """
        self.check_batch(rows)
        if not callable(getattr(self.given, "start", None)):
            raise NotOffered("it has no start(rows)")
        hints = {"cache": cache, "room": room, "rewinds": rewinds}
        named = hints if hasattr(self.given, "caches") else {}
        self.meter.reach.requests += 1
        return Session(self, self.given.start(rows, **named), rows)

    @torch.no_grad()
    def padded(self, ids: Tensor, mask: Tensor, lengths: list[int] | None) -> Tensor:
        """Texts of different lengths in one batch. Raises NotOffered.  (B, T) twice -> (B, T, V)

        `mask` is 0 at padding. They are read in pieces of these lengths through a cache, or in one
        pass without one (None).
        """
        if not callable(getattr(self.given, "padded", None)):
            raise NotOffered("it has no padded(ids, mask, lengths)")
        if self.limits.last_only:
            raise NotOffered("it returns only the last token's logits")
        self.check_batch(len(ids))
        self.meter.spend(ids)
        out = self.given.padded(self._moved(ids), self._moved(mask), lengths)
        return thinned(logits_of(out, ids, "padded(ids, mask, lengths)"))

    @torch.no_grad()
    def placed(self, ids: Tensor, pos: Tensor) -> Tensor:
        """The plain pass of tokens at these positions. Raises NotOffered.  (B, T), (T,)"""
        if not callable(getattr(self.given, "placed", None)):
            raise NotOffered("it has no placed(ids, pos)")
        self.meter.spend(ids)
        out = self.given.placed(self._moved(ids), self._moved(pos))
        return thinned(logits_of(out, ids, "placed(ids, pos)"))

    def to(self, dtype: torch.dtype) -> Model:
        """A copy with weights in this dtype. Raises NotOffered."""
        convert = callable(getattr(self.given, "to", None))
        if not convert and self.module is None:
            raise NotOffered("it has no to(dtype)")
        if self.module is not None:
            check_memory(self.module, dtype)
        # A copy first: nn.Module.to, and many a `to` like it, changes the object itself.
        try:
            given = self.given if self.copies else copy.deepcopy(self.given)
        except Exception as error:  # of any type: it depends on the object
            if not convert:
                raise NotOffered(f"it cannot be copied: {first_line(error)}") from None
            given = self.given
        if convert:
            given = given.to(dtype) or given
        else:
            for module in modules_in(given):
                module.to(dtype)
        model = Model(given, self.meter, like=self)
        model.dtype = dtype
        return model

    def check_batch(self, rows: int) -> None:
        """Raise NotOffered for more texts at once than the model reads."""
        most = self.limits.max_batch
        if most is not None and rows > most:
            raise NotOffered(f"it reads {most} text{'s' if most > 1 else ''} at a time")


_DECLARED = tuple(name for name in Model.__annotations__ if name[0] != "_")


class Session:
    """A session of an adapter. A method that it lacks raises NotOffered."""

    def __init__(self, model: Model, given: Any, rows: int):
        self.model = model
        self.given = given
        self.rows = rows
        self.length = 0  # tokens held
        model.started += 1
        self.number = model.started
        if not callable(getattr(given, "read", None)):
            raise NotOffered(f"start(rows) returned a {type(given).__name__} without read(ids)")

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        """The logits of the next tokens of each text.  (B, t) -> (B, t, V)"""
        limits = self.model.limits
        if self.length < limits.shortest and self.length + ids.shape[1] < limits.shortest:
            raise NotOffered(f"its prompts need at least {limits.shortest} tokens")
        # A model with one cache inside has only its latest sessions.
        later = self.model.started - self.number
        if self.model.sessions is not None and later >= self.model.sessions:
            raise NotOffered("a later session has replaced its cache")
        self.model.meter.spend(ids)
        out = self.given.read(self.model._moved(ids))
        self.length += ids.shape[1]
        self.model.meter.reach.read(len(ids), ids.shape[1], self.length)
        return thinned(logits_of(out, ids, "read(ids)"))

    def rewind(self, n: int) -> None:
        self._method("rewind")(n)
        self.length -= n

    def reorder(self, rows: list[int]) -> None:
        self._method("reorder")(rows)

    def keep(self, rows: list[int]) -> None:
        self._method("keep")(rows)
        self.rows = len(rows)

    def fork(self) -> Session:
        other = Session(self.model, self._method("fork")(), self.rows)
        other.length = self.length
        return other

    def _method(self, name: str) -> Any:
        method = getattr(self.given, name, None)
        if not callable(method):
            raise NotOffered(f"it has no {name}")
        return method
