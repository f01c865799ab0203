"""The ways to read a text in pieces, of which none may change the logits; cheap ones first."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

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
        """Its price in tokens: a call costs about as much as eight more of them."""
        tokens = 0
        for length in self.lengths:
            tokens += sum(length) if isinstance(length, tuple) else length
        return self.rows * tokens + 8 * len(self.lengths)


def short_ways(n: int, window: int | None, rewinds: bool, pick: random.Random) -> list[Way]:
    """The ways to read short texts of n tokens."""
    k = n // 2 - 3
    edge = window if window and 2 < window < n - 4 else k
    fill = _Filler(n, pick)
    lengths_by_name = {
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
            lengths_by_name[f"a prompt of {m}, then tokens"] = fill(m, 1, 1, sizes=(m, 1))
    ways = [Way(name, 1, tuple(lengths)) for name, lengths in lengths_by_name.items()]
    if rewinds:
        ways += _rewinds(n, edge)
    batch = fill(n // 2 - 3, 1, 1, 4, 1, 1, 1, n - n // 2 - 6)
    ways.append(Way("three texts in a batch, against each alone", 3, tuple(batch)))
    return ways


def _rewinds(n: int, edge: int) -> list[Way]:
    """Rejected drafts, few and many, in a row, and down to nothing."""
    drafts = {
        "rejected drafts taken back": [4, (1, 2), (2, 1), 1, (0, 3), 2, (edge, 2), (1, 3), 1]
        + [(0, 2), (3, 2)],
        "two rewinds in a row": [5, (2, 2, 1), 1, (edge, 1, 3), 1, (1, 1, 1, 2), 2],
        "a rewind to nothing": [(0, 5), 4, (0, 2), 1, (edge, 3), 2],
        "many rejected drafts": [2, *[(1, 1 + i % 4) for i in range(n - 10)]],
    }
    ways = []
    for name, lengths in drafts.items():
        remaining = n - total(lengths)
        if remaining > 4:
            ways.append(Way(name, 1, (*lengths, *[1] * remaining)))
    return ways + [Way(f"{way.name}, in a batch", 3, way.lengths) for way in ways[:1]]


def long_ways(n: int, edges: list[int], deepest: int, pick: random.Random) -> list[Way]:
    """The ways to read texts of n tokens, past all of these edges."""
    edges = [e for e in edges if 8 < e <= n - 2]
    fill = _Filler(n, pick)
    lengths_by_name = _prompts(n, edges)
    lengths_by_name |= {
        "one prompt, then a token": [n - 1, 1],
        "chunks that end at every edge": _to(n, edges, lambda e: [e]),
        "chunks across every edge": _to(n, edges, lambda e: [e - 3, e + 4]),
        "single tokens across every edge": _to(n, edges, lambda e: [*range(e - 2, e + 3)]),
        f"chunks of 32, to {n}": fill(sizes=(32,)),
        f"random chunks, to {n}": fill(7, sizes=(1, 2, 5, 17, 40)),
        f"chunks of every size, to {n}": _sizes(n, pick),
    }
    for edge in edges:
        lengths_by_name[f"chunks of {edge} after 5 tokens"] = fill(5, sizes=(edge,))
    step = 16 if n < 200 else 64
    prompts = set(range(step, n - 2, step))
    for edge in edges:
        prompts |= {edge - 1, edge + 1}
    lengths_by_name |= _prompts(n, sorted(prompts))
    ways = [Way(name, 1, tuple(lengths)) for name, lengths in lengths_by_name.items() if lengths]
    if deepest:
        ways += _long_rewinds(n, edges, deepest)
    batch = fill(n // 2, 1, 1, sizes=(n // 3,))
    ways.append(Way(f"three texts of {n} in a batch", 3, tuple(batch)))
    ways.append(Way(f"token by token, to {n}", 1, (1,) * n))
    return ways


def _long_rewinds(n: int, edges: list[int], deepest: int) -> list[Way]:
    """Drafts that cross each edge and are taken back behind it."""
    ways = []
    lengths = []
    end = 0
    for edge in edges:
        if end < edge - 2 and edge + 4 <= n:
            # Back to the edge, and around it.
            lengths += [edge - 2 - end, (1, 3), (1, 2), (0, 2, 1), (1, 2)]
            end = edge + 1
    if lengths:
        ways.append(Way("rejected drafts at every edge", 1, (*lengths, n - end)))
    half = n // 2
    if half <= deepest:
        ways.append(Way("half a text taken back, twice", 1, (8, (0, half), 2, (0, half), n - 10)))
    rounds = [(1, 1 + i % 5) for i in range(n - 12)]
    ways.append(Way(f"rejected drafts at every token, to {n}", 1, (3, *rounds, 9)))
    return ways


def _prompts(n: int, lengths: list[int]) -> dict[str, list[int]]:
    """Prompts of these lengths, each with single tokens and pairs behind it."""
    return {f"a prompt of {m}, then tokens": _upto(n, [m, 1, 1, 2, 1, 5]) for m in lengths}


def _sizes(n: int, pick: random.Random) -> list[int]:
    """Chunks of 1, 2, 3 … tokens, each once and in any order, after a prompt; n in all."""
    sizes = []
    remaining = n - 3
    while remaining > len(sizes):
        sizes.append(len(sizes) + 1)
        remaining -= len(sizes)
    pick.shuffle(sizes)
    last = [remaining] if remaining > 0 else []
    return [3, *sizes, *last]


def _to(n: int, edges: list[int], stops) -> list[int]:
    """The lengths of pieces that end at stops(edge) for each edge, and at n."""
    ends = {n}
    for edge in edges:
        ends |= {end for end in stops(edge) if 0 < end < n}
    return [end - start for start, end in pairwise([0, *sorted(ends)])]


def _upto(n: int, lengths: list[int]) -> list[int]:
    """The first of these lengths that fit into n."""
    fitting = []
    for length in lengths:
        if sum(fitting) + length <= n:
            fitting.append(length)
    return fitting


class _Filler:
    """Fills up to n tokens with pieces of these sizes, after the first ones."""

    def __init__(self, n: int, pick: random.Random):
        self.n = n
        self.pick = pick

    def __call__(self, *first: int, sizes=(1,)) -> list[int]:
        lengths = [length for length in _upto(self.n, list(first)) if length > 0]
        remaining = self.n - sum(lengths)
        while remaining > 0:
            length = min(remaining, self.pick.choice(sizes))
            lengths.append(length)
            remaining -= length
        return lengths
