"""What can a model read in one pass? Its declarations, and what trying it once shows.

A limit is a fact about a model, not a bug: a shortest prompt, one text at a time, one token at a
time behind the prompt, only the last token's logits. A refusal is recognised by the class of its
exception alone: those that mean "not offered" everywhere, and here, where something is asked for
the first time, those of checked arguments as well. Whatever the plain pass cannot do either is a
limit, too, of any class. Everything else that fails is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .contract import Model, Session
from .errors import ERRORS, NoLogits, OutOfTime, first_line
from .logits import logits_of
from .report import Unsupported
from .texts import BRIEF, LEAST, text

# How a library says that it does not take these arguments.
_CHECKED = (ValueError, AssertionError)
_PROMPTS = (1, 2, 4, 8, 16)  # prompt lengths to try, shortest first


def find_limits(model: Model) -> None:
    """Fill in what the model does not declare. Raises ValueError if it cannot read any text."""
    limits = model.limits
    _first_call(model)
    limits.longest = model.longest
    if limits.longest is not None and limits.longest < LEAST:
        raise ValueError(f"{model.name} reads {limits.longest} tokens: {LEAST} are needed")
    find_longest(model, BRIEF)
    n = min(max(LEAST, model.shortest or 0), limits.longest or LEAST)
    ids = text(model.vocab_size, 2, length=n)
    # 1. Is there a logit for each token?
    whole = model.plain(ids[:1])
    limits.last_only = bool(model.last_only) or bool((whole[:, 0] == torch.inf).all())
    # 2. How does a prompt have to be, and how many texts may there be?
    limits.shortest = model.shortest or _shortest(model, ids)
    form = _fails(partial(_read, model, ids[:1]))
    if isinstance(form, NoLogits):
        raise form
    limits.max_batch = model.max_batch
    if limits.max_batch is None and _declines(model, "two texts in a batch", ids):
        limits.max_batch = 1
    # 3. What may follow it?
    limits.chunks = model.chunks if model.chunks is not None else _reads_chunks(model, ids)


def _first_call(model: Model) -> None:
    """Ask the model for the first time. Raises ValueError in one line."""
    given = model.given
    ids = torch.tensor([[0, 1] * 4])
    try:
        if not hasattr(given, "vocab_size"):
            with torch.no_grad():
                out = given.plain(model._moved(ids))
            model.vocab_size = logits_of(out, ids, "plain(ids)").shape[-1]
        if model.rewinds is None:
            session = given.start(1) if not hasattr(given, "caches") else None
            model.rewinds = session is None or callable(getattr(session, "rewind", None))
    except (NoLogits, OutOfTime):
        raise
    except ERRORS as error:
        raise ValueError(
            f"{model.name} fails on its first call ({type(error).__name__}: {first_line(error)})"
        ) from None


def find_longest(model: Model, wanted: int) -> None:
    """Limit the model to what its plain pass reads, if that is less than wanted and undeclared.

    Raises ValueError if it is too little for any scenario.
    """
    if model.limits.longest is not None:
        return

    def fails(n: int) -> BaseException | None:
        return _fails(lambda: model.plain(text(model.vocab_size, 1, length=n)))

    error = fails(wanted)
    if error is None:
        return
    # 1. Not even as many as the scenarios need: it cannot be judged.
    if short := fails(LEAST):
        kind = f"{type(short).__name__}: {first_line(short)}"
        raise ValueError(
            f"{model.name} cannot read a text of {LEAST} tokens without a cache ({kind})"
        )
    # 2. Halve the interval in which the limit is.
    low, high = LEAST, wanted
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    model.limits.longest = low
    model.limits.refusals.append(Unsupported(f"a text of {high} tokens", first_line(error)))


def _declines(model: Model, name: str, *pieces: Tensor) -> bool:
    """Whether the model does not read these pieces; the reason is recorded.

    Its plain pass fails, in whatever way, or its cache refuses. Everything else that fails is left
    to the first comparison, which says how.
    """
    error = _fails(partial(model.plain, torch.cat(pieces, 1)))
    if error is None:
        error = _fails(partial(_read, model, *pieces))
        if error is None or isinstance(error, NoLogits):
            return False
        if not isinstance(error, (*model.refusals, *_CHECKED)):
            return False
    model.limits.refusals.append(Unsupported(name, first_line(error)))
    return True


def _fails(ask: Callable[[], object]) -> BaseException | None:
    """The exception with which this fails, of whatever class; None if it works."""
    try:
        ask()
    except OutOfTime:
        raise
    except ERRORS as error:
        return error
    return None


def _read(model: Model, *pieces: Tensor) -> None:
    """Read these pieces through a new session."""
    rows = len(pieces[0])
    room = sum(piece.shape[1] for piece in pieces)
    session: Session = model.start(model.caches[0], rows, room)
    for piece in pieces:
        session.read(piece)


def _shortest(model: Model, ids: Tensor) -> int:
    """The fewest tokens of a prompt that works both with and without a cache."""
    for n in _PROMPTS:
        if n >= ids.shape[1]:
            break
        if not _declines(model, f"a text of {n} token{'s' if n > 1 else ''}", ids[:1, :n]):
            return n
    if _fails(partial(_read, model, ids[:1])):
        # It has no cache at all, or only one for single tokens: what follows says so.
        model.limits.refusals.clear()
        return 1
    return ids.shape[1]


def _reads_chunks(model: Model, ids: Tensor) -> bool:
    """Whether several tokens can be read at once behind a prompt, if a single one can."""
    n = model.limits.shortest + 4
    prompt = ids[:1, :n]
    if n + 2 > ids.shape[1] or _fails(partial(_read, model, prompt, ids[:1, n : n + 1])):
        return True  # the first comparison says why
    return not _declines(model, "several tokens after a prompt", prompt, ids[:1, n : n + 2])
