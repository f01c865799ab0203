"""Diagnose a bug: the shortest text that shows it, and what its wrong logits belong to.

Wrong logits are often the right logits for something else: the text without its beginning, another
row, other positions. Each of these is computed by a plain pass and compared. If none fits, tokens
are changed one by one to see which of them the logits depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from .damages import CACHE_PARTS, tensors_in
from .offers import MODEL_ERRORS
from .subjects import NotOffered, Subject
from .texts import Length, cut, total
from .yardstick import Yardstick, thinned

_SMALL = 20  # most tokens of the short texts that are tried instead of a longer one
SHIFTS = (-1, 1, -2, 2, -3, 3)


class _Case(Protocol):
    """What the diagnosis needs of the model under test."""

    subject: Subject
    yard: Yardstick

    def plain(self, ids: Tensor, subject: Subject | None = None) -> Tensor:
        """The logits of one pass."""


# ------------------------------------------------------------------ the smallest text


def smallest(
    case: _Case, cache: str, ids: Tensor, expected: Tensor, lengths: tuple[Length, ...], at: int
) -> tuple[int, tuple[Length, ...]]:
    """Rows and pieces of the shortest wrong path found; else of the given one, up to its mistake.

    `at` is the first wrong token of `lengths`.  (B, T), (B, T, V)
    """
    for rows in sorted({1, min(2, len(ids)), len(ids)}):
        for few in _shorter(min(_SMALL, at + 2, ids.shape[1]), case.subject.rewinds):
            if wrong_at(case, cache, ids[:rows], expected[:rows], few) is not None:
                return rows, few
    kept: list[Length] = []
    for length in lengths:  # no further than the mistake
        kept.append(length)
        if total(kept) > at:
            break
    for rows in range(1, len(ids) + 1):
        if wrong_at(case, cache, ids[:rows], expected[:rows], tuple(kept)) is not None:
            return rows, tuple(kept)
    return len(ids), lengths


def _shorter(most: int, rewinds: bool) -> Iterator[tuple[Length, ...]]:
    """Yield the pieces of short texts, shortest first."""
    for n in range(2, most + 1):
        yield (n - 1, 1)
        if n > 2:
            yield (n - 2, 2)
            yield (n - 2, 1, 1)
            yield (1, n - 1)
        if rewinds:
            yield ((n - 1, 1), 1)
            yield ((n - 1, 2), 1)


def wrong_at(
    case: _Case, cache: str, ids: Tensor, expected: Tensor, lengths: tuple[Length, ...]
) -> int | None:
    """The first wrong token when the texts are read in these pieces; None if none, or it fails."""
    n = total(lengths)
    try:
        got = read(case, cache, ids, lengths)
    except (NotOffered, MemoryError, *MODEL_ERRORS):
        return None
    if got.shape != expected[:, :n].shape:
        return None
    wrong = (case.yard.sizes(got, expected[:, :n]).amax(0) > case.yard.inside).nonzero()
    return int(wrong[0]) if len(wrong) else None


def read(case: _Case, cache: str, ids: Tensor, lengths: tuple[Length, ...]) -> Tensor:
    """The logits of these texts, read through the cache in these pieces.  (B, T) -> (B, n, V)"""
    pieces = cut(ids, lengths, case.subject.vocab_size)
    return thinned(case.subject.cached(pieces, cache))


# ------------------------------------------------------------------ the kind of mistake


def cause(
    case: _Case,
    cache: str,
    ids: Tensor,
    expected: Tensor,
    lengths: tuple[Length, ...],
    at: int,
) -> str:
    """The kind of mistake in words; empty if the numbers do not show it.  (B, T), (B, T, V)

    `at` is the first wrong token.
    """
    got = read(case, cache, ids, lengths)
    row = int(case.yard.sizes(got, expected[:, : got.shape[1]])[:, at].argmax())
    wrong = got[row, at][None, None]
    start = _start_of(lengths, at)
    for words, logits in _explanations(case, ids, expected, row, start, at):
        if float(case.yard.sizes(wrong, logits).max()) <= case.yard.inside:
            return words
    return _alike_parts(case, cache, ids[row : row + 1], at) or _dependence(
        case, cache, ids, lengths, row, start, at
    )


def _start_of(lengths: tuple[Length, ...], at: int) -> int:
    """The first token of the piece that contains token `at`."""
    start = 0
    for length in lengths:
        n = length[0] if isinstance(length, tuple) else length
        if at < start + n:
            return start
        start += n
    return start


def _explanations(
    case: _Case, ids: Tensor, expected: Tensor, row: int, start: int, at: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield what the logits of token `at` may be instead, in words and as logits, (1, 1, V)."""
    text = ids[row : row + 1, : at + 1]
    piece = f"the piece that begins at token {start}"

    def last(ids: Tensor) -> Tensor:
        return case.plain(ids)[:, -1:]

    if start:
        words = f"everything before {piece} is forgotten: the logits are those of this piece alone"
        yield words, last(text[:, start:])
    for other in (at - 1, at + 1):
        if 0 <= other < expected.shape[1]:
            words = f"the logits are those of token {other}: rows of logits are off by one"
            yield words, expected[row : row + 1, other : other + 1]
    for other in range(len(ids)):
        if other != row:
            words = f"row {row} has the logits of row {other}: texts of the batch are mixed up"
            yield words, expected[other : other + 1, at : at + 1]
    yield from _moved(case, text, start, at)
    for i in range(at):
        without = torch.cat([text[:, :i], text[:, i + 1 :]], 1)
        yield f"token {i} is missing from the cache (of {at + 1} tokens read)", last(without)
    for i in range(at):
        twice = torch.cat([text[:, : i + 1], text[:, i:]], 1)
        yield f"token {i} is in the cache twice", last(twice)
    for i in range(1, start):
        words = f"the first {i} tokens are forgotten: the logits are those of the text after them"
        yield words, last(text[:, i:])
    for i, j in pairwise(range(at + 1)):
        swapped = text.clone()
        swapped[0, [i, j]] = swapped[0, [j, i]]
        if not torch.equal(swapped, text):
            yield f"tokens {i} and {j} are swapped in the cache", last(swapped)


def _moved(case: _Case, text: Tensor, start: int, at: int) -> Iterator[tuple[str, Tensor]]:
    """Yield shifted positions from this piece on, if a plain pass accepts positions."""
    pos = torch.arange(at + 1)
    moves = {n: f"positions are shifted by {n:+d} from token {start} on" for n in SHIFTS}
    moves |= {-start: f"positions restart at 0 in the piece that begins at token {start}"}
    for n, words in moves.items():
        moved = torch.where(pos >= start, pos + n, pos)
        if not start or moved.min() < 0:
            continue
        try:
            yield words, thinned(case.subject.placed(text, moved))[:, -1:]
        except (NotOffered, *MODEL_ERRORS):
            continue


def _alike_parts(case: _Case, cache: str, ids: Tensor, at: int) -> str:
    """A message if the cache's keys and values are the same numbers; else empty."""
    try:
        session = case.subject.session(cache)
        session.read(ids[:, : at + 1])
    except (NotOffered, *MODEL_ERRORS):
        return ""
    held = list(tensors_in(session))
    keys = [x for name, x in held if CACHE_PARTS["keys"].search(name)]
    values = [x for name, x in held if CACHE_PARTS["values"].search(name)]
    for k in keys:
        if any(k is v or (k.shape == v.shape and torch.equal(k, v)) for v in values if v.any()):
            return "the cache holds the same numbers as keys and as values"
    return ""


def _dependence(
    case: _Case,
    cache: str,
    ids: Tensor,
    lengths: tuple[Length, ...],
    row: int,
    start: int,
    at: int,
) -> str:
    """Name the tokens that the logits depend on but must not, or must depend on but do not."""
    n = total(lengths)

    def depends(i: int) -> bool:
        return _depends(case, lambda x: read(case, cache, x, lengths), ids, row, i, at)

    def must(i: int) -> bool:
        return _depends(case, case.plain, ids[:, : at + 1], row, i, at)

    for i in range(at + 1, n):
        if depends(i):
            return f"the mask is wrong: the logits of token {at} depend on the later token {i}"
    lost = [i for i in range(at + 1) if not depends(i) and must(i)]
    if not lost:
        return _of_others(case, cache, ids, lengths, row, at)
    names = _spans(lost)
    if lost == [at]:
        return f"the mask is wrong: the logits of token {at} do not depend on the token itself"
    if lost == list(range(start)):
        return f"everything before token {start} is forgotten: the logits ignore {names}"
    return f"the logits of token {at} must depend on {names} but do not"


def _of_others(
    case: _Case, cache: str, ids: Tensor, lengths: tuple[Length, ...], row: int, at: int
) -> str:
    """A message if another row of the batch has an influence; else empty."""
    for other in range(len(ids)):
        if other == row:
            continue
        changed = ids.clone()
        changed[other] = (changed[other] + 1) % case.subject.vocab_size
        before = read(case, cache, ids, lengths)[row : row + 1, at : at + 1]
        after = read(case, cache, changed, lengths)[row : row + 1, at : at + 1]
        if float(case.yard.sizes(after, before).max()) > case.yard.inside:
            return f"row {row} depends on row {other}: texts of the batch are mixed up"
    return ""


def _depends(
    case: _Case, logits: Callable[[Tensor], Tensor], ids: Tensor, row: int, i: int, at: int
) -> bool:
    """Whether changing token i moves the logits of token `at`."""
    changed = ids.clone()
    changed[row, i] = (changed[row, i] + 1) % case.subject.vocab_size
    before = logits(ids)[row : row + 1, at : at + 1]
    after = logits(changed)[row : row + 1, at : at + 1]
    return float(case.yard.sizes(after, before).max()) > case.yard.inside


def _spans(numbers: list[int]) -> str:
    """Token numbers in words: "token 3", or "tokens 0 to 4 and 7"."""
    spans: list[list[int]] = []
    for i in numbers:
        if spans and i == spans[-1][-1] + 1:
            spans[-1].append(i)
        else:
            spans.append([i])
    words = [f"{s[0]} to {s[-1]}" if len(s) > 1 else str(s[0]) for s in spans[:3]]
    more = " and others" if len(spans) > 3 else ""
    return f"token{'s' if len(numbers) > 1 else ''} {' and '.join(words)}{more}"


# ------------------------------------------------------------------ leftovers of an earlier request


def leftover(
    case: _Case,
    cache: str | None,
    before: tuple[Tensor, Sequence[Length]],
    now: tuple[Tensor, Sequence[Length]],
    got: Tensor,
    at: int,
) -> str:
    """A message if something of the previous request is left in the cache; else empty.

    Each request is its tokens, (B, T), and the pieces they are read in. `got` has the wrong logits
    of the second request; the first wrong token is `at`.
    """
    ids = now[0]
    if len(ids) == 1:
        other = before[0][:1]
        for k in range(1, min(at, other.shape[1]) + 1):
            mixed = torch.cat([other[:, :k], ids[:, k : at + 1]], 1)
            if torch.equal(mixed, ids[:, : at + 1]):
                continue
            wanted = case.plain(mixed)[:, -1:]
            if float(case.yard.sizes(got[:, at : at + 1], wanted).max()) <= case.yard.inside:
                return f"its first {k} tokens are still those of the previous request"

    def after(first: Tensor) -> Tensor:
        """The logits of token `at` if the previous request was `first`."""
        vocab_size = case.subject.vocab_size
        case.subject.cached(cut(first, before[1], vocab_size), cache)
        return thinned(case.subject.cached(cut(ids, now[1], vocab_size), cache))[:, at : at + 1]

    usual = after(before[0])
    old = []
    for i in range(min(before[0].shape[1], at + 1)):
        changed = before[0].clone()
        changed[:, i] = (changed[:, i] + 1) % case.subject.vocab_size
        if float(case.yard.sizes(after(changed), usual).max()) > case.yard.inside:
            old.append(i)
    if not old:
        return ""
    return f"rows of the previous request are left in the cache: its {_spans(old)} still count"
