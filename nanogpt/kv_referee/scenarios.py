"""What is tried, in a fixed order: one brief scenario of each kind, then depth.

No scenario may change the logits of a text: nor may the pieces in which it is read, other requests,
other sessions, or its neighbours in a batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .contract import Model
from .padding import Padding, left_padding, right_padding
from .programs import (
    Fork,
    Keep,
    Length,
    PlainPass,
    Program,
    ProgramStep,
    Read,
    Reorder,
    by_turns,
    ids_of,
    in_pieces,
)
from .report import ScenarioKind
from .texts import BRIEF
from .ways import fitted, long_ways, short_ways

BATCHES = (2, 4, 8, 16)  # batch sizes, in addition to three
DRAFTS = 5  # most tokens that a windowed cache is asked to forget
PADDED = (2, 4, 8)  # texts of a padded batch, in addition to three
REQUESTS = 24  # one after the other; many of them share a prefix


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
    edges: Sequence[int] = ()

    @property
    def n(self) -> int:
        return self.ids.shape[1]

    def pieces(self, texts: Tensor, lengths: Iterable[Length], session: str = "a") -> Program:
        """Read these texts in pieces, the first as long as the model needs it.  (B, T)"""
        whole = fitted(lengths, self.model.limits.shortest)
        return in_pieces(texts, whole, self.model.vocab_size, session)

    def scenario(self, kind: ScenarioKind, name: str, program: Iterable[ProgramStep]) -> Scenario:
        return Scenario(kind, name, self.cache, tuple(program))


def brief(model: Model, cache: str, seed: int) -> list[Scenario]:
    """One cheap scenario of each kind; with the default cache also those of the model itself."""
    n = min(BRIEF, model.limits.longest or BRIEF)
    m = Material(model, cache, seed, model.text(3, seed, n))
    a = m.ids[:1]
    half = n // 2
    named = m.scenario
    drafts: list[Length] = [4, (1, 2), (2, 1), 1, (0, 3), 2, (2, 1), *[1] * (n - 12)]
    pieces = [5, 1, 2, 3, n - 11]
    usual = [
        named(
            ScenarioKind.PREFILL,
            f"a prompt of {half}, then single tokens to {n}",
            m.pieces(a, [half, *[1] * (n - half)]),
        ),
        named(
            ScenarioKind.CHUNKS,
            f"pieces of 5, 1, 2, 3 and {n - 11} tokens",
            m.pieces(a, pieces),
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
        named(
            ScenarioKind.OWN_DTYPE,
            f"in its own dtype, {n} tokens",
            m.pieces(a, [half, 1, 1, 3, *[1] * (n - half - 5)]),
        ),
    ]
    if model.rewinds is False:
        usual = [one for one in usual if one.kind is not ScenarioKind.REWIND]
    if cache == model.caches[0]:
        usual.append(_padded(m, left_padding(m.ids, n)))
    return usual


def depth(
    model: Model, cache: str, seed: int, ids: Tensor, edges: list[int], stage: int
) -> Iterator[tuple[bool, Scenario]]:
    """Everything that is tried with texts of this length; whether it is one of the core.  (3, n)

    Stage 0 has the short texts; those of the last stages are past all edges.
    """
    m = Material(model, cache, seed, ids, edges)
    n = m.n
    pick = random.Random(seed + stage)
    usual = cache == model.caches[0]
    # 1. One text in pieces, and a batch of three.
    rewinds = model.rewinds is not False
    if stage:
        most = 0 if not rewinds else model.deepest or (DRAFTS if model.window else 10**9)
        paths = long_ways(n, edges, most, pick)
    else:
        paths = short_ways(n, model.window, rewinds, pick)
    for path in paths:
        lengths = path.lengths
        kind = ScenarioKind.BATCH if path.rows > 1 else ScenarioKind.CHUNKS
        if any(isinstance(length, tuple) for length in lengths):
            kind = ScenarioKind.REWIND
        elif all(length == 1 for length in lengths[1:]):
            kind = ScenarioKind.PREFILL
        program = m.pieces(ids[: path.rows], lengths)
        yield path.core and usual, m.scenario(kind, path.name, program)
    # 2. Requests one after the other.
    for scenario in _requests_of(m, stage):
        yield False, scenario
    # 3. Several sessions, and batches that change.
    for scenario in (_interleaved(m), _twins(m), _fork(m), _beams(m), _leaving(m)):
        yield False, scenario
    if not stage:
        for rows in BATCHES:
            yield False, _batch(m, rows)
        yield False, _samples(m)
        yield from ((False, scenario) for scenario in _special(m))
    # 4. Padding, which only the default cache is asked for.
    if usual:
        for rows in PADDED if not stage else (3,):
            yield False, _padded(m, left_padding(model.text(rows, seed + 61, n), n))
        yield False, _padded(m, right_padding(ids))


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


def _joined(m: Material, points: Iterable[int]) -> dict[int, Tensor]:
    """Texts that begin as the first does, and leave it after so many tokens."""
    a, b = m.ids[:1], m.ids[1:2]
    return {p: torch.cat([a[:, :p], b[:, p:]], dim=1) for p in points}


def _first(m: Material) -> Program:
    """A, one that begins as A does, and A again: what a new object is asked first."""
    n = m.n
    a = m.ids[:1]
    (other,) = _joined(m, [n // 2]).values()
    pieces = [n - 4, 1, 1, 2]
    requests = {"A": (a, pieces), "one that begins as A does": (other, pieces)}
    return _in_turn(m, requests | {"A again": (a, [n - 3, 1, 2])})


def _parting(m: Material, points: list[int]) -> Scenario:
    """Requests whose prompts share a prefix with A and then part from it, also inside a block."""
    n = m.n
    pieces = [n - 4, 1, 1, 2]
    requests = {"A": (m.ids[:1], pieces)}
    for p, other in _joined(m, points).items():
        requests[f"one that leaves A after {p}"] = (other, pieces)
    requests["A again"] = (m.ids[:1], [n - 3, 1, 2])
    spread = f"{points[0]} to {points[-1]}" if len(points) > 1 else str(points[0])
    name = f"requests that part after {spread} of {n} tokens"
    return m.scenario(ScenarioKind.PARTING, name, _in_turn(m, requests))


def _requests_of(m: Material, stage: int) -> Iterator[Scenario]:
    """All scenarios of requests one after the other."""
    n = m.n
    edges = [e for e in m.edges if e < n - 6]
    # 1. A, one that begins as A does, A in another order, only the beginning of A, B, A again.
    half = n // 2
    a, b = m.ids[:1], m.ids[1:2]
    first = [half - 3, 1, 1, 1]
    whole = [*first, 1, 1, 2, n - half - 4]
    moved = a.clone()
    moved[:, 1:4] = moved[:, 1:4].flip(1)
    requests = {
        "A": (a, whole),
        "one that begins as A does": (_joined(m, [half])[half], whole),
        "A in another order": (moved, whole),
    }
    if m.model.vocab_size > 512:
        alike = torch.where(a + 256 < m.model.vocab_size, a + 256, a - 256)
        requests["A with other ids, equal in their last byte"] = (alike, whole)
    requests |= {
        "half of A": (a[:, :half], first),
        "B": (b, whole),
        "A again": (a, whole),
        "all of A at once": (a, [n - 1, 1]),
    }
    name = f"requests one after the other, of {n} tokens"
    yield m.scenario(ScenarioKind.PARTING, name, _in_turn(m, requests))
    # 2. Requests that part from A before, at and after each edge.
    points = {1, 3, n // 3, n - 6} if not stage else {n - 7}
    for e in edges:
        points |= {e, e + 1, e - 1, e + 5}
    ordered = sorted(p for p in points if 0 < p < n - 4)
    for start in range(0, len(ordered), 4):
        yield _parting(m, ordered[start : start + 4])
    # 3. Many, which use many blocks; half of them begin as an earlier one does.
    if stage:
        yield _many(m, REQUESTS * (4 if stage > 1 else 1))


def _many(m: Material, count: int) -> Scenario:
    pick = random.Random(m.seed + 31)
    most = min(40, m.n)
    rows: list[Tensor] = []
    requests: dict[str, _Request] = {}
    for i, row in enumerate(m.model.text(count, m.seed + 17, most)):
        n = pick.randrange(5, most + 1)
        if rows and pick.random() < 0.5:
            other = pick.choice(rows)
            p = pick.randrange(1, most)
            row = torch.cat([other[:p], row[len(other[:p]) :]])
        row = row[:n]
        rows.append(row)
        lengths = [n - 2, 1, 1] if i % 3 else [n // 2, 1, n - n // 2 - 1]
        requests[f"request {i}"] = (row[None], [length for length in lengths if length])
    name = f"{count} requests of many lengths"
    return m.scenario(ScenarioKind.PARTING, name, _in_turn(m, requests))


# ------------------------------------------------------------------ several sessions


def _interleaved(m: Material) -> Scenario:
    """Three texts by turns, each with its own session; the last one starts later."""
    n = m.n
    half = n // 2
    plans = [
        [3, 1, 1, half - 5, 1, 2, n - half - 3],
        [1, 2, 2, half - 5, 1, 2, n - half - 3],
        [2, 2, half - 4, 1, 2, n - half - 3],
    ]
    first, second, third = (
        m.pieces(m.ids[i : i + 1], plan, f"text {i}") for i, plan in enumerate(plans)
    )
    # The first two start and read once before the third one starts.
    early = by_turns(first[:2], second[:2])
    program = early + by_turns(first[2:], second[2:], third)
    return m.scenario(ScenarioKind.INTERLEAVED, f"texts interleaved, of {n} tokens", program)


def _twins(m: Material) -> Scenario:
    """Two texts that share their first half, by turns; one has read more of it than the other.

    A plain pass of one of them runs in between.
    """
    n = m.n
    half = n // 2
    (twin,) = _joined(m, [half]).values()
    one = m.pieces(m.ids[:1], [half, 1, 1, 2, 1, n - half - 5], "one text")
    other = m.pieces(twin, [half + 3, 1, 1, 1, n - half - 6], "its twin")
    between: Program = (PlainPass(ids_of(m.ids[:1])),)
    program = one[:2] + other[:2] + between + by_turns(one[2:], other[2:])
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
    (other,) = _joined(m, [half]).values()
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


def _batch(m: Material, rows: int) -> Scenario:
    """A batch in which two texts share a prefix and two are equal; then each in another row."""
    n = min(40 if rows < 8 else 28 if rows < 16 else 20, m.n)
    ids = m.model.text(rows, m.seed + 100 + rows, n)
    shared = min(16, max(1, n - 11))  # a common block size; they part inside the prompt
    ids[1, :shared] = ids[0, :shared]
    if rows > 2:
        ids[-1] = ids[0]
    lengths = [n - 7, 1, 1, 3, 2]
    requests = {"the batch": (ids, lengths), "its rows moved": (ids.roll(1, 0), lengths)}
    name = f"{rows} texts that begin alike, in a batch"
    return m.scenario(ScenarioKind.BATCH, name, _in_turn(m, requests))


def _samples(m: Material) -> Scenario:
    """One prompt for all texts, which then part, like several samples of one prompt."""
    n = min(24, m.n)
    ids = m.model.text(3, m.seed + 103, n)
    ids[:, :6] = ids[0, :6]
    program = m.pieces(ids, [6, 1, 1, 1, 2, n - 11])
    return m.scenario(ScenarioKind.BATCH, "three samples of one prompt", program)


def _special(m: Material) -> Iterator[Scenario]:
    """A text that contains the first ids, which often have a special meaning."""
    specials = m.model.specials
    if not specials or m.model.vocab_size <= 30:
        return
    n = m.n
    ids = m.model.text(1, m.seed + 7, n)
    for i, special in enumerate(specials):
        ids[0, 4 + 5 * i : 6 + 5 * i] = special
    pieces = {
        "in pieces": [7, 1, 1, 4, 1, 1, n - 15] if n > 15 else [7, 1, n - 8],
        "token by token": [3, *[1] * 12, n - 15] if n > 15 else [3, *[1] * (n - 3)],
    }
    for name, lengths in pieces.items():
        kind = ScenarioKind.CHUNKS if name == "in pieces" else ScenarioKind.PREFILL
        name = f"a text with the ids 0 to 2, {name}"
        yield m.scenario(kind, name, m.pieces(ids, [x for x in lengths if x]))
