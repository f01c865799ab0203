"""Decoding paths: how to read a text in pieces. None may change the logits; cheap ones first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .programs import Length


@dataclass(frozen=True)
class DecodingPath:
    """One way to read `rows` texts: the lengths of pieces, as `in_pieces` takes them.

    `core` marks the few that come first, with short texts and with long ones.
    """

    name: str
    rows: int
    lengths: tuple[Length, ...]
    core: bool = False


def short_ways(
    n: int, window: int | None, rewinds: bool, pick: random.Random
) -> list[DecodingPath]:
    """The decoding paths for short texts of n tokens."""
    k = n // 2 - 3
    edge = window if window and 2 < window < n - 4 else k
    fill = _Filler(n, pick)
    paths = [
        _path("a prompt of 2, then 8 tokens", [2] + [1] * 8, core=True),
        _path("a prompt of 1, then 15 tokens", [1] * 16),
        _path("chunks around the window's edge", fill(edge - 1, 2, 1, sizes=(4,))),
        _path("a prompt past the edge", fill(edge + 2, sizes=(edge // 2 + 1, 2))),
        _path(f"chunks of {edge} after 3 tokens", fill(3, sizes=(edge,))),
        _path("chunks after a prompt", fill(k, sizes=(1, 2, 3, 7)), core=True),
        _path("random chunks", fill(sizes=(2, 3, 4, 5)), core=True),
        _path(f"a prompt of {k}, then token by token", fill(k)),
        _path("chunks of every size", _sizes(n, pick)),
    ]
    for m in (16, 32):
        if m + 4 <= n:
            paths.append(_path(f"a prompt of {m}, then tokens", fill(m, 1, 1, sizes=(m, 1))))
    if rewinds:
        paths += _rewinds(n, edge)
    batch = fill(n // 2 - 3, 1, 1, 4, 1, 1, 1, n - n // 2 - 6)
    paths.append(_path("three texts in a batch, against each alone", batch, rows=3, core=True))
    return paths


def _path(name: str, lengths: Sequence[Length], rows: int = 1, core: bool = False) -> DecodingPath:
    return DecodingPath(name, rows, tuple(lengths), core)


def _rewinds(n: int, edge: int) -> list[DecodingPath]:
    """Rejected drafts: few, many, several in a row, and back to an empty cache."""
    few: list[Length] = [4, (1, 2), (2, 1), 1, (0, 3), 2, (edge, 2), (1, 3), 1, (0, 2), (3, 2)]
    twice: list[Length] = [5, (2, 2, 1), 1, (edge, 1, 3), 1, (1, 1, 1, 2), 2]
    to_nothing: list[Length] = [(0, 5), 4, (0, 2), 1, (edge, 3), 2]
    many: list[Length] = [2, *((1, 1 + i % 4) for i in range(n - 10))]
    paths = [
        _path("rejected drafts taken back", few, core=True),
        _path("two rewinds in a row", twice),
        _path("a rewind to nothing", to_nothing),
        _path("many rejected drafts", many),
    ]
    whole = []
    for path in paths:
        remaining = n - total(path.lengths)
        if remaining > 4:
            whole.append(replace(path, lengths=path.lengths + (1,) * remaining))
    if whole:
        whole.append(replace(whole[0], name=f"{whole[0].name}, in a batch", rows=3))
    return whole


def long_ways(n: int, edges: list[int], deepest: int, pick: random.Random) -> list[DecodingPath]:
    """The decoding paths for texts of n tokens, past all of these edges."""
    edges = [e for e in edges if 8 < e <= n - 2]
    fill = _Filler(n, pick)
    across = _to(n, edges, lambda e: [e - 3, e + 4])
    tokens = _to(n, edges, lambda e: range(e - 2, e + 3))
    paths = [
        *_prompts(n, edges),
        _path("one prompt, then a token", [n - 1, 1], core=True),
        _path("chunks that end at every edge", _to(n, edges, lambda e: [e])),
        _path("chunks across every edge", across, core=True),
        _path("single tokens across every edge", tokens, core=True),
        _path(f"chunks of 32, to {n}", fill(sizes=(32,))),
        _path(f"random chunks, to {n}", fill(7, sizes=(1, 2, 5, 17, 40)), core=True),
        _path(f"chunks of every size, to {n}", _sizes(n, pick)),
    ]
    for edge in edges:
        paths.append(_path(f"chunks of {edge} after 5 tokens", fill(5, sizes=(edge,))))
    step = 16 if n < 200 else 64
    prompts = set(range(step, n - 2, step))
    for edge in edges:
        prompts |= {edge - 1, edge + 1}
    paths += _prompts(n, sorted(prompts - set(edges)))
    if deepest:
        paths += _long_rewinds(n, edges, deepest)
    batch = fill(n // 2, 1, 1, sizes=(n // 3,))
    paths.append(_path(f"three texts of {n} in a batch", batch, rows=3, core=True))
    paths.append(_path(f"token by token, to {n}", [1] * n))
    return paths


def _long_rewinds(n: int, edges: list[int], deepest: int) -> list[DecodingPath]:
    """Drafts that cross each edge and are taken back across it."""
    paths = []
    lengths: list[Length] = []
    end = 0
    for edge in edges:
        if end < edge - 2 and edge + 4 <= n:
            # Back to the edge, and around it.
            lengths += [edge - 2 - end, (1, 3), (1, 2), (0, 2, 1), (1, 2)]
            end = edge + 1
    if lengths:
        paths.append(_path("rejected drafts at every edge", [*lengths, n - end], core=True))
    half = n // 2
    if half <= deepest:
        twice: list[Length] = [8, (0, half), 2, (0, half), n - 10]
        paths.append(_path("half a text taken back, twice", twice))
    rounds = [(1, 1 + i % 5) for i in range(n - 12)]
    paths.append(_path(f"rejected drafts at every token, to {n}", [3, *rounds, 9]))
    return paths


def _prompts(n: int, lengths: list[int]) -> list[DecodingPath]:
    """Prompts of these lengths, each followed by single tokens and pairs."""
    tails = {m: _upto(n, [m, 1, 1, 2, 1, 5]) for m in lengths}
    return [_path(f"a prompt of {m}, then tokens", tail) for m, tail in tails.items() if tail]


def _sizes(n: int, pick: random.Random) -> list[int]:
    """Chunks of 1, 2, 3 … tokens, each size once in random order, after a prompt; n in total."""
    sizes: list[int] = []
    remaining = n - 3
    while remaining > len(sizes):
        sizes.append(len(sizes) + 1)
        remaining -= len(sizes)
    pick.shuffle(sizes)
    last = [remaining] if remaining > 0 else []
    return [3, *sizes, *last]


def _to(n: int, edges: list[int], stops: Callable[[int], Iterable[int]]) -> list[int]:
    """The lengths of pieces that end at stops(edge) for each edge, and at n."""
    ends = {n}
    for edge in edges:
        ends |= {end for end in stops(edge) if 0 < end < n}
    return [end - start for start, end in pairwise([0, *sorted(ends)])]


def _upto(n: int, lengths: list[int]) -> list[int]:
    """The first of these lengths that fit into n."""
    fitting: list[int] = []
    for length in lengths:
        if sum(fitting) + length <= n:
            fitting.append(length)
    return fitting


class _Filler:
    """Fills up to n tokens: the first pieces as given, then pieces of these sizes."""

    def __init__(self, n: int, pick: random.Random):
        self.n = n
        self.pick = pick

    def __call__(self, *first: int, sizes: Sequence[int] = (1,)) -> list[int]:
        lengths = [length for length in _upto(self.n, list(first)) if length > 0]
        remaining = self.n - sum(lengths)
        while remaining > 0:
            length = min(remaining, self.pick.choice(sizes))
            lengths.append(length)
            remaining -= length
        return lengths


def total(lengths: Iterable[Length]) -> int:
    """The number of tokens that are kept of pieces of these lengths."""
    count = 0
    for length in lengths:
        count += length[0] if isinstance(length, tuple) else length
    return count


def fitted(lengths: Iterable[Length], shortest: int) -> list[Length]:
    """The same pieces for a model whose prompts need this many tokens: the first ones are joined.

    Drafts among them are left out.
    """
    if shortest <= 1:
        return list(lengths)
    head = 0
    rest: list[Length] = []
    for length in lengths:
        if rest or head >= shortest:
            rest.append(length)
        else:
            head += length[0] if isinstance(length, tuple) else length
    return [head, *rest] if head else rest
