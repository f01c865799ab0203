"""Detect what a model supports by trying it once; after that, the referee asks for no more.

A refusal is a fact about a model, not a bug: a minimum length, one text at a time, one token at a
time after the prompt, only the last token's logits. If something worked once and then fails, that
is a bug.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from .report import Reach, Scenario, Unsupported
from .subjects import NotOffered, Pieces, Session, Subject, first_line
from .texts import text

# Exceptions that may end a model's forward pass: its bugs, and its refusals.
MODEL_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError),
    *(SystemExit, TypeError, ValueError),
)
PROMPTS = (1, 2, 4, 8, 16)  # prompt lengths to try, shortest first


class OutOfTime(Exception):
    """There is no time left for the current comparison."""


@dataclass
class Offers:
    """What a model can read in one pass, and why not more."""

    max_batch: int | None = None  # texts; None: no known limit
    shortest: int = 1  # fewest tokens of a prompt
    widest: int | None = None  # most tokens of a piece; None: no known limit
    chunks: bool = True  # several tokens at once after a prompt
    last_only: bool = False  # only the last token's logits
    refusals: list[Unsupported] = field(default_factory=list)

    def parts(self, piece: Tensor, first: bool) -> Sequence[Tensor]:
        """Split a piece into parts that the model can read; `first` for a prompt.  (B, t)"""
        n = piece.shape[1] if self.widest is None else self.widest
        head = n if first else 0
        rest = piece[:, head:]
        parts = rest.split(n if self.chunks else 1, 1) if rest.shape[1] else ()
        return [piece[:, :head], *parts] if first else parts


class Timed(list[Tensor | int]):
    """A list of pieces whose iteration raises OutOfTime once the time is up."""

    end = float("inf")

    def __iter__(self) -> Iterator[Tensor | int]:
        for piece in super().__iter__():
            if time.monotonic() > self.end:
                raise OutOfTime
            yield piece


class Offered(Subject):
    """A subject that is asked only for what it supports, until `end`; `reach` records how far.

    Raises NotOffered for a batch larger than it reads, OutOfTime when the time is up.
    """

    def __init__(self, subject: Subject, offers: Offers, end: float, reach: Reach):
        self.subject = subject
        self.offers = offers
        self.end = end
        self.reach = reach
        vars(self).update(
            {name: getattr(subject, name) for name in DECLARED if hasattr(subject, name)}
        )

    def __getattr__(self, name: str) -> object:
        return getattr(self.subject, name)

    def plain(self, ids: Tensor) -> Tensor:
        self._check(len(ids))
        return self.subject.plain(ids)

    def cached(self, pieces: Pieces, cache: str | None = None) -> Tensor:
        read = [piece for piece in pieces if isinstance(piece, Tensor)]
        self._check(len(read[0]))
        asked = Timed(self.readable(list(pieces)))
        asked.end = self.end
        logits = self.subject.cached(asked, cache)
        self.reach.requests += 1
        total = 0
        for piece in list.__iter__(asked):
            if isinstance(piece, int):
                total -= piece
            else:
                total += piece.shape[1]
                self.reach.read(len(piece), piece.shape[1], total)
        return logits

    def padded(self, ids: Tensor, mask: Tensor, lengths: list[int] | None) -> Tensor:
        if self.offers.last_only:
            raise NotOffered("it returns only the last token's logits")
        self._check(len(ids))
        return self.subject.padded(ids, mask, lengths)

    def placed(self, ids: Tensor, pos: Tensor) -> Tensor:
        self._check(len(ids))
        return self.subject.placed(ids, pos)

    def session(self, cache: str | None = None, rows: int = 1) -> Session:
        self._check(rows)
        self.reach.requests += 1
        return OfferedSession(self.subject.session(cache, rows), self)

    def to(self, dtype: torch.dtype) -> Subject:
        return Offered(self.subject.to(dtype), self.offers, self.end, self.reach)

    def _check(self, rows: int) -> None:
        """Raise OutOfTime if the time is up, NotOffered for too many texts at once."""
        if time.monotonic() > self.end:
            raise OutOfTime
        most = self.offers.max_batch
        if most is not None and rows > most:
            raise NotOffered(f"it reads {most} text{'s' if most > 1 else ''} at a time")

    def readable(self, pieces: list[Tensor | int]) -> list[Tensor | int]:
        """The pieces as the model can read them: a prompt that is long enough, then the rest."""
        prompt: list[Tensor] = []
        while pieces and sum(p.shape[1] for p in prompt) < self.offers.shortest:
            piece = pieces[0]
            if isinstance(piece, int):
                raise NotOffered(f"its prompts need at least {self.offers.shortest} tokens")
            prompt.append(piece)
            pieces = pieces[1:]
        first = torch.cat(prompt, 1)
        asked: list[Tensor | int] = list(self.offers.parts(first, True))
        for piece in pieces:
            asked += [piece] if isinstance(piece, int) else self.offers.parts(piece, False)
        return asked


class OfferedSession(Session):
    """A session of an Offered subject."""

    def __init__(self, session: Session, subject: Offered):
        self.session = session
        self.subject = subject
        self.length = 0  # tokens read

    def read(self, ids: Tensor) -> Tensor:
        if time.monotonic() > self.subject.end:
            raise OutOfTime
        offers = self.subject.offers
        if not self.length and ids.shape[1] < offers.shortest:
            raise NotOffered(f"its prompts need at least {offers.shortest} tokens")
        logits = []
        for part in offers.parts(ids, not self.length):
            logits.append(self.session.read(part))
            self.length += part.shape[1]
            self.subject.reach.read(len(part), part.shape[1], self.length)
        return torch.cat(logits, 1)

    def rewind(self, n: int) -> None:
        self.session.rewind(n)
        self.length -= n

    def reorder(self, rows: list[int]) -> None:
        self.session.reorder(rows)

    def keep(self, rows: list[int]) -> None:
        self.session.keep(rows)

    def fork(self) -> Session:
        other = OfferedSession(self.session.fork(), self.subject)
        other.length = self.length
        return other


DECLARED = tuple(
    name for name in vars(Subject) if name[0] != "_" and not callable(getattr(Subject, name))
)


# ------------------------------------------------------------------ detecting


def ask(subject: Subject) -> Offers:
    """Detect what this model supports. Raises ValueError if it cannot read any text."""
    offers = Offers()
    n = max(16, subject.shortest or 0)
    n = min(n, subject.longest or n)
    ids = text(subject, 2, length=n)
    try:
        whole = subject.plain(ids[:1])
        torch.finfo(whole.dtype)  # a TypeError unless these are floats
    except MODEL_ERRORS as error:
        raise ValueError(
            f"{subject.name} cannot read a text without a cache "
            f"({type(error).__name__}: {first_line(error)})"
        ) from None
    offers.last_only = bool(subject.last_only) or bool((whole[:, 0] == torch.inf).all())
    offers.shortest = subject.shortest or _shortest(subject, ids, offers)
    offers.max_batch = subject.max_batch or _most(subject, ids, offers)
    offers.widest = _widest(subject, ids, offers)
    if subject.chunks is not None:
        offers.chunks = subject.chunks
    else:
        offers.chunks = _reads_chunks(subject, ids, offers)
    return offers


def _refuses(offers: Offers, name: str, run: Callable[[], object]) -> bool:
    """Whether the model refuses this; records the reason."""
    try:
        run()
    except (NotOffered, MemoryError, *MODEL_ERRORS) as error:
        offers.refusals.append(Unsupported(Scenario(name), first_line(error)))
        return True
    return False


def _works(run: Callable[[], object]) -> bool:
    try:
        run()
    except (NotOffered, MemoryError, *MODEL_ERRORS):
        return False
    return True


def _shortest(subject: Subject, ids: Tensor, offers: Offers) -> int:
    """The fewest tokens of a prompt that works both with and without a cache."""
    for n in PROMPTS:
        if n >= ids.shape[1]:
            break
        prompt = ids[:1, :n]

        def read(prompt: Tensor = prompt) -> None:
            subject.plain(prompt)
            subject.cached([prompt])

        if not _refuses(offers, f"a text of {n} token{'s' if n > 1 else ''}", read):
            return n
    if not _works(lambda: subject.cached([ids[:1]])):
        offers.refusals.clear()  # it has no cache at all: the first comparison says so
        return 1
    return ids.shape[1]


def _most(subject: Subject, ids: Tensor, offers: Offers) -> int | None:
    """1 for a model that reads one text at a time; None if it reads more."""

    def read() -> None:
        subject.plain(ids)
        if _works(lambda: subject.cached([ids[:1]])):
            subject.cached([ids])

    return 1 if _refuses(offers, "two texts in a batch", read) else None


def _widest(subject: Subject, ids: Tensor, offers: Offers) -> int | None:
    """The most tokens of a piece, if longer prompts fail but can be read in such pieces.

    1 for a model that reads single tokens, whatever the error; more, such as the window of a
    cache, only if the error is a refusal.
    """
    if offers.shortest > 1:
        return None
    try:
        subject.cached([ids[:1]])
        return None
    except (NotOffered, MemoryError, *MODEL_ERRORS) as error:
        refusal = error
    says_so = isinstance(refusal, (NotOffered, ValueError, AssertionError, NotImplementedError))
    for n in PROMPTS[-2::-1] if says_so else (1,):
        pieces = ids[:1].split(n, 1)
        if _works(partial(subject.cached, pieces)):
            name = f"more than {n} token{'s' if n > 1 else ''} at once"
            offers.refusals.append(Unsupported(Scenario(name), first_line(refusal)))
            return n
    return None  # the first comparison says why


def _reads_chunks(subject: Subject, ids: Tensor, offers: Offers) -> bool:
    """Whether several tokens can be read at once after a prompt, if a single one can."""
    n = offers.shortest + 4
    start = offers.parts(ids[:1, :n], True)
    if n + 2 > ids.shape[1] or not _works(lambda: subject.cached([*start, ids[:1, n : n + 1]])):
        return True  # the first comparison says why
    read = [*start, ids[:1, n : n + 2]]
    return not _refuses(offers, "several tokens after a prompt", lambda: subject.cached(read))
