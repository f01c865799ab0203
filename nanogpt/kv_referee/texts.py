"""The texts that the referee has a model read, whole and in pieces."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

LENGTH = 40  # tokens of a short text; more if a window needs it
MIDDLE = 150  # tokens of a medium text
LONG = 330  # tokens of a long text: well past 256
USUAL = (16, 32, 64, 128, 256)  # tokens at which blocks, pages, tables and buffers often end
LIMIT = 1024  # most tokens of a text that is read to reach a model's own limit
FARTHEST = 1024  # edges beyond this are passed only if `length` asks for it
NAMES = (
    *("window", "slots", "capacity", "block", "block_size", "size_of_block", "page"),
    *("page_size", "sliding_window", "chunk_size", "attention_chunk_size", "trained"),
    *("original_max_position_embeddings", "max_cache_len", "sinks", "table"),
)
# The length of a piece; (2, 3, 1) has 2 tokens and 4 wrong ones, taken back 1 and 3 at a time.
Length = int | tuple[int, ...]


class Readable(Protocol):
    """What texts are made for: a Subject, or anything with these attributes."""

    vocab_size: int
    longest: int | None
    window: int | None


def edges_of(subject: Readable) -> list[int]:
    """The lengths at which something of the model may change: its own, and the usual ones."""
    named = list(getattr(subject, "edges", ()))
    for holder in (subject, getattr(subject, "config", None)):
        named += [getattr(holder, name, None) for name in NAMES]
    counts = {e for e in named if isinstance(e, int) and not isinstance(e, bool) and e > 2}
    return sorted(counts | set(USUAL))


def length_of(subject: Readable) -> int:
    """The length of a short text: past the window, if that is not too long."""
    window = subject.window or 0
    reached = window if window <= 256 else 0
    return min(max(LENGTH, 2 * reached + 9), subject.longest or 10**9)


def lengths_of(subject: Readable, length: int | None = None) -> list[int]:
    """The lengths of the texts to read, shortest first: past every edge that the model reaches."""
    short = length_of(subject)
    most = subject.longest or 10**9
    edges = [e for e in edges_of(subject) if e <= FARTHEST]
    long = length or max(LONG, edges[-1] + 40)
    window = subject.window or 0
    if not length and short < 2 * window <= 2 * FARTHEST:
        long = max(long, 2 * window + 9)
    ends = [min(short, length or short)]
    ends += [min(n, most, long) for n in (MIDDLE, long)]
    return sorted({n for n in ends if n >= ends[0]})


def limit_of(subject: Readable, lengths: list[int]) -> int | None:
    """The model's own limit, if these texts are shorter and it is not too far; else None."""
    most = subject.longest or 0
    return most if lengths[-1] < most <= LIMIT else None


def text(subject: Readable, batch: int = 3, seed: int = 0, length: int | None = None) -> Tensor:
    """Texts in which phrases recur, as in A B A: mere repetition hides bugs.  (B, T)"""
    pick = random.Random(seed)
    n = length or length_of(subject)
    low = 3 if subject.vocab_size > 30 else 0  # a large vocabulary begins with special tokens

    def tokens(count: int) -> list[int]:
        return [pick.randrange(low, subject.vocab_size) for _ in range(count)]

    rows = []
    for _ in range(batch):
        phrases = [tokens(5), tokens(5)]
        row: list[int] = []
        while len(row) < n:
            row += pick.choice(phrases)
            row += tokens(1)
        rows.append(row[:n])
    return torch.tensor(rows)


def cut(ids: Tensor, lengths: Sequence[Length], vocab_size: int) -> list[Tensor | int]:
    """Cut texts into pieces of these lengths; (2, 3) has 2 tokens and 3 wrong ones, taken back.

    (2, 3, 1) has 4 wrong ones, which are taken back 1 and 3 at a time.
    """
    pieces: list[Tensor | int] = []
    start = 0
    for length in lengths:
        n, *rewinds = length if isinstance(length, tuple) else (length,)
        piece = ids[:, start : start + n]
        start += n
        if rewinds:
            # Wrong tokens: each differs from the text's token there.
            first = ids[:, min(start, ids.shape[1] - 1)][:, None]
            others = (first + 1 + torch.arange(sum(rewinds))) % vocab_size
            piece = torch.cat([piece, others], dim=1)
        pieces.append(piece)
        pieces += reversed(rewinds)
    return pieces


def total(lengths: Iterable[Length]) -> int:
    """The number of tokens that are kept of pieces of these lengths."""
    count = 0
    for length in lengths:
        count += length[0] if isinstance(length, tuple) else length
    return count


def high_water(pieces: Iterable[Tensor | int]) -> int:
    """The most tokens that a cache holds while these pieces are read."""
    level = 0
    highest = 0
    for piece in pieces:
        level += -piece if isinstance(piece, int) else piece.shape[1]
        highest = max(highest, level)
    return highest
