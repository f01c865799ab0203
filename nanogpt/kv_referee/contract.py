"""The contract: what a model of any library provides, and the wrapper through which it is asked.

    class Adapter:
        def plain(self, ids):        # (B, T) → logits (B, T, V): one pass without a cache
            return self.model(ids)

        def start(self, rows):       # an empty cache for `rows` texts; several may be alive
            return Session(self.model, rows)

    class Session:
        def read(self, ids): ...     # (B, t), the next tokens → their logits (B, t, V)
        def rewind(self, n): ...     # optional: forget the last n tokens
        def reorder(self, rows): ... # optional: text i continues from text rows[i] (beam search)
        def keep(self, rows): ...    # optional: only these texts stay in the batch
        def fork(self): ...          # optional: a second session that continues from here

`plain` must not be a read of a new session, if the library has any other pass: a mistake that both
share would not show. An adapter may be its own session. The README is this contract in full.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .memory import available_memory
from .report import Reach, Unsupported
from .texts import text
from .yardstick import thinned

ONLY_CACHE = "its cache"  # the name of the cache of a model that has one


class NotOffered(Exception):
    """Raised by an adapter for what its library does not support; the message says why."""


class NoLogits(ValueError):
    """An adapter returned something other than logits: a mistake in the adapter, not the cache."""


class OutOfTime(Exception):
    """The seconds are used up: nothing new starts."""


# What may come out of somebody else's code. KeyboardInterrupt, and the signals of test runners,
# are of neither class and stop the referee.
ERRORS: tuple[type[BaseException], ...] = (Exception, SystemExit)
# The classes that mean "not offered" wherever they are raised; an adapter may name more.
REFUSALS: tuple[type[BaseException], ...] = (NotOffered, NotImplementedError, MemoryError)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


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
    widest: int | None = None  # most tokens of a piece; None: no known limit
    chunks: bool = True  # several tokens at once after a prompt
    last_only: bool = False  # only the last token's logits
    distinct: bool = False  # whether texts must not repeat a token
    refusals: list[Unsupported] = field(default_factory=list)

    def parts(self, piece: Tensor, first: bool) -> list[Tensor]:
        """Split a piece into parts that the model can read; `first` for a prompt.  (B, t)"""
        # 1. The head of a prompt, as wide as the model reads.
        wide = piece.shape[1] if self.widest is None else self.widest
        head = wide if first else 0
        parts = [piece[:, :head]] if head else []
        # 2. Behind it the same, or single tokens.
        rest = piece[:, head:]
        if rest.shape[1]:
            parts += rest.split(wide if self.chunks else 1, 1)
        return parts


@dataclass
class TokenMeter:
    """Counts what the model has read, and keeps the time: one meter for all copies of a model."""

    end: float = float("inf")  # time.monotonic() after which nothing new starts
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
    deepest: int | None = None
    chunks: bool | None = None
    last_only: bool | None = None
    max_batch: int | None = None
    shortest: int | None = None
    sessions: int | None = None
    threads: bool = True
    right_padding: bool | None = None
    specials: tuple[int, ...] = (0, 1, 2)
    bidirectional: bool = False
    copies: bool = False  # whether `to` returns a new object and leaves this one as it is
    not_offered: tuple[type[BaseException], ...] = ()

    def __init__(self, given: Any, meter: TokenMeter, like: Model | None = None):
        """Wrap an adapter. `like` is the same one in another dtype: nothing is asked again."""
        self.given = given
        self.meter = meter
        self.limits: ModelLimits = ModelLimits() if like is None else like.limits
        self.started = 0  # sessions so far
        self.forms: dict[str, Form] = {}  # how each of its methods returned logits, for scripts
        module = self.module
        self.name = str(getattr(given, "name", type(given if module is None else module).__name__))
        for name in _DECLARED:
            if hasattr(given, name):
                setattr(self, name, getattr(given, name))
        counts = ("vocab_size", "longest", "window", "max_batch", "shortest", "deepest", "sessions")
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
        self.forms["plain"] = form_of(out)
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
            made = given.to(dtype)
            return Model(given if made is None else made, self.meter, like=self)
        for module in modules_in(given):
            module.to(dtype)
        return Model(given, self.meter, like=self)

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
        """The logits of the next tokens of each text, in parts if need be.  (B, t) -> (B, t, V)"""
        limits = self.model.limits
        if self.length < limits.shortest and self.length + ids.shape[1] < limits.shortest:
            raise NotOffered(f"its prompts need at least {limits.shortest} tokens")
        logits = []
        for part in limits.parts(ids, not self.length):
            # A model with one cache inside has only its latest sessions.
            later = self.model.started - self.number
            if self.model.sessions is not None and later >= self.model.sessions:
                raise NotOffered("a later session has replaced its cache")
            self.model.meter.spend(part)
            out = self.given.read(self.model._moved(part))
            self.model.forms["read"] = form_of(out)
            logits.append(thinned(logits_of(out, part, "read(ids)")))
            self.length += part.shape[1]
            self.model.meter.reach.read(len(part), part.shape[1], self.length)
        return torch.cat(logits, 1)

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


# ------------------------------------------------------------------ objects of other libraries


def modules_in(given: Any) -> Iterator[nn.Module]:
    """The nn.Modules that an adapter is or holds in its attributes."""
    if isinstance(given, nn.Module):
        yield given
        return
    for value in getattr(given, "__dict__", {}).values():
        if isinstance(value, nn.Module):
            yield value


def untouched(given: Any) -> Any:
    """A copy of an object that nobody has used, which shares its weights.

    Buffers are copied: they may be a cache. Raises NotOffered for an object that cannot be copied.
    """
    shared: dict[int, Any] = {}
    for module in modules_in(given):
        shared |= {id(weight): weight for weight in module.parameters()}
    try:
        return copy.deepcopy(given, shared)
    except Exception as error:  # of any type: it depends on the object
        raise NotOffered(f"it cannot be copied: {first_line(error)}") from None


def check_memory(model: nn.Module, dtype: torch.dtype) -> None:
    """Raise NotOffered if a copy of the model in this dtype would not fit in memory."""
    need = sum(p.numel() for p in model.parameters()) * dtype.itemsize * 1.2
    free = available_memory()
    if free is not None and need > free:
        raise NotOffered(
            f"{dtype} needs {need / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are available"
        )


def logits_of(out: Any, ids: Tensor, call: str) -> Tensor:
    """Normalise what `call` returned to logits.  -> (B, T, V)

    If it returned those of the last token only, the earlier positions are +inf. Raises NoLogits
    for anything that is not logits.
    """
    logits = _tensor_in(out)
    if logits is None:
        raise NoLogits(
            f"{call} returned {type(out).__name__}: logits must be a tensor or an array, "
            f"(B, T, V), by itself, first in a tuple, or as `logits` in a dict or on an object"
        )
    rows, n = ids.shape
    if logits.ndim == 1 and rows == 1:
        logits = logits[None, None]
    elif logits.ndim == 2:
        # (T, V) for one text, or (B, V) for the last token of each.
        logits = logits[None] if rows == 1 and len(logits) == n else logits[:, None]
    if logits.ndim != 3 or not logits.is_floating_point():
        raise NoLogits(
            f"{call} returned {tuple(logits.shape)} of {logits.dtype} for {rows} texts of {n} "
            f"tokens: logits must be floats, (B, T, V), (T, V) or (B, V)"
        )
    if len(logits) != rows or logits.shape[1] not in (1, n):
        raise NoLogits(
            f"{call} returned {tuple(logits.shape)} for {rows} texts of {n} tokens: logits must be "
            f"(B, T, V), batch first, of all tokens or of the last"
        )
    if n > 1 and logits.shape[1] == 1:
        before = logits.new_full((rows, n - 1, logits.shape[-1]), torch.inf)
        return torch.cat([before, logits], 1)
    return logits


@dataclass(frozen=True)
class Form:
    """How a call returned logits: Python code that takes them from it, and their dimensions."""

    code: str
    ndim: int


def form_of(out: Any) -> Form:
    """The form of what a call returned."""
    code = "torch.as_tensor({})"
    held = out
    if isinstance(out, Tensor):
        code = "{}"
    elif isinstance(out, dict):
        code, held = '{}["logits"]', out.get("logits")
    elif isinstance(out, (tuple, list)) and out:
        code, held = "{}[0]", out[0]
    elif getattr(out, "logits", None) is not None:
        code, held = "{}.logits", out.logits
    if not isinstance(held, Tensor) and "torch" not in code:
        code = f"torch.as_tensor({code})"
    return Form(code, getattr(held, "ndim", 3))


def _tensor_in(out: Any) -> Tensor | None:
    """Extract the logits from what a model returned; None if there are none."""
    if isinstance(out, dict) and "logits" in out:
        out = out["logits"]
    elif getattr(out, "logits", None) is not None:
        out = out.logits
    elif isinstance(out, (tuple, list)) and out:
        out = out[0]
    if isinstance(out, Tensor):
        return out.detach().to("cpu")
    if hasattr(out, "__array__") and not isinstance(out, nn.Module):
        return torch.as_tensor(out.__array__())
    return None
