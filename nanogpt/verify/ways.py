"""The ways to read a text in pieces, of which none may matter; cheap ones first."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .texts import total

CORE = ("a prompt of 2, then 8", "chunks after a prompt", "random chunks", "rejected drafts taken")
CORE += ("three texts", "one prompt, then", "single tokens across", "chunks across every edge")
CORE += ("rejected drafts at every edge",)


@dataclass(frozen=True)
class Way:
    """A way to read `rows` texts: the lengths of pieces, as `cut` takes them."""

    name: str
    rows: int
    lengths: tuple

    @property
    def core(self) -> bool:
        """Whether it is one of the few with which a large model begins."""
        return self.name.startswith(CORE)

    @property
    def cost(self) -> int:
        """What it takes, in tokens: a call costs about as much as eight more of them."""
        tokens = sum(sum(n) if isinstance(n, tuple) else n for n in self.lengths)
        return self.rows * tokens + 8 * len(self.lengths)


def short_ways(n: int, window: int | None, rewinds: bool, pick: random.Random) -> list[Way]:
    """The ways to read short texts of n tokens."""
    k = n // 2 - 3
    edge = window if window and 2 < window < n - 4 else k
    fill = _Filler(n, pick)
    ways = {
        "a prompt of 2, then 8 tokens": [2] + [1] * 8,
        "a prompt of 1, then 15 tokens": [1] * 16,
        "chunks around the window's edge": fill(edge - 1, 2, 1, sizes=(4,)),
        "a prompt past the edge": fill(edge + 2, sizes=(edge // 2 + 1, 2)),
        f"chunks of {edge} after 3 tokens": fill(3, sizes=(edge,)),
        "chunks after a prompt": fill(k, sizes=(1, 2, 3, 7)),
        "random chunks": fill(sizes=(2, 3, 4, 5)),
        f"a prompt of {k}, then token by token": fill(k),
        "chunks of every size": _sizes(n, pick),
    }
    for m in (16, 32):
        if m + 4 <= n:
            ways[f"a prompt of {m}, then tokens"] = fill(m, 1, 1, sizes=(m, 1))
    found = [Way(name, 1, tuple(lengths)) for name, lengths in ways.items()]
    if rewinds:
        found += _rewinds(n, edge)
    batch = fill(n // 2 - 3, 1, 1, 4, 1, 1, 1, n - n // 2 - 6)
    return [*found, Way("three texts in a batch, against each alone", 3, tuple(batch))]


def _rewinds(n: int, edge: int) -> list[Way]:
    """Rejected drafts, few and many, in a row, and down to nothing."""
    drafts = {
        "rejected drafts taken back": [4, (1, 2), (2, 1), 1, (0, 3), 2, (edge, 2), (1, 3), 1]
        + [(0, 2), (3, 2)],
        "two rewinds in a row": [5, (2, 2, 1), 1, (edge, 1, 3), 1, (1, 1, 1, 2), 2],
        "a rewind to nothing": [(0, 5), 4, (0, 2), 1, (edge, 3), 2],
        "many rejected drafts": [2, *[(1, 1 + i % 4) for i in range(n - 10)]],
    }
    found = []
    for name, lengths in drafts.items():
        left = n - total(lengths)
        if left > 4:
            found.append(Way(name, 1, (*lengths, *[1] * left)))
    return found + [Way(f"{way.name}, in a batch", 3, way.lengths) for way in found[:1]]


def long_ways(n: int, edges: list[int], deepest: int, pick: random.Random) -> list[Way]:
    """The ways to read texts of n tokens, past all of these edges."""
    edges = [e for e in edges if 8 < e <= n - 2]
    fill = _Filler(n, pick)
    ways = _prompts(n, edges)
    ways |= {
        "one prompt, then a token": [n - 1, 1],
        "chunks that end at every edge": _to(n, edges, lambda e: [e]),
        "chunks across every edge": _to(n, edges, lambda e: [e - 3, e + 4]),
        "single tokens across every edge": _to(n, edges, lambda e: [*range(e - 2, e + 3)]),
        f"chunks of 32, to {n}": fill(sizes=(32,)),
        f"random chunks, to {n}": fill(7, sizes=(1, 2, 5, 17, 40)),
        f"chunks of every size, to {n}": _sizes(n, pick),
    }
    for e in edges:
        ways[f"chunks of {e} after 5 tokens"] = fill(5, sizes=(e,))
    step = 16 if n < 200 else 64
    multiples = range(step, n - 2, step)
    around = {e + d for e in edges for d in (-1, 1)}
    ways |= _prompts(n, sorted({*multiples, *around}))
    found = [Way(name, 1, tuple(lengths)) for name, lengths in ways.items() if lengths]
    if deepest:
        found += _long_rewinds(n, edges, deepest)
    found.append(
        Way(f"three texts of {n} in a batch", 3, tuple(fill(n // 2, 1, 1, sizes=(n // 3,))))
    )
    found.append(Way(f"token by token, to {n}", 1, tuple([1] * n)))
    return found


def _long_rewinds(n: int, edges: list[int], deepest: int) -> list[Way]:
    """Drafts that cross each edge and are taken back behind it."""
    lengths, at = [], 0
    for e in edges:
        if at < e - 2 and e + 4 <= n:
            lengths += [e - 2 - at, (1, 3), (1, 2), (0, 2, 1), (1, 2)]  # back to e, and around it
            at = e + 1
    found = [Way("rejected drafts at every edge", 1, (*lengths, n - at))] if lengths else []
    if (deep := n // 2) <= deepest:
        found.append(Way("half a text taken back, twice", 1, (8, (0, deep), 2, (0, deep), n - 10)))
    rounds = [(1, 1 + i % 5) for i in range(n - 12)]
    return [*found, Way(f"rejected drafts at every token, to {n}", 1, (3, *rounds, 9))]


def _prompts(n: int, lengths: list[int]) -> dict[str, list[int]]:
    """Prompts of these lengths, each with single tokens and pairs behind it."""
    return {f"a prompt of {m}, then tokens": _upto(n, [m, 1, 1, 2, 1, 5]) for m in lengths}


def _sizes(n: int, pick: random.Random) -> list[int]:
    """Chunks of 1, 2, 3 … tokens, each once and in any order, after a prompt; n in all."""
    sizes, left = [], n - 3
    while left > len(sizes):
        sizes.append(len(sizes) + 1)
        left -= len(sizes)
    pick.shuffle(sizes)
    return [3, *sizes, *[left] * (left > 0)]


def _to(n: int, edges: list[int], stops) -> list[int]:
    """The lengths of pieces that end at stops(e) for each edge, and at n."""
    ends = sorted({end for e in edges for end in stops(e) if 0 < end < n} | {n})
    return [b - a for a, b in zip([0, *ends], ends, strict=False)]


def _upto(n: int, lengths: list[int]) -> list[int]:
    """The first of these lengths that fit into n."""
    kept = []
    for length in lengths:
        if sum(kept) + length <= n:
            kept.append(length)
    return kept


class _Filler:
    """Fills up to n tokens with pieces of these sizes, after the first ones."""

    def __init__(self, n: int, pick: random.Random):
        self.n, self.pick = n, pick

    def __call__(self, *first: int, sizes=(1,)) -> list[int]:
        lengths = [one for one in _upto(self.n, list(first)) if one > 0]
        while (left := self.n - sum(lengths)) > 0:
            lengths.append(min(left, self.pick.choice(sizes)))
        return lengths
