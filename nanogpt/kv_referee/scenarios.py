"""What is tried, in a fixed order: one brief scenario of each kind, then longer texts.

No scenario may change the logits of a text: nor may the pieces in which it is read, other requests,
other sessions, or its neighbours in a batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .contract import Model
from .padding import Padding, left_padding, right_padding
from .programs import (
    Fork,
    Keep,
    Length,
    Program,
    ProgramStep,
    Read,
    Reorder,
    by_turns,
    fitted,
    ids_of,
    in_pieces,
    in_single_tokens,
    kept,
)
from .report import ScenarioKind
from .texts import BRIEF


@dataclass(frozen=True)
class Scenario:
    """Something to try with one cache: a program, or a padded batch."""

    kind: ScenarioKind
    name: str
    cache: str
    program: Program = ()
    padding: Padding | None = None

    def __str__(self) -> str:
        return self.name if self.padding else f"{self.cache}, {self.name}"


@dataclass(frozen=True)
class Material:
    """The texts of one length, and what the scenarios need to know of the model."""

    model: Model
    cache: str
    seed: int
    ids: Tensor  # (3, n)
    edges: Sequence[int] = ()  # lengths below n at which something may change

    @property
    def n(self) -> int:
        return self.ids.shape[1]

    def pieces(self, texts: Tensor, lengths: Iterable[Length], session: str = "a") -> Program:
        """Read these texts in pieces, the first as long as the model needs it.  (B, T)"""
        whole = fitted(lengths, self.model.limits.shortest)
        return in_pieces(texts, whole, self.model.vocab_size, session)

    def scenario(self, kind: ScenarioKind, name: str, program: Iterable[ProgramStep]) -> Scenario:
        steps = tuple(program)
        steps = steps if self.model.limits.chunks else in_single_tokens(steps)
        return Scenario(kind, name, self.cache, steps)


def brief(model: Model, cache: str, seed: int) -> list[Scenario]:
    """One cheap scenario of each kind; with the default cache also padding, which has no other."""
    n = min(BRIEF, model.limits.longest or BRIEF)
    m = Material(model, cache, seed, model.text(3, seed, n))
    a = m.ids[:1]
    half = n // 2
    named = m.scenario
    drafts: list[Length] = [4, (1, 2), (2, 1), 1, (0, 3), 2, (2, 1), *[1] * (n - 12)]
    usual = [
        named(
            ScenarioKind.PREFILL,
            f"a prompt of {half}, then single tokens to {n}",
            m.pieces(a, [half, *[1] * (n - half)]),
        ),
        named(
            ScenarioKind.CHUNKS,
            f"pieces of 5, 1, 2, 3 and {n - 11} tokens",
            m.pieces(a, [5, 1, 2, 3, n - 11]),
        ),
        named(
            ScenarioKind.REWIND,
            f"rejected drafts taken back, in {n} tokens",
            m.pieces(a, drafts),
        ),
        named(
            ScenarioKind.BATCH,
            f"three texts of {n} in a batch, against each alone",
            m.pieces(m.ids, [half, 1, 1, 2, n - half - 4]),
        ),
        _parting(m, [n // 3]),
        _twins(m),
        _fork(m),
        _beams(m),
        _leaving(m),
        named(ScenarioKind.FIRST, f"the first requests of a new object, of {n} tokens", _first(m)),
        named(ScenarioKind.THREADS, f"two sessions of {n} tokens in two threads", _threads(m)),
    ]
    if model.rewinds is False:
        usual = [one for one in usual if one.kind is not ScenarioKind.REWIND]
    if cache == model.caches[0]:
        usual.append(_padded(m, left_padding(m.ids, n)))
    return usual


# ------------------------------------------------------------------ longer texts


def pieces_of(m: Material) -> list[Scenario]:
    """One text in pieces, and three in a batch: what comes first with texts of each length."""
    n = m.n
    a = m.ids[:1]
    pick = random.Random(m.seed + n)
    ends = _ending_at(m, lambda edge: [edge])
    across = _ending_at(m, lambda edge: [edge - 3, edge + 4])
    tokens = _ending_at(m, lambda edge: range(edge - 2, edge + 3))
    batch = [n // 2, 1, 1, 4, 1, n - n // 2 - 7]
    return [
        m.scenario(ScenarioKind.CHUNKS, f"pieces across each edge, to {n}", m.pieces(a, across)),
        m.scenario(ScenarioKind.CHUNKS, f"pieces that end at each edge, to {n}", m.pieces(a, ends)),
        m.scenario(
            ScenarioKind.CHUNKS, f"single tokens across each edge, to {n}", m.pieces(a, tokens)
        ),
        m.scenario(
            ScenarioKind.CHUNKS, f"pieces of random lengths, to {n}", m.pieces(a, _random(n, pick))
        ),
        m.scenario(ScenarioKind.PREFILL, f"token by token, to {n}", m.pieces(a, [1] * n)),
        m.scenario(ScenarioKind.BATCH, f"three texts of {n} in a batch", m.pieces(m.ids, batch)),
    ]


def others_of(m: Material) -> list[Scenario]:
    """Everything else with texts of this length: drafts, requests, sessions, batches, padding."""
    n = m.n
    points = {1, n // 3, n - 6}
    for edge in m.edges:
        points |= {edge - 1, edge, edge + 1}
    ordered = sorted(p for p in points if 0 < p < n - 4)
    found = [_drafts(m)] if m.model.rewinds is not False else []
    found += [_parting(m, ordered[i : i + 4]) for i in range(0, len(ordered), 4)]
    found += [_twins(m), _fork(m), _beams(m), _leaving(m)]
    if m.cache == m.model.caches[0]:
        found += [_padded(m, left_padding(m.ids, n)), _padded(m, right_padding(m.ids))]
    return found


def _ending_at(m: Material, stops: Callable[[int], Iterable[int]]) -> list[int]:
    """The lengths of pieces that end at stops(edge) for each edge, and at n."""
    ends = {m.n}
    for edge in m.edges:
        ends |= {end for end in stops(edge) if 0 < end < m.n}
    return [end - start for start, end in pairwise([0, *sorted(ends)])]


def _random(n: int, pick: random.Random) -> list[int]:
    """Random lengths of pieces, n in total."""
    lengths = [min(3, n)]
    while remaining := n - sum(lengths):
        lengths.append(min(remaining, pick.choice((1, 2, 3, 5, 8, 13, 40))))
    return lengths


def _drafts(m: Material) -> Scenario:
    """Rejected drafts, back to nothing and around each edge."""
    lengths: list[Length] = [(0, 5), 3]
    for edge in m.edges:
        if kept(lengths) < edge - 2 and edge + 4 <= m.n:
            # Back to the edge, and around it.
            lengths += [edge - 2 - kept(lengths), (1, 3), (1, 2), (0, 2), (1, 2)]
    lengths.append(m.n - kept(lengths))
    name = f"rejected drafts around each edge, to {m.n}"
    return m.scenario(ScenarioKind.REWIND, name, m.pieces(m.ids[:1], lengths))


def _padded(m: Material, padding: Padding) -> Scenario:
    return Scenario(ScenarioKind.PADDING, padding.name, m.cache, padding=padding)


# ------------------------------------------------------------------ requests


_Request = tuple[Tensor, list[int]]  # a text, (1, T), and the pieces in which it is read


def _in_turn(m: Material, requests: dict[str, _Request]) -> Program:
    """Requests one after the other, each in a session of its own.  (B, T) and its pieces"""
    steps: list[ProgramStep] = []
    for name, (texts, lengths) in requests.items():
        steps += m.pieces(texts, lengths, name)
    return tuple(steps)


def _joined(m: Material, point: int) -> Tensor:
    """A text that begins as the first one does, and leaves it after this many tokens.  (1, n)"""
    return torch.cat([m.ids[:1, :point], m.ids[1:2, point:]], dim=1)


def _first(m: Material) -> Program:
    """A, one that begins as A does, and A again: what a new object is asked first."""
    n = m.n
    a = m.ids[:1]
    other = _joined(m, n // 2)
    pieces = [n - 4, 1, 1, 2]
    requests = {"A": (a, pieces), "one that begins as A does": (other, pieces)}
    return _in_turn(m, requests | {"A again": (a, [n - 3, 1, 2])})


def _parting(m: Material, points: list[int]) -> Scenario:
    """Requests whose prompts share a prefix with A and then part from it, also inside a block."""
    n = m.n
    pieces = [n - 4, 1, 1, 2]
    requests = {"A": (m.ids[:1], pieces)}
    for p in points:
        requests[f"one that leaves A after {p}"] = (_joined(m, p), pieces)
    requests["A again"] = (m.ids[:1], [n - 3, 1, 2])
    spread = f"{points[0]} to {points[-1]}" if len(points) > 1 else str(points[0])
    name = f"requests that part after {spread} of {n} tokens"
    return m.scenario(ScenarioKind.PARTING, name, _in_turn(m, requests))


# ------------------------------------------------------------------ several sessions


def _twins(m: Material) -> Scenario:
    """Two texts that share their first half, by turns; one has read more of it than the other."""
    n = m.n
    half = n // 2
    twin = _joined(m, half)
    one = m.pieces(m.ids[:1], [half, 1, 1, 2, 1, n - half - 5], "one text")
    other = m.pieces(twin, [half + 3, 1, 1, 1, n - half - 6], "its twin")
    program = one[:2] + other[:2] + by_turns(one[2:], other[2:])
    name = f"two texts that begin alike, by turns, of {n} tokens"
    return m.scenario(ScenarioKind.INTERLEAVED, name, program)


def _threads(m: Material) -> Program:
    """Two texts, each read in pieces by a thread of its own."""
    half = m.n // 2
    rest = [1] * 4 + [m.n - half - 4]
    one = m.pieces(m.ids[:1], [half, *rest], "the first thread")
    return one + m.pieces(m.ids[1:2], [half, *rest], "the second thread")


def _fork(m: Material) -> Scenario:
    """Fork a session and continue its text in two ways, by turns."""
    n = m.n
    half = n // 2
    other = _joined(m, half)
    name = f"a text forked after {half} of {n} tokens"
    cuts = [half, half + 1, half + 2, half + 4, n]
    steps: list[ProgramStep] = [
        *m.pieces(m.ids[:1], [half], "the text"),
        Fork("the text", "its fork"),
    ]
    for start, end in zip(cuts, cuts[1:], strict=False):
        steps.append(Read("the text", ids_of(m.ids[:1, start:end])))
        steps.append(Read("its fork", ids_of(other[:, start:end])))
    return m.scenario(ScenarioKind.FORK, name, steps)


# ------------------------------------------------------------------ batches


def _beams(m: Material) -> Scenario:
    """Reorder and duplicate three texts as beam search does, read on, and do it once more."""
    n = m.n
    half = n // 2
    moves = {half: (2, 0, 0), half + 2: (1, 2, 1)}
    steps: list[ProgramStep] = [*m.pieces(m.ids, [half - 2, 1, 1])]
    start = half
    for length in (1, 1, 3, n - half - 5):
        if start in moves:
            steps.append(Reorder("a", moves[start]))
        steps.append(Read("a", ids_of(m.ids[:, start : start + length])))
        start += length
    name = f"beams that change places, of {n} tokens"
    return m.scenario(ScenarioKind.BEAMS, name, steps)


def _leaving(m: Material) -> Scenario:
    """Remove texts from a batch, the middle one first; the others continue as before."""
    n = m.n
    half = n // 2
    steps: list[ProgramStep] = [*m.pieces(m.ids, [half - 1, 1]), Keep("a", (0, 2))]
    two, last = m.ids[[0, 2]], m.ids[[2]]
    steps.append(Read("a", ids_of(two[:, half : half + 1])))
    steps.append(Read("a", ids_of(two[:, half + 1 : half + 4])))
    steps.append(Keep("a", (1,)))
    steps.append(Read("a", ids_of(last[:, half + 4 : half + 5])))
    steps.append(Read("a", ids_of(last[:, half + 5 :])))
    name = f"texts that leave a batch, of {n} tokens"
    return m.scenario(ScenarioKind.LEAVING, name, steps)
