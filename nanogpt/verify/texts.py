"""The texts that a referee lets a model read, and the ways to cut them into pieces."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from .subjects import LONGEST_WINDOW, Subject

LENGTH = 40  # tokens of a text; more where a window asks for it


def text(subject: Subject, batch: int = 3, seed: int = 0) -> Tensor:
    """Texts in which phrases come back, as A B A does: mere repetition hides bugs.  (B, T)"""
    pick, n = random.Random(seed), length_of(subject)
    low = 3 if subject.vocab_size > 30 else 0  # a large vocabulary begins with special tokens
    rows = []
    for _ in range(batch):
        phrases, row = (
            [[pick.randrange(low, subject.vocab_size) for _ in range(5)] for _ in "AB"],
            [],
        )
        while len(row) < n:
            row += pick.choice(phrases) + [pick.randrange(low, subject.vocab_size)]
        rows.append(row[:n])
    return torch.tensor(rows)


def length_of(subject: Subject) -> int:
    """Tokens of a text: past the window, where it is not too long, and within the model's end."""
    reached = subject.window if subject.window and subject.window <= LONGEST_WINDOW else 0
    return min(max(LENGTH, 2 * reached + 9), subject.longest or 10**9)


def cut(ids: Tensor, lengths: list, vocab_size: int) -> list:
    """Pieces of these lengths; (2, 3) is a piece of 2 tokens and 3 others that are taken back."""
    pieces, start = [], 0
    for n in lengths:
        n, wrong = n if isinstance(n, tuple) else (n, 0)
        piece, start = ids[:, start : start + n], start + n
        if wrong:
            others = (ids[:, start : start + 1] + 1 + torch.arange(wrong)) % vocab_size
            piece = torch.cat([piece, others], dim=1)
        pieces += [piece, wrong] if wrong else [piece]
    return pieces


def plans(n: int, window: int | None, rewinds: bool, pick: random.Random) -> dict[str, list]:
    """The ways to read n tokens, as lengths of pieces."""
    k = n // 2 - 3

    def rest(*first: int, sizes=(1,)) -> list[int]:
        lengths = list(first)
        while (left := n - sum(lengths)) > 0:
            lengths.append(min(left, pick.choice(sizes)))
        return lengths

    edge = window if window and 2 < window < n - 4 else k
    ways = {
        f"a prompt of {k}, then token by token": rest(k),
        "a prompt of 1, then 15 tokens": [1] * 16,
        "a prompt of 2, then 8 tokens": [2] + [1] * 8,
        "random chunks": rest(sizes=(2, 3, 4, 5)),
        "chunks after a prompt": rest(k, sizes=(1, 2, 3, 7)),
        "chunks around the window's edge": rest(edge - 1, 2, 1, sizes=(4,)),
        "a prompt past the edge": rest(edge + 2, sizes=(edge // 2 + 1, 2)),
    }
    if rewinds:
        drafts = [4, (1, 2), (2, 1), 1, (0, 3), 2, (edge, 2), (1, 3), 1, (0, 2), (3, 2)]
        used = sum(x[0] if isinstance(x, tuple) else x for x in drafts)
        if used < n:
            ways["rejected drafts taken back"] = drafts + [1] * (n - used)
    return ways
