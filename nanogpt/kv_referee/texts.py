"""The texts that the referee has a model read: how long they are, and what is in them."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

LEAST = 16  # tokens: the scenarios need as many
BRIEF = 24  # tokens of the first texts, whose scenarios are one of each kind
SHORT = 40  # tokens of a short text; more if a window needs it
LONG = 330  # tokens of a long text: well past 256
USUAL = (16, 32, 64, 128, 256)  # tokens at which blocks, pages, tables and buffers often end
FARTHEST = 1024  # edges beyond this are passed only if the adapter declares them
LIMIT = 1024  # most tokens of a text that is read to reach a model's own limit
NAMES = (
    *("window", "slots", "capacity", "block", "block_size", "size_of_block", "page"),
    *("page_size", "sliding_window", "chunk_size", "attention_chunk_size", "trained"),
    *("original_max_position_embeddings", "max_cache_len", "sinks", "table"),
)


def edges_of(given: Any) -> list[int]:
    """The lengths at which something of a model may change: its own, and the usual ones."""
    named = list(getattr(given, "edges", ()))
    for holder in (given, getattr(given, "config", None)):
        found = [getattr(holder, name, None) for name in NAMES]
        named += [e for e in found if isinstance(e, int) and e <= FARTHEST]
    counts = {e for e in named if isinstance(e, int) and not isinstance(e, bool) and e > 2}
    return sorted(counts | set(USUAL))


def lengths_of(edges: list[int], longest: int | None, window: int | None) -> list[int]:
    """The lengths of the texts to read, shortest first: past every edge that the model reaches.

    They depend on what the model is and declares alone, so two runs read the same texts.
    """
    most = longest or 10**9
    # 1. Short texts go past a window, if that is not too far.
    reached = window if window and window <= 256 else 0
    short = max(SHORT, 2 * reached + 9)
    # 2. Long ones go past all edges, and twice around a window.
    long = max(LONG, edges[-1] + 40)
    if window and short < 2 * window <= 2 * FARTHEST:
        long = max(long, 2 * window + 9)
    return sorted({min(n, most) for n in (short, long)})


def limit_of(longest: int | None, lengths: list[int]) -> int | None:
    """The model's own limit, if these texts are shorter and it is not too far; else None."""
    most = longest or 0
    return most if lengths[-1] < most <= LIMIT else None


def text(
    vocab_size: int, batch: int = 3, seed: int = 0, length: int = SHORT, distinct: bool = False
) -> Tensor:
    """Texts in which phrases recur, as in A B A: mere repetition hides bugs.  (B, T)

    `distinct` texts repeat no token, if the vocabulary has twice as many. Each of their columns has
    two tokens of its own, so a text that goes on as another row repeats none either.
    """
    pick = random.Random(seed)
    low = 3 if vocab_size > 30 else 0  # a large vocabulary begins with special tokens
    if distinct:
        low = 3 if vocab_size >= 2 * length + 3 else 0
        tokens_of = pick.sample(range(low, vocab_size), 2 * length)
        pairs = [tokens_of[2 * i : 2 * i + 2] for i in range(length)]
        first = [[pair[0] for pair in pairs], [pair[1] for pair in pairs]]
        others = [[pick.choice(pair) for pair in pairs] for _ in range(batch - 2)]
        return torch.tensor([*first, *others][:batch])

    def tokens(count: int) -> list[int]:
        return [pick.randrange(low, vocab_size) for _ in range(count)]

    rows = []
    for _ in range(batch):
        phrases = [tokens(5), tokens(5)]
        row: list[int] = []
        while len(row) < length:
            row += pick.choice(phrases)
            row += tokens(1)
        rows.append(row[:length])
    return torch.tensor(rows)
