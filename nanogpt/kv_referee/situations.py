"""What is tried with the texts: decoding paths, requests, interleaving, padding, beam search."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from .diagnosis import leftover
from .offers import MODEL_ERRORS, Offers
from .report import CachedRun, Judgement, LogitTurn, Report, Scenario, Verdict
from .subjects import NotOffered, Session, Subject
from .texts import cut, edges_of, text, total
from .ways import DecodingPath, long_ways, short_ways
from .yardstick import TIMES, ULPS, Yardstick, name_of, thinned

Findings = list[Judgement | None]  # None: not offered by the model
BATCHES = (2, 4, 8, 16)  # batch sizes, in addition to the usual three
DRAFTS = 5  # most tokens that a windowed cache is asked to forget
PADDED = (3, 2, 4, 8)


@dataclass(frozen=True)
class Situation:
    """Something to try: `core` ones come first; `cost` is in tokens, like a DecodingPath's."""

    name: str
    cost: float
    trial: Callable[[], Findings]
    core: bool = False


@dataclass(frozen=True)
class Trial:
    """One of several requests: its tokens, the expected logits, and the pieces it is read in."""

    ids: Tensor
    expected: Tensor
    lengths: list[int]


class _Case(Protocol):
    """What the situations need of the model under test: the _Case of referee.py."""

    subject: Subject
    as_given: Subject
    dtype: torch.dtype
    dtypes: dict[torch.dtype, Subject]
    yard: Yardstick
    result: Report
    seed: int
    pick: random.Random
    lengths: list[int]
    requests: int
    offers: Offers
    room: dict[str, set[tuple[int, ...]]]

    def plain(self, ids: Tensor, subject: Subject | None = None) -> Tensor:
        """The logits of one pass."""

    def alone(self, ids: Tensor, subject: Subject | None = None) -> Tensor:
        """The logits of one pass of each text alone."""

    def read(
        self,
        comparison: Scenario,
        read: Callable[[], Tensor],
        expected: Tensor,
        inside: float | None = None,
    ) -> Judgement | None:
        """The verdict on the logits that read() returns; None if the model does not support it."""

    def not_offered(self, comparison: Scenario, error: BaseException) -> None:
        """Note a refusal."""


def situations(case: _Case, stage: int, ids: Tensor, expected: Tensor) -> Iterator[Situation]:
    """Yield everything that is tried with these texts, cheap situations first."""
    n = ids.shape[1]
    subject = case.subject
    last = n == case.lengths[-1]
    for cache in subject.caches:
        usual = cache == subject.caches[0]
        if stage:
            paths = long_ways(n, edges_of(subject), _deepest(subject), case.pick)
        else:
            paths = short_ways(n, subject.window, subject.rewinds, case.pick)
        for path in paths:
            trial = partial(_through, case, stage, cache, path, ids, expected)
            yield Situation(f"{cache}, {path.name}", path.cost, trial, core=path.core and usual)
        trial = partial(_requests, case, cache, ids, expected)
        yield Situation(f"{cache}, requests", 12 * n, trial)
        parts = _parting_points(n, subject, stage)
        for start in range(0, len(parts), 4):
            points = parts[start : start + 4]
            trial = partial(_parting, case, cache, ids, points)
            yield Situation(f"{cache}, requests that part at {points}", 12 * n, trial)
        trial = partial(_interleaved, case, cache, ids, expected)
        yield Situation(f"{cache}, texts interleaved", 8 * n, trial)
        trial = partial(_twins, case, cache, ids, expected)
        yield Situation(f"{cache}, texts that begin alike, by turns", 8 * n, trial)
        trial = partial(_forks, case, cache, ids, expected)
        yield Situation(f"{cache}, a text forked", 6 * n, trial)
        trial = partial(_beams, case, cache, ids)
        yield Situation(f"{cache}, beams", 6 * n, trial)
        trial = partial(_leaving, case, cache, ids, expected)
        yield Situation(f"{cache}, texts that leave a batch", 6 * n, trial)
        if not stage:
            for rows in BATCHES:
                trial = partial(_batch, case, cache, rows)
                yield Situation(f"{cache}, a batch of {rows}", 60 * rows, trial)
            trial = partial(_samples, case, cache)
            yield Situation(f"{cache}, samples of one prompt", 120, trial)
            trial = partial(_as_given, case, cache, ids, expected)
            yield Situation(f"{cache}, in its own dtype", 10 * n, trial)
            trial = partial(_special, case, cache)
            yield Situation(f"{cache}, the first ids", 120, trial)
        if stage or last:
            count = case.requests * (4 if stage > 1 else 1)
            trial = partial(_many, case, cache, count)
            yield Situation(f"{cache}, many requests", 40 * case.requests, trial)
    for rows in PADDED if not stage else (3,):
        trial = partial(_padding, case, rows, n)
        yield Situation(f"padding of {rows} texts", 4 * rows * n, trial)
    trial = partial(_right_padding, case, ids, expected)
    yield Situation("padding on the right", 4 * 3 * n, trial)


def _deepest(subject: Subject) -> int:
    """The most tokens to rewind at once: a windowed cache no longer holds many."""
    if not subject.rewinds:
        return 0
    return subject.deepest or (DRAFTS if subject.window else 10**9)


# ------------------------------------------------------------------ one text, a batch


def _through(
    case: _Case, stage: int, cache: str, path: DecodingPath, ids: Tensor, expected: Tensor
) -> Findings:
    """Read texts in pieces of these lengths."""
    ids = ids[: path.rows]
    tokens = total(path.lengths)
    pieces = cut(ids, path.lengths, case.subject.vocab_size)
    read = partial(case.subject.cached, pieces, cache)
    finding = case.read(Scenario(path.name, cache), read, expected[: path.rows, :tokens])
    if finding and finding.verdict is Verdict.BUG:
        seed = case.seed + stage
        finding.how = CachedRun(seed, ids.shape[1], path.rows, path.lengths, cache)
    return [finding]


def _as_given(case: _Case, cache: str, ids: Tensor, expected: Tensor) -> Findings:
    """Read in the dtype in which the model was given: its cache may have fewer bits there.

    Only a bug is a finding: rounding is judged in the finest dtype. A difference at only a few
    tokens is not one: with few bits, a router's near tie may cause it.
    """
    subject = case.as_given
    yard = case.yard
    n = ids.shape[1]
    plain = case.alone(ids, subject)
    if plain.dtype == expected.dtype:
        return []
    moved = float(yard.sizes(plain, expected).max())
    least = ULPS * torch.finfo(plain.dtype).eps * yard.largest
    inside = max(2 * TIMES * moved, least, yard.inside)
    pieces = cut(ids[:1], [n // 2, 1, 1, 3, *[1] * (n - n // 2 - 5)], subject.vocab_size)
    comparison = Scenario(f"in {name_of(plain.dtype)}, as it was given", cache)
    finding = case.read(comparison, partial(subject.cached, pieces, cache), plain[:1], inside)
    if finding is None or finding.verdict is not Verdict.BUG:
        return []
    turn = finding.turn
    sizes = turn.sizes[finding.position :] if isinstance(turn, LogitTurn) else []
    few = 2 * sum(size > inside for size in sizes) < len(sizes)
    return [] if few else [finding]


def _batch(case: _Case, cache: str, rows: int) -> Findings:
    """A batch in which two texts share a prefix and two are equal; then each in another row."""
    n = min(40 if rows < 8 else 28 if rows < 16 else 20, case.lengths[0])
    ids = text(case.subject, rows, case.seed + 100 + rows, n)
    shared = min(16, max(1, n - 11))  # a common block size; they diverge inside the prompt
    ids[1, :shared] = ids[0, :shared]
    if rows > 2:
        ids[-1] = ids[0]
    lengths = [n - 7, 1, 1, 3, 2]
    expected = case.alone(ids)
    requests = {
        "the batch": Trial(ids, expected, lengths),
        "its rows moved": Trial(ids.roll(1, 0), expected.roll(1, 0), lengths),
    }
    return _in_turn(case, Scenario(f"{rows} texts that begin alike, in a batch", cache), requests)


def _samples(case: _Case, cache: str) -> Findings:
    """One prompt for all texts, which then diverge, like several samples of one prompt."""
    n = min(24, case.lengths[0])
    ids = text(case.subject, 3, case.seed + 103, n)
    ids[:, :6] = ids[0, :6]
    pieces = cut(ids, [6, 1, 1, 1, 2, n - 11], case.subject.vocab_size)
    read = partial(case.subject.cached, pieces, cache)
    comparison = Scenario("three samples of one prompt", cache)
    return [case.read(comparison, read, case.alone(ids))]


def _special(case: _Case, cache: str) -> Findings:
    """A text that contains the first ids, which often have a special meaning."""
    if not case.subject.specials or case.subject.vocab_size <= 30:
        return []
    ids = text(case.subject, 1, case.seed + 7, case.lengths[0])
    for i, special in enumerate(case.subject.specials):
        ids[0, 4 + 5 * i : 6 + 5 * i] = special
    expected = case.alone(ids)
    n = ids.shape[1]
    requests = {
        "in pieces": Trial(ids, expected, [7, 1, 1, 4, 1, 1, n - 15]),
        "token by token": Trial(ids, expected, [3] + [1] * 12 + [n - 15]),
    }
    return _in_turn(case, Scenario("a text with the ids 0 to 2", cache), requests)


# ------------------------------------------------------------------ requests


def _in_turn(case: _Case, comparison: Scenario, requests: dict[str, Trial]) -> Findings:
    """Read requests one after the other: the judgement on the first wrong one, or on the last."""
    finding = None
    earlier: Trial | None = None
    for name, request in requests.items():
        pieces = cut(request.ids, request.lengths, case.subject.vocab_size)
        logits: list[Tensor] = []

        def read(pieces: list[Tensor | int] = pieces, logits: list[Tensor] = logits) -> Tensor:
            logits.append(case.subject.cached(pieces, comparison.cache))
            return logits[-1]

        finding = case.read(comparison, read, request.expected)
        if finding is None:
            break
        if not finding.verdict.sound:
            finding.words += f"; it is {name}, of {', '.join(list(requests)[:9])}"
            if finding.verdict is Verdict.BUG and finding.position is not None and earlier:
                before = (earlier.ids, earlier.lengths)
                now = (request.ids, request.lengths)
                got = thinned(logits[0])
                at = finding.position
                finding.cause = leftover(case, comparison.cache, before, now, got, at)
            break
        earlier = request
    return [finding]


def _requests(case: _Case, cache: str, ids: Tensor, expected: Tensor) -> Findings:
    """A, one that begins as A does, A in another order, only the beginning of A, B, A again."""
    n = ids.shape[1]
    half = n // 2
    a, b = ids[:2, None]
    shared = torch.cat([a[:, :half], b[:, half:]], dim=1)
    mixed = torch.cat([expected[:1, :half], case.plain(shared)[:, half:]], dim=1)
    first = [half - 3, 1, 1, 1]
    whole = [*first, 1, 1, 2, n - half - 4]
    moved = a.clone()
    moved[:, 1:4] = moved[:, 1:4].flip(1)
    requests = {
        "A": Trial(a, expected[:1], whole),
        "one that begins as A does": Trial(shared, mixed, whole),
        "A in another order": Trial(moved, case.plain(moved), whole),
    }
    if case.subject.vocab_size > 512:
        alike = torch.where(a + 256 < case.subject.vocab_size, a + 256, a - 256)
        name = "A with other ids, equal in their last byte"
        requests[name] = Trial(alike, case.plain(alike), whole)
    requests |= {
        "half of A": Trial(a[:, :half], expected[:1, :half], first),
        "B": Trial(b, expected[1:2], whole),
        "A again": Trial(a, expected[:1], whole),
        "all of A at once": Trial(a, expected[:1], [n - 1, 1]),
    }
    return _in_turn(case, Scenario("requests one after the other", cache), requests)


def _parting_points(n: int, subject: Subject, stage: int) -> list[int]:
    """Where requests diverge from an earlier one: before, at and after each edge, in tokens."""
    edges = [e for e in edges_of(subject) if e < n - 6]
    points = {1, 3, n // 3, n - 6} if not stage else {n - 7}
    for e in edges:
        points |= {e, e + 1, e - 1, e + 5}
    return sorted(p for p in points if 0 < p < n - 4)


def _parting(case: _Case, cache: str, ids: Tensor, points: list[int]) -> Findings:
    """Requests whose prompts share a prefix with A and then diverge, also inside a block."""
    a, b = ids[:2, None]
    n = ids.shape[1]
    expected = case.plain(a)
    requests = {"A": Trial(a, expected, [n - 4, 1, 1, 2])}
    for p in points:
        parted = torch.cat([a[:, :p], b[:, p:]], dim=1)
        wanted = case.plain(parted)
        requests[f"one that leaves A after {p}"] = Trial(parted, wanted, [n - 4, 1, 1, 2])
    requests["A again"] = Trial(a, expected, [n - 3, 1, 2])
    name = f"requests that part after {points[0]} to {points[-1]} of {n} tokens"
    return _in_turn(case, Scenario(name, cache), requests)


def _many(case: _Case, cache: str, count: int) -> Findings:
    """Many short requests, which use many blocks; half of them begin as an earlier one does."""
    pick = random.Random(case.seed + 31)
    most = case.lengths[0]
    fresh = iter(text(case.subject, count, case.seed + 17, most))
    rows: list[Tensor] = []
    requests = {}
    for i, row in enumerate(fresh):
        n = pick.randrange(5, most + 1)
        if rows and pick.random() < 0.5:
            other = pick.choice(rows)
            p = pick.randrange(1, most)
            row = torch.cat([other[:p], row[len(other[:p]) :]])
        row = row[:n]
        rows.append(row)
        lengths = [n - 2, 1, 1] if i % 3 else [n // 2, 1, n - n // 2 - 1]
        lengths = [length for length in lengths if length]
        requests[f"request {i}"] = Trial(row[None], case.plain(row[None]), lengths)
    return _in_turn(case, Scenario(f"{count} requests of many lengths", cache), requests)


# ------------------------------------------------------------------ several texts at a time


def _interleaved(case: _Case, cache: str, ids: Tensor, expected: Tensor) -> Findings:
    """Interleave texts, each with its own cache; the last one starts later."""
    subject = case.subject
    n = ids.shape[1]
    half = n // 2
    least = min(case.offers.shortest, half - 5)
    a, b, c = (max(few, least) for few in (3, 1, 2))
    starts = [[a, 1, 1, half - 2 - a], [b, 2, 2, half - 4 - b], [c, 2, half - 2 - c]]
    plans = [[*start, 1, 2, n - half - 3] for start in starts]

    def read() -> Tensor:
        sessions = [subject.session(cache), subject.session(cache)]
        rows = [ids[i : i + 1].split(plan, 1) for i, plan in enumerate(plans)]
        logits: list[list[Tensor]] = [[], [], []]
        for turn in range(len(plans[0])):
            if turn == 1:
                sessions.append(subject.session(cache))
            for session, pieces, parts in zip(sessions, rows, logits, strict=False):
                parts.append(session.read(pieces[len(parts)]))
        return torch.cat([torch.cat(parts, 1) for parts in logits])

    finding = case.read(Scenario(f"texts interleaved, of {n} tokens", cache), read, expected)
    case.room.pop(cache, None)  # nothing closes a session: it may keep its blocks
    return [finding]


def _beams(case: _Case, cache: str, ids: Tensor) -> Findings:
    """Reorder and duplicate three texts as beam search does, read on, and do it once more."""
    subject = case.subject
    n = ids.shape[1]
    half = n // 2
    moves = {half: [2, 0, 0], half + 2: [1, 2, 1]}
    moved = ids.clone()
    for at, rows in moves.items():
        moved[:, :at] = moved[rows, :at]

    def read() -> Tensor:
        session = subject.session(cache, len(ids))
        written = ids.clone()
        logits: list[Tensor] = []
        start = 0
        for length in (half - 2, 1, 1, 1, 1, 3, n - half - 5):
            if start in moves:
                rows = moves[start]
                session.reorder(rows)
                logits = [part[rows] for part in logits]
                written[:, :start] = written[rows, :start]
            logits.append(session.read(written[:, start : start + length]))
            start += length
        return torch.cat(logits, 1)

    comparison = Scenario(f"beams that change places, of {n} tokens", cache)
    if not _offers(case, comparison, ids, lambda session: session.reorder([0, 1, 2])):
        return []
    return [case.read(comparison, read, case.alone(moved))]


def _offers(
    case: _Case, comparison: Scenario, ids: Tensor, use: Callable[[Session], object]
) -> bool:
    """Whether a session supports this after a few tokens; if it does not, that is noted."""
    try:
        session = case.subject.session(comparison.cache, len(ids))
        session.read(ids[:, : case.offers.shortest + 2])
        use(session)
    except (NotOffered, *MODEL_ERRORS) as error:  # earlier situations judge what it reads
        case.not_offered(comparison, error)
        return False
    return True


def _twins(case: _Case, cache: str, ids: Tensor, expected: Tensor) -> Findings:
    """Interleave two texts that share their first half, each with its own cache.

    A plain pass of one of them runs in between.
    """
    subject = case.subject
    n = ids.shape[1]
    half = n // 2
    twin = torch.cat([ids[:1, :half], ids[1:2, half:]], 1)
    wanted = torch.cat([expected[:1], case.plain(twin)])
    plan = [half, 1, 1, 2, 1, n - half - 5]

    def read() -> Tensor:
        sessions = [subject.session(cache), subject.session(cache)]
        logits: list[list[Tensor]] = [[], []]
        pieces = [row.split(plan, 1) for row in (ids[:1], twin)]
        for turn in range(len(plan)):
            for session, parts, row in zip(sessions, logits, pieces, strict=True):
                parts.append(session.read(row[turn]))
            if turn == 1:
                subject.plain(ids[:1])
        return torch.cat([torch.cat(parts, 1) for parts in logits])

    comparison = Scenario(f"two texts that begin alike, by turns, of {n} tokens", cache)
    finding = case.read(comparison, read, wanted)
    case.room.pop(cache, None)  # nothing closes a session: it may keep its blocks
    return [finding]


def _forks(case: _Case, cache: str, ids: Tensor, expected: Tensor) -> Findings:
    """Fork a text's cache and continue the text in two ways, interleaved."""
    subject = case.subject
    n = ids.shape[1]
    half = n // 2
    other = torch.cat([ids[:1, :half], ids[1:2, half:]], 1)
    wanted = torch.cat([expected[:1], case.plain(other)])
    plan = [1, 1, 2, n - half - 4]
    comparison = Scenario(f"a text forked after {half} of {n} tokens", cache)
    if not _offers(case, comparison, ids[:1], lambda session: session.fork()):
        return []

    def read() -> Tensor:
        session = subject.session(cache)
        start = session.read(ids[:1, :half])
        sessions = [session, session.fork()]
        logits = [[start], [start]]
        pieces = [row[:, half:].split(plan, 1) for row in (ids[:1], other)]
        for turn in range(len(plan)):
            for one, parts, row in zip(sessions, logits, pieces, strict=True):
                parts.append(one.read(row[turn]))
        return torch.cat([torch.cat(parts, 1) for parts in logits])

    return [case.read(comparison, read, wanted)]


def _leaving(case: _Case, cache: str, ids: Tensor, expected: Tensor) -> Findings:
    """Remove texts from a batch, the middle one first; the others continue as before."""
    subject = case.subject
    n = ids.shape[1]
    half = n // 2
    comparison = Scenario(f"texts that leave a batch, of {n} tokens", cache)
    if not _offers(case, comparison, ids, lambda session: session.keep([0, 2])):
        return []

    def read() -> Tensor:
        session = subject.session(cache, len(ids))
        session.read(ids[:, :half])
        session.read(ids[:, half : half + 1])
        session.keep([0, 2])
        session.read(ids[[0, 2], half + 1 : half + 3])
        session.keep([1])
        return torch.cat([session.read(ids[2:, at : at + 1]) for at in range(half + 3, n)], 1)

    return [case.read(comparison, read, expected[2:, half + 3 :])]


# ------------------------------------------------------------------ padding


def _padding(case: _Case, rows: int, n: int) -> Findings:
    """Texts of different lengths, padded on the left: without a cache, then with one.

    What one pass without a cache does with padding is not the cache's fault.
    """
    n = n if rows < 4 else min(n, 48)
    ids = text(case.subject, rows, case.seed, n)
    pads = [min(pad, n - 4) for pad in (0, 5, n // 3, 1, n // 2, 2, 16, 3)][:rows]
    if rows == 2:
        pads = [3, 8]  # as if batches are padded to a multiple
    place = torch.arange(n) - torch.tensor(pads)[:, None]  # position in its own text; (B, T)
    mask = (place >= 0).long()
    ids = ids.gather(1, place.clamp(min=0))
    real = (place >= 0)[..., None]

    def read(lengths: list[int] | None) -> Tensor:
        return torch.where(real, case.subject.padded(ids, mask, lengths), 0)

    texts = [row[place_ >= 0][None] for row, place_ in zip(ids, place, strict=True)]
    alone = [torch.nn.functional.pad(case.plain(x), (0, 0, n - x.shape[1], 0)) for x in texts]
    once = Scenario(f"left padding of {rows} texts in one pass, against each text alone")
    finding = case.read(once, partial(read, None), torch.cat(alone))
    if finding is None:
        return []
    case.result.padding.append(finding)
    if finding.size == float("inf"):  # it failed
        return []
    plain = read(None)
    real = real & plain.isfinite().all(-1, keepdim=True)  # NaN in one pass: not the cache's fault
    plain = torch.where(real, plain, 0)
    name = f"left padding of {rows} texts through the cache, against one pass"
    comparison = Scenario(name, case.subject.caches[0], padded=True)
    lengths = [n // 2, 1, 1, 3, 1, n - n // 2 - 6]
    return [case.read(comparison, partial(read, lengths), thinned(plain))]


def _right_padding(case: _Case, ids: Tensor, expected: Tensor) -> Findings:
    """Prompts padded on the right, then single tokens: the padding stays in between."""
    n = ids.shape[1]
    subject = case.subject
    prompt = n // 2
    new = 6
    pads = torch.tensor([0, 3, n // 4])
    columns = torch.arange(prompt + new)
    padding = (columns >= prompt - pads[:, None]) & (columns < prompt)
    mask = (~padding).long()
    place = torch.where(padding, 0, columns - pads[:, None] * (columns >= prompt))
    padded = ids.gather(1, place)
    wanted = expected.gather(1, place[..., None].expand(-1, -1, expected.shape[-1]))
    wanted = torch.where(padding[..., None], 0, wanted)

    def read(lengths: list[int] | None) -> Tensor:
        return torch.where(padding[..., None], 0, subject.padded(padded, mask, lengths))

    name = "right padding through the cache, against each text alone"
    comparison = Scenario(name, subject.caches[0], padded=True)
    if subject.right_padding is None:
        once = case.read(Scenario("right padding in one pass"), partial(read, None), wanted)
        if once is None or not once.verdict.sound:
            refusal = NotOffered("one pass without a cache does not read it either")
            case.not_offered(comparison, refusal)
            return []
    return [case.read(comparison, partial(read, [prompt, *[1] * new]), wanted)]
