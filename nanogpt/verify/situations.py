"""What is tried with the texts: ways to read one, requests, company, padding, beams.

A situation is whether it is one of the few that come first, its name, its cost, and a function
that gives the findings. `case` is the Case of referee.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from .report import Finding
from .subjects import NotOffered
from .texts import cut, edges_of, text, total
from .ways import Way, long_ways, short_ways
from .yardstick import TIMES, ULPS, name_of, thinned

Situation = tuple[bool, str, float, Callable[[], list]]
BATCHES = (2, 4, 8)  # texts at once, beside the usual three
DRAFTS = 5  # tokens that a cache of a window may be asked to forget
PADDED = (3, 2, 4, 8)
SCRIPT = """\
import torch
from nanogpt.verify.door import subject_of
from nanogpt.verify.texts import cut, text

{model}
subject = subject_of({given}){copy}
ids = text(subject, seed={seed}, length={n})[:{rows}]
got = subject.cached(cut(ids, {lengths}, subject.vocab_size), {cache!r})
wanted = torch.cat([subject.plain(row[None]) for row in ids])[:, :{tokens}]
print((got.double() - wanted.double()).abs().amax((0, 2)))  # one difference for each token
"""


def situations(case, stage: int, ids: Tensor, expected: Tensor) -> Iterator[Situation]:
    """All that is tried with these texts, cheap things first."""
    n = ids.shape[1]
    subject = case.subject
    last = n == case.lengths[-1]
    for cache in subject.caches:
        usual = cache == subject.caches[0]
        if stage:
            ways = long_ways(n, edges_of(subject), _deepest(subject), case.pick)
        else:
            ways = short_ways(n, subject.window, subject.rewinds, case.pick)
        for way in ways:
            trial = partial(_through, case, stage, cache, way, ids, expected)
            yield way.core and usual, f"{cache}, {way.name}", way.cost, trial
        cost = 12 * n
        yield False, f"{cache}, requests", cost, partial(_requests, case, cache, ids, expected)
        parts = _parting_points(n, subject, stage)
        for start in range(0, len(parts), 4):
            trial = partial(_parting, case, cache, ids, parts[start : start + 4])
            yield False, f"{cache}, requests that part at {parts[start : start + 4]}", cost, trial
        turns = partial(_interleaved, case, cache, ids, expected)
        yield False, f"{cache}, texts interleaved", 8 * n, turns
        yield False, f"{cache}, beams", 6 * n, partial(_beams, case, cache, ids, expected)
        if not stage:
            for rows in BATCHES:
                trial = partial(_batch, case, cache, rows)
                yield False, f"{cache}, a batch of {rows}", 60 * rows, trial
            yield False, f"{cache}, samples of one prompt", 120, partial(_samples, case, cache)
            given = partial(_as_given, case, cache, ids, expected)
            yield False, f"{cache}, in its own dtype", 10 * n, given
            yield False, f"{cache}, the first ids", 120, partial(_special, case, cache)
        if stage or last:
            many = partial(_many, case, cache, case.requests * (1 + 3 * (stage > 1)), stage)
            yield False, f"{cache}, many requests", 40 * case.requests, many
    for rows in PADDED if not stage else (3,):
        trial = partial(_padding, case, rows, n)
        yield False, f"padding of {rows} texts", 4 * rows * n, trial
    yield False, "padding on the right", 4 * 3 * n, partial(_right_padding, case, ids, expected)


def _deepest(subject) -> int:
    """The most tokens that are taken back at once: a window's cache no longer has many."""
    if not subject.rewinds:
        return 0
    return subject.deepest or (DRAFTS if subject.window else 10**9)


# ------------------------------------------------------------------ one text, a batch


def _through(case, stage: int, cache: str, way: Way, ids, expected) -> list:
    """Texts read in pieces of these lengths."""
    ids = ids[: way.rows]
    tokens = total(way.lengths)
    pieces = cut(ids, list(way.lengths), case.subject.vocab_size)
    read = partial(case.subject.cached, pieces, cache)
    finding = case.read(f"{cache}, {way.name}", read, expected[: way.rows, :tokens])
    if finding and finding.verdict == "bug":
        how = {"seed": case.seed + stage, "length": ids.shape[1], "rows": way.rows}
        finding.how = how | {"lengths": list(way.lengths), "cache": cache}
        finding.code = SCRIPT.format(
            model=case.subject.builds or "# MODEL: what was judged",
            given=case.arguments,
            copy=f".to({case.dtype})" if len(case.dtypes) > 1 else "",
            seed=case.seed + stage,
            n=ids.shape[1],
            rows=way.rows,
            lengths=list(way.lengths),
            cache=cache,
            tokens=tokens,
        )
    return [finding]


def _as_given(case, cache: str, ids: Tensor, expected: Tensor) -> list:
    """The dtype in which the model was given: its cache may be of fewer bits there.

    Only a bug is a finding: what rounding does is told by the finest dtype. A difference at few
    tokens is none: in few bits, a router's near tie may part them.
    """
    subject = case.as_given
    yard = case.yard
    n = ids.shape[1]
    plain = case.alone(ids, subject)
    if plain.dtype == expected.dtype:
        return []
    moved = float((plain.double() - expected.double()).abs().max())
    least = ULPS * torch.finfo(plain.dtype).eps * yard.largest
    inside = max(2 * TIMES * moved, least, yard.inside)
    pieces = cut(ids[:1], [n // 2, 1, 1, 3, *[1] * (n - n // 2 - 5)], subject.vocab_size)
    way = f"{cache}, in {name_of(plain.dtype)}, as it was given"
    finding = case.read(way, partial(subject.cached, pieces, cache), plain[:1], inside)
    if finding is None or finding.verdict != "bug":
        return []
    sizes = finding.turn[2][finding.position :] if finding.turn else ()
    few = 2 * sum(size > inside for size in sizes) < len(sizes)
    return [] if few else [finding]


def _batch(case, cache: str, rows: int) -> list:
    """Unequal texts, of which two begin alike and two are equal; then each in another row."""
    n = min(40 if rows < 8 else 28, case.lengths[0])
    ids = text(case.subject, rows, case.seed + 100 + rows, n)
    shared = min(16, n - 11)  # a usual block; they part inside of the prompt
    ids[1, :shared] = ids[0, :shared]
    if rows > 2:
        ids[-1] = ids[0]
    lengths = [n - 7, 1, 1, 3, 2]
    expected = case.alone(ids)
    requests = {"the batch": (ids, expected, lengths)}
    requests["its rows moved"] = (ids.roll(1, 0), expected.roll(1, 0), lengths)
    return _in_turn(case, cache, f"{cache}, {rows} texts that begin alike, in a batch", requests)


def _samples(case, cache: str) -> list:
    """One prompt for all, which then go on apart, as samples of one prompt do."""
    n = min(24, case.lengths[0])
    ids = text(case.subject, 3, case.seed + 103, n)
    ids[:, :6] = ids[0, :6]
    pieces = cut(ids, [6, 1, 1, 1, 2, n - 11], case.subject.vocab_size)
    read = partial(case.subject.cached, pieces, cache)
    return [case.read(f"{cache}, three samples of one prompt", read, case.alone(ids))]


def _special(case, cache: str) -> list:
    """A text in which the first ids stand: they often mean something else."""
    if not case.subject.specials or case.subject.vocab_size <= 30:
        return []
    ids = text(case.subject, 1, case.seed + 7, case.lengths[0])
    for i, special in enumerate(case.subject.specials):
        ids[0, 4 + 5 * i : 6 + 5 * i] = special
    expected = case.alone(ids)
    n = ids.shape[1]
    requests = {"in pieces": (ids, expected, [7, 1, 1, 4, 1, 1, n - 15])}
    requests["token by token"] = (ids, expected, [3] + [1] * 12 + [n - 15])
    return _in_turn(case, cache, f"{cache}, a text with the ids 0 to 2", requests)


# ------------------------------------------------------------------ requests


def _in_turn(case, cache: str, way: str, requests: dict) -> list:
    """Requests one after the other: the first that is not right, or the last one."""
    finding = None
    for name, (ids, expected, lengths) in requests.items():
        pieces = cut(ids, lengths, case.subject.vocab_size)
        finding = case.read(way, partial(case.subject.cached, pieces, cache), expected)
        if finding is None:
            break
        if finding.verdict in ("bug", "undecided"):
            finding.words += f"; it is {name}, of {', '.join(list(requests)[:9])}"
            break
    return [finding]


def _requests(case, cache: str, ids: Tensor, expected: Tensor) -> list:
    """A, one that begins as A does, A in another order, the beginning of A alone, B, A."""
    n = ids.shape[1]
    half = n // 2
    a, b = ids[:2, None]
    shared = torch.cat([a[:, :half], b[:, half:]], dim=1)
    mixed = torch.cat([expected[:1, :half], case.plain(shared)[:, half:]], dim=1)
    first = [half - 3, 1, 1, 1]
    whole = [*first, 1, 1, 2, n - half - 4]
    requests = {"A": (a, expected[:1], whole), "one that begins as A does": (shared, mixed, whole)}
    moved = a.clone()
    moved[:, 1:4] = moved[:, 1:4].flip(1)
    requests["A in another order"] = (moved, case.plain(moved), whole)
    if case.subject.vocab_size > 512:
        alike = torch.where(a + 256 < case.subject.vocab_size, a + 256, a - 256)
        requests["A with other ids, equal in their last byte"] = (alike, case.plain(alike), whole)
    requests |= {"half of A": (a[:, :half], expected[:1, :half], first)}
    requests |= {"B": (b, expected[1:2], whole), "A again": (a, expected[:1], whole)}
    requests |= {"all of A at once": (a, expected[:1], [n - 1, 1])}
    return _in_turn(case, cache, f"{cache}, requests one after the other", requests)


def _parting_points(n: int, subject, stage: int) -> list[int]:
    """After how many tokens a request leaves the one before: before, at and after each edge."""
    edges = [e for e in edges_of(subject) if e < n - 6]
    points = {1, 3, n // 3, n - 6} if not stage else {n - 7}
    for e in edges:
        points |= {e, e + 1, e - 1, e + 5}
    return sorted(p for p in points if 0 < p < n - 4)


def _parting(case, cache: str, ids: Tensor, points: list[int]) -> list:
    """Requests whose prompts begin as the one before, and then part: also inside of a block."""
    a, b = ids[:2, None]
    n = ids.shape[1]
    requests = {"A": (a, case.plain(a), [n - 4, 1, 1, 2])}
    for p in points:
        parted = torch.cat([a[:, :p], b[:, p:]], dim=1)
        wanted = case.plain(parted)
        requests[f"one that leaves A after {p}"] = (parted, wanted, [n - 4, 1, 1, 2])
    requests["A again"] = (a, requests["A"][1], [n - 3, 1, 2])
    way = f"{cache}, requests that part after {points[0]} to {points[-1]} of {n} tokens"
    return _in_turn(case, cache, way, requests)


def _many(case, cache: str, count: int, stage: int) -> list:
    """Many short requests, half of which begin as an earlier one does, for as many blocks."""
    pick = random.Random(case.seed + 31)
    most = case.lengths[0]
    fresh = iter(text(case.subject, count, case.seed + 17, most))
    rows = []
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
        requests[f"request {i}"] = (row[None], case.plain(row[None]), [x for x in lengths if x])
    return _in_turn(case, cache, f"{cache}, {count} requests of many lengths", requests)


# ------------------------------------------------------------------ company


def _interleaved(case, cache: str, ids: Tensor, expected: Tensor) -> list:
    """Texts, each with a cache of its own, read by turns; the last one comes later."""
    subject = case.subject
    n = ids.shape[1]
    half = n // 2
    starts = [[3, 1, 1, half - 5], [1, 2, 2, half - 5], [2, 2, half - 4]]
    plans = [[*start, 1, 2, n - half - 3] for start in starts]

    def read() -> Tensor:
        sessions = [subject.session(cache) for _ in "AB"]
        rows = [cut(ids[i : i + 1], plan, subject.vocab_size) for i, plan in enumerate(plans)]
        logits = [[], [], []]
        for turn in range(len(plans[0])):
            if turn == 1:
                sessions.append(subject.session(cache))
            for session, pieces, parts in zip(sessions, rows, logits, strict=False):
                parts.append(session.read(pieces[len(parts)]))
        return torch.cat([torch.cat(parts, 1) for parts in logits])

    finding = case.read(f"{cache}, texts interleaved, of {n} tokens", read, expected)
    case.room.pop(cache, None)  # nothing closes a session: it may keep its blocks
    return [finding]


def _beams(case, cache: str, ids: Tensor, expected: Tensor) -> list:
    """Three texts change places and are doubled, as beams are, go on, and do so once more."""
    subject = case.subject
    n = ids.shape[1]
    half = n // 2
    moves = {half: [2, 0, 0], half + 2: [1, 2, 1]}
    moved = ids.clone()
    for at, rows in moves.items():
        moved[:, :at] = moved[rows, :at]

    def read() -> Tensor:
        session = subject.session(cache)
        written = ids.clone()
        logits = torch.empty(0)
        start = 0
        for length in (half - 2, 1, 1, 1, 1, 3, n - half - 5):
            if start in moves:
                rows = moves[start]
                session.reorder(rows)
                logits = logits[rows]
                written[:, :start] = written[rows, :start]
            new = session.read(written[:, start : start + length])
            logits = torch.cat([logits, new], 1) if start else new
            start += length
        return logits

    way = f"{cache}, beams that change places, of {n} tokens"
    try:
        session = subject.session(cache)
        session.read(ids[:, :3])
        session.reorder([0, 1, 2])
    except Exception as error:  # the ways before this one judge it
        case.not_offered(way, error)
        return []
    return [case.read(way, read, case.alone(moved))]


# ------------------------------------------------------------------ padding


def _padding(case, rows: int, n: int) -> list[Finding | None]:
    """Shorter texts beside longer ones, padded on the left: without a cache, then with one.

    What one pass without a cache does with padding is no fault of the cache.
    """
    n = n if rows < 4 else min(n, 48)
    ids = text(case.subject, rows, case.seed, n)
    pads = [min(pad, n - 4) for pad in (0, 5, n // 3, 1, n // 2, 2, 16, 3)][:rows]
    if rows == 2:
        pads = [3, 8]  # as where batches are padded to a multiple
    place = torch.arange(n) - torch.tensor(pads)[:, None]  # in the own text; (B, T)
    mask = (place >= 0).long()
    ids = ids.gather(1, place.clamp(min=0))
    real = (place >= 0)[..., None]

    def read(lengths: list | None) -> Tensor:
        return torch.where(real, case.subject.padded(ids, mask, lengths), 0)

    texts = [row[place_ >= 0][None] for row, place_ in zip(ids, place, strict=True)]
    alone = [torch.nn.functional.pad(case.plain(x), (0, 0, n - x.shape[1], 0)) for x in texts]
    way = f"left padding of {rows} texts in one pass, against each text alone"
    finding = case.read(way, partial(read, None), torch.cat(alone))
    if finding is None:
        return []
    case.result.padding.append(finding)
    if finding.size == float("inf"):  # it stopped
        return []
    plain = read(None)
    real = real & plain.isfinite().all(-1, keepdim=True)  # NaN in one pass is not the cache's
    plain = torch.where(real, plain, 0)
    way = f"left padding of {rows} texts through the cache, against one pass"
    lengths = [n // 2, 1, 1, 3, 1, n - n // 2 - 6]
    return [case.read(way, partial(read, lengths), thinned(plain))]


def _right_padding(case, ids: Tensor, expected: Tensor) -> list[Finding | None]:
    """Prompts padded on the right, then single tokens: the padding stays between them."""
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

    def read(lengths: list | None) -> Tensor:
        return torch.where(padding[..., None], 0, subject.padded(padded, mask, lengths))

    way = "right padding through the cache, against each text alone"
    if subject.right_padding is None:
        once = case.read("right padding in one pass", partial(read, None), wanted)
        if once is None or once.verdict not in ("equal", "rounding"):
            case.not_offered(way, NotOffered("one pass without a cache does not read it either"))
            return []
    return [case.read(way, partial(read, [prompt, *[1] * new]), wanted)]
