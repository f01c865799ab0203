"""The texts that a model reads under the referee, whole and in pieces."""

from __future__ import annotations

import random

import torch
from torch import Tensor

LENGTH = 40  # tokens of a short text; more where a window asks for it
MIDDLE = 150  # of those between
LONG = 330  # tokens of a long one: past 256, and some more
SPARE = 8  # tokens of drafts, for which a short text leaves room
USUAL = (16, 32, 64, 128, 256)  # tokens at which blocks, pages, tables and buffers end
FARTHEST = 1024  # edges beyond are left only where `length` asks for it
NAMES = ("window", "slots", "capacity", "block", "block_size", "size_of_block", "page")
NAMES += ("page_size", "sliding_window", "chunk_size", "attention_chunk_size", "trained")
NAMES += ("original_max_position_embeddings", "max_cache_len", "sinks", "table")


def edges_of(subject) -> list[int]:
    """The lengths at which something of the model may change: what it names, and the usual ones."""
    named = list(getattr(subject, "edges", ()))
    for holder in (subject, getattr(subject, "config", None)):
        named += [getattr(holder, name, None) for name in NAMES]
    counts = {e for e in named if isinstance(e, int) and not isinstance(e, bool) and e > 2}
    return sorted(counts | set(USUAL))


def length_of(subject) -> int:
    """Tokens of a short text: past the window, where that is not too long."""
    window = subject.window or 0
    reached = window if window <= 256 else 0
    return min(max(LENGTH, 2 * reached + 9), subject.longest or 10**9)


def lengths_of(subject, length: int | None = None) -> list[int]:
    """Tokens of the texts to read, short ones first: past every edge, as far as the model goes."""
    short, most = length_of(subject), subject.longest or 10**9
    edges = [e for e in edges_of(subject) if e <= FARTHEST]
    long = length or max(LONG, edges[-1] + 40)
    if not length and short < 2 * (subject.window or 0) <= 2 * FARTHEST:
        long = max(long, 2 * subject.window + 9)
    ends = [min(short, length or short)]
    ends += [min(n, most, long) for n in (MIDDLE, long)]
    return sorted({n for n in ends if n >= ends[0]})


def text(subject, batch: int = 3, seed: int = 0, length: int | None = None) -> Tensor:
    """Texts in which phrases come back, as A B A does: mere repetition hides bugs.  (B, T)"""
    pick, n = random.Random(seed), length or length_of(subject)
    low = 3 if subject.vocab_size > 30 else 0  # a large vocabulary begins with special tokens
    rows = []
    for _ in range(batch):
        phrases = [[pick.randrange(low, subject.vocab_size) for _ in range(5)] for _ in "AB"]
        rows.append(row := [])
        while len(row) < n:
            row += pick.choice(phrases) + [pick.randrange(low, subject.vocab_size)]
    return torch.tensor([row[:n] for row in rows])


def cut(ids: Tensor, lengths: list, vocab_size: int) -> list:
    """Pieces of these lengths; (2, 3) is a piece of 2 tokens and 3 others that are taken back.

    (2, 3, 1) is one with 4 others, which are taken back 1 and 3 at a time.
    """
    pieces, start = [], 0
    for n in lengths:
        n, *wrong = n if isinstance(n, tuple) else (n,)
        piece, start = ids[:, start : start + n], start + n
        if wrong:
            first = ids[:, min(start, ids.shape[1] - 1)][:, None]
            others = (first + 1 + torch.arange(sum(wrong))) % vocab_size
            piece = torch.cat([piece, others], dim=1)
        pieces += [piece, *reversed(wrong)]
    return pieces


def total(lengths: list) -> int:
    """The tokens that are kept of pieces of these lengths."""
    return sum(n[0] if isinstance(n, tuple) else n for n in lengths)


def high_water(pieces: list) -> int:
    """The most tokens that a cache holds while these pieces are read."""
    held = most = 0
    for piece in pieces:
        held += -piece if isinstance(piece, int) else piece.shape[1]
        most = max(most, held)
    return most
