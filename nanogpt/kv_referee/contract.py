"""The interface that a model from another library must provide, and the adapter for it.

    class Adapter:
        def plain(self, ids):        # (B, T) → logits (B, T, V), one pass without a cache
            return self.model(ids)

        def start(self, rows):       # an empty cache for `rows` texts
            return Session(self.model, rows)

    class Session:
        def read(self, ids): ...     # (B, t), the next tokens → their logits (B, t, V)
        def rewind(self, n): ...     # optional: forget the last n tokens
        def reorder(self, rows): ... # optional: text i continues from text rows[i] (beam search)
        def keep(self, rows): ...    # optional: only these texts stay in the batch
        def fork(self): ...          # optional: a second session that continues from here

Logits may be a tensor or a NumPy array of shape (B, T, V), (T, V) for one text, or (B, V) for the
last token only. They may be the first item of a tuple, or `logits` in a dict or on an object. If
the adapter has `to(dtype)`, or holds its nn.Module in an attribute, the comparison is in float64,
and ids are on that module's device. An adapter may be its own session: notebooks/adapters has
examples for other libraries.

What a model does not support is detected by trying it. Attributes of the adapter can declare it
instead, or add to it: `vocab_size`, `longest`, `window`, `chunks=False` (only single tokens after
the prompt), `last_only=True`, `max_batch=1`, `shortest=2` (fewest tokens of a prompt),
`edges=(64,)` (lengths at which something changes), `expects=1e-2` (a lossy cache: how far it may
move logits, as a fraction of the spread of a token's logits). These cannot be detected:
`sessions=1`, if the cache is inside the model, so that `start` ends the previous session; and
`chunks=False` or `rewinds=False`, if the model returns wrong logits where it should raise an error.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .offers import MODEL_ERRORS
from .subjects import (
    NotOffered,
    Pieces,
    Session,
    Subject,
    check_int,
    check_memory,
    first_line,
    through,
)

_COUNTS = ("vocab_size", "longest", "window", "max_batch", "shortest", "deepest", "sessions")


class NoLogits(Exception):
    """An adapter returned something other than logits: a mistake in the adapter, not the cache."""


class Given(Subject):
    """An adapter as a Subject: `plain` and either `start` or `cached`, and its declarations."""

    copies = True

    def __init__(self, given: Any):
        self.given = given
        self.name = str(getattr(given, "name", type(self.model or given).__name__))
        hidden = {"plain", "cached", "session", "padded", "placed", "to", "name"}
        for name in dir(Subject):
            if name[0] != "_" and name not in hidden and hasattr(given, name):
                setattr(self, name, getattr(given, name))
        for name in _COUNTS:
            check_int(name, getattr(self, name) or 1, 1)
        self.starts = callable(getattr(given, "start", None))
        self.live: list[GivenSession] = []  # the latest ones, if `sessions` limits their number
        try:
            if not hasattr(given, "vocab_size"):
                self.vocab_size = self.plain(torch.tensor([[0, 1, 0, 1, 0, 1, 0, 1]])).shape[-1]
            if self.starts and not hasattr(given, "rewinds"):
                self.rewinds = callable(getattr(given.start(1), "rewind", None))
        except MODEL_ERRORS as error:
            raise ValueError(
                f"{self.name} fails on its first call ({type(error).__name__}: {first_line(error)})"
            ) from None

    @property
    def model(self) -> nn.Module | None:
        """The nn.Module that the object is or holds, if any."""
        if isinstance(self.given, nn.Module):
            return self.given
        held = getattr(self.given, "__dict__", {}).values()
        return next((value for value in held if isinstance(value, nn.Module)), None)

    def moved(self, ids: Tensor) -> Tensor:
        """A copy of the ids on the module's device: a copy, because the model may modify them."""
        first = None if self.model is None else next(self.model.parameters(), None)
        return ids.clone() if first is None else ids.clone().to(first.device)

    @torch.no_grad()
    def plain(self, ids: Tensor) -> Tensor:
        return logits_of(self.given.plain(self.moved(ids)), ids, "plain(ids)")

    @torch.no_grad()
    def placed(self, ids: Tensor, pos: Tensor) -> Tensor:
        if not callable(getattr(self.given, "placed", None)):
            raise NotOffered("it has no placed(ids, pos)")
        out = self.given.placed(self.moved(ids), self.moved(pos))
        return logits_of(out, ids, "placed(ids, pos)")

    @torch.no_grad()
    def cached(self, pieces: Pieces, cache: str | None = None) -> Tensor:
        if self.starts:
            first = next(piece for piece in pieces if isinstance(piece, Tensor))
            session = self.session(cache, len(first))
            return through(session.read, session.rewind, pieces)
        named = (cache,) if hasattr(self.given, "caches") else ()
        ids = torch.cat([piece for piece in pieces if isinstance(piece, Tensor)], 1)
        kept = ids.shape[1] - sum(piece for piece in pieces if isinstance(piece, int))
        moved = [piece if isinstance(piece, int) else self.moved(piece) for piece in pieces]
        return logits_of(self.given.cached(moved, *named), ids[:, :kept], "cached(pieces)")

    def session(self, cache: str | None = None, rows: int = 1) -> Session:
        if self.starts:
            return GivenSession(self.given.start(rows), self)
        if callable(getattr(self.given, "session", None)):
            return GivenSession(self.given.session(cache), self)
        raise NotOffered("it reads one text at a time")

    def check_live(self, session: GivenSession) -> None:
        """Raise NotOffered if later sessions have replaced this one's cache."""
        if self.sessions is not None and session not in self.live:
            raise NotOffered("a later session has replaced its cache")

    @torch.no_grad()
    def padded(self, ids: Tensor, mask: Tensor, lengths: list[int] | None) -> Tensor:
        if not callable(getattr(self.given, "padded", None)):
            raise NotOffered("it reads no padded batches")
        out = self.given.padded(self.moved(ids), self.moved(mask), lengths)
        return logits_of(out, ids, "padded(ids, mask, lengths)")

    def to(self, dtype: torch.dtype) -> Subject:
        """A copy of the object with weights in this dtype. Raises NotOffered."""
        convert = callable(getattr(self.given, "to", None))
        if not convert and self.model is None:
            raise NotOffered("it has no to(dtype)")
        if self.model is not None:
            check_memory(self.model, dtype)
        try:  # a copy first: nn.Module.to changes the module that it is called on
            given = copy.deepcopy(self.given)
        except Exception as error:  # of any type: it depends on the object
            raise NotOffered(f"it cannot be copied: {error}") from None
        if convert:
            made = given.to(dtype)
            return Given(given if made is None else made)
        for value in vars(given).values():
            if isinstance(value, nn.Module):
                value.to(dtype)
        return Given(given)


class GivenSession(Session):
    """Another library's session, with normalised logits. A missing method raises NotOffered."""

    def __init__(self, session: Any, model: Given):
        self.given = session
        self.of = model
        if model.sessions is not None:
            model.live = [*model.live, self][-model.sessions :]

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        self.of.check_live(self)
        return logits_of(self.given.read(self.of.moved(ids)), ids, "read(ids)")

    def rewind(self, n: int) -> None:
        self._method("rewind")(n)

    def reorder(self, rows: list[int]) -> None:
        self._method("reorder")(rows)

    def keep(self, rows: list[int]) -> None:
        self._method("keep")(rows)

    def fork(self) -> Session:
        return GivenSession(self._method("fork")(), self.of)

    def _method(self, name: str) -> Any:
        method = getattr(self.given, name, None)
        if not callable(method):
            raise NotOffered(f"it has no {name}")
        return method


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
    if len(logits) != rows:
        raise NoLogits(
            f"{call} returned {tuple(logits.shape)} for {rows} texts of {n} tokens: logits must be "
            f"(B, T, V), batch first"
        )
    if n > 1 and logits.shape[1] == 1:
        before = logits.new_full((rows, n - 1, logits.shape[-1]), torch.inf)
        return torch.cat([before, logits], 1)
    return logits


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
