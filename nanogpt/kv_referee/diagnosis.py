"""Diagnose a bug: what do its wrong logits belong to, and which tokens do they depend on?

Wrong logits are often the right logits of something else: the text without its beginning, another
row, other positions. Each of these is computed by a plain pass and compared. If none fits, tokens
are changed one by one: an influence that is missing, or one that must not be, names the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .contract import ERRORS, Model, OutOfTime
from .padding import Padding
from .programs import Read, Rewind, Written, changed, sessions
from .report import Mistake
from .shrinking import Failure, Setting, logits_at

_SHIFTS = (-1, 1, -2, 2, -3, 3)
_MANY = 24  # tokens: of longer texts, only some are tried
_CHANGES = 60  # tokens that are changed to see what depends on them
_OTHERS = (1, 2, 3, 5, 7)  # by how much an id is changed
_LITTLE = 0.5  # of the influence that a token must have: it is lost, or hardly seen
_SLIGHT = 0.02  # of the spread of a token's logits: rounding moves them by no more


class Named(NamedTuple):
    """A kind of mistake, and the mistake in words."""

    mistake: Mistake | None
    words: str


@dataclass(frozen=True)
class _Place:
    """A token in a program: the step that reads it, the row, the column."""

    step: int
    row: int
    column: int


def name_mistake(model: Model, setting: Setting, failure: Failure) -> Named:
    """The kind of mistake; none if the numbers do not show it."""
    text = failure.text
    if text is None:
        return Named(None, "")
    try:
        return _Diagnosis(model, setting, failure, text).named()
    except ERRORS:  # also OutOfTime: what is known anyway is reported
        return Named(None, "")


class _Diagnosis:
    """One wrong token: its text, the logits it got, and the program that read it."""

    def __init__(self, model: Model, setting: Setting, failure: Failure, text: Written):
        self.model = model
        self.setting = setting
        self.failure = failure
        self.program = failure.program
        self.text = text
        self.at = failure.at
        self.wrong = text.logits[self.at]
        self.start = text.starts_at(self.at)
        self.ids = text.ids[: self.at + 1]
        self.right = self.last(self.ids)
        self.size = self.apart(self.wrong, self.right)

    def apart(self, a: Tensor, b: Tensor) -> float:
        """How far the logits of one token are apart.  (V,) twice"""
        return float(self.setting.yard.sizes(a[None, None], b[None, None]).max())

    def last(self, ids: Tensor) -> Tensor:
        """The right logits of the last token of a text.  (T,) -> (V,)"""
        return self.setting.expected([ids])[0][-1]

    def named(self) -> Named:
        """The first explanation that fits, else what the logits depend on."""
        for mistake, words, ids in self.explanations():
            if self.fits(self.last(ids)):
                return Named(mistake, words)
        for words, logits in self.moved():
            if self.fits(logits):
                return Named(Mistake.SHIFTED_POSITION, words)
        return self.by_dependence()

    def fits(self, logits: Tensor) -> bool:
        """Whether the wrong logits are these.  (V,)"""
        return self.apart(self.wrong, logits) <= self.setting.inside()

    # -------------------------------------------------------------- right logits of something else

    def explanations(self) -> Iterator[tuple[Mistake, str, Tensor]]:
        """Yield texts whose last logits the wrong ones may be, with the mistake.  (t,)"""
        ids, at, start = self.ids, self.at, self.start
        piece = f"the piece that begins at token {start}"
        # 1. Everything before the piece is gone, or a row of logits is another's.
        if start:
            words = f"everything before {piece} is forgotten: its logits are those of it alone"
            yield Mistake.LOST_TOKEN, words, ids[start:]
        for other in (at - 1, at + 1):
            if 0 <= other < len(self.text.ids):
                words = f"the logits are those of token {other}: rows of logits are off by one"
                yield Mistake.SHIFTED_POSITION, words, self.text.ids[: other + 1]
        # 2. The text of a neighbour, or of an earlier request up to here.
        yield from self.of_others()
        # 3. One token less, one twice, two exchanged, or a beginning that is gone.
        for i in self.near(at):
            words = f"token {i} is missing from the cache (of {at + 1} tokens read)"
            yield Mistake.LOST_TOKEN, words, torch.cat([ids[:i], ids[i + 1 :]])
        for i in self.near(at):
            twice = torch.cat([ids[: i + 1], ids[i:]])
            yield Mistake.STALE_TOKEN, f"token {i} is in the cache twice", twice
        oldest = Mistake.WRONG_WINDOW if self.model.window else Mistake.LOST_TOKEN
        for i in self.near(start)[1:]:
            yield oldest, f"the first {i} tokens are forgotten", ids[i:]
        for i, j in pairwise(self.near(at + 1)):
            swapped = ids.clone()
            swapped[[i, j]] = swapped[[j, i]]
            if not torch.equal(swapped, ids):
                words = f"tokens {i} and {j} are swapped in the cache"
                yield Mistake.SHIFTED_POSITION, words, swapped
        # 4. Tokens that were taken back are still there.
        for drafts in self.taken_back():
            words = f"{len(drafts)} tokens that were taken back are still in the cache"
            for i in self.near(at + 1)[1:]:
                yield Mistake.STALE_TOKEN, words, torch.cat([ids[:i], drafts, ids[i:]])

    def near(self, n: int) -> list[int]:
        """The numbers below n; of many, the first, the last, and those around the piece's start."""
        chosen = {*range(4), *range(n - 6, n), *range(self.start - 3, self.start + 3)}
        return [i for i in range(n) if n <= _MANY or i in chosen]

    def of_others(self) -> Iterator[tuple[Mistake, str, Tensor]]:
        """Yield the texts of neighbours, and those that begin as another request does."""
        ids, at = self.ids, self.at
        for name, row, theirs in self.others():
            same = name == self.text.session
            kind = Mistake.WRONG_ROW if same else self.relation(name)
            if len(theirs) > at and not torch.equal(theirs[: at + 1], ids):
                words = f"row {self.text.row} has the logits of row {row}"
                yield kind, words if same else f"the logits are those of {name}", theirs[: at + 1]
            for k in self.near(min(at, len(theirs)) + 1)[1:] if not same else ():
                mixed = torch.cat([theirs[:k], ids[k:]])
                if not torch.equal(mixed, ids):
                    yield kind, f"its first {k} tokens are those of {name}", mixed

    def moved(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the logits of shifted positions, if a plain pass accepts positions.  (V,)"""
        if not callable(getattr(self.model.given, "placed", None)) or not self.start:
            return
        pos = torch.arange(self.at + 1)
        shifts = {n: f"positions are shifted by {n:+d} from token {self.start} on" for n in _SHIFTS}
        shifts[-self.start] = f"positions restart at 0 in the piece that begins at {self.start}"
        for n, words in shifts.items():
            places = torch.where(pos >= self.start, pos + n, pos)
            if places.min() < 0:
                continue
            try:
                yield words, self.model.placed(self.ids[None], places)[0, -1]
            except OutOfTime:
                raise
            except ERRORS:
                continue

    def others(self) -> Iterator[tuple[str, int, Tensor]]:
        """Yield the other texts of the program: session, row and tokens, (T,)."""
        texts: dict[tuple[str, int], list[int]] = {}
        for step in self.program:
            if isinstance(step, Read):
                for row, ids in enumerate(step.ids):
                    texts.setdefault((step.session, row), []).extend(ids)
            elif isinstance(step, Rewind):
                for (name, _), held in texts.items():
                    if name == step.session:
                        del held[len(held) - step.n :]
        for (name, row), held in texts.items():
            if (name, row) != (self.text.session, self.text.row):
                yield name, row, torch.tensor(held)

    def taken_back(self) -> Iterator[Tensor]:
        """Yield the tokens that rewinds of this text took back.  (n,)"""
        for before, step in pairwise(self.program):
            mine = step.session == self.text.session and len(before_ids(before)) > self.text.row
            if isinstance(step, Rewind) and mine:
                yield torch.tensor(before_ids(before)[self.text.row][-step.n :])

    def relation(self, name: str) -> Mistake:
        """What another session is to this one: an earlier request, or one beside it."""
        uses = {
            one: [i for i, step in enumerate(self.program) if one in _uses(step)]
            for one in sessions(self.program)
        }
        earlier = uses[name][-1] < uses[self.text.session][0]
        return Mistake.PREVIOUS_REQUEST if earlier else Mistake.ANOTHER_SESSION

    # -------------------------------------------------------------- what the logits depend on

    def by_dependence(self) -> Named:
        """Name the tokens that the logits depend on but must not, or must depend on but do not."""
        mine = self.places()
        budget = iter(range(_CHANGES))
        # 1. Tokens that are none of this text's: neighbours, other requests, drafts taken back.
        slight = self.size < _SLIGHT * self.setting.yard.spread
        least = max(self.setting.inside(), self.size / 2 if slight else 0)
        for place in self.all_places():
            if place in mine or next(budget, None) is None:
                continue
            if self.influence(place) > least:
                return self.foreign(place)
        # 2. Tokens behind this one.
        for i, place in enumerate(mine[self.at + 1 :], self.at + 1):
            if next(budget, None) is not None and self.influence(place) > self.setting.inside():
                words = f"the logits of token {self.at} depend on the later token {i}"
                return Named(Mistake.MASK, words)
        # 3. Its own tokens: how much they move the wrong logits, and how much the right ones.
        lost, extra = [], []
        for i in self.near(self.at + 1):
            got = sum(self.influence(mine[i], change) for change in _OTHERS)
            due = sum(self.needed(i, change) for change in _OTHERS)
            if due > self.setting.inside() and got < _LITTLE * due:
                lost.append(i)
            elif got > self.setting.inside() and due < _LITTLE * got:
                extra.append(i)
        if slight and not lost and not extra:
            share = self.size / max(self.setting.yard.spread, 1e-300)
            words = f"each token has its influence, and the logits are off by {share:.1e} of their "
            return Named(Mistake.ROUNDING, words + "spread")
        return self.of_its_own(lost, extra)

    def of_its_own(self, lost: list[int], extra: list[int]) -> Named:
        """The mistake, by the tokens of the text itself that have lost or gained an influence."""
        token = f"the logits of token {self.at}"
        # 1. A token of the piece itself is not seen: the mask. Earlier ones are lost.
        if lost and max(lost) >= self.start:
            return Named(Mistake.MASK, f"{token} depend too little on {_spans(lost)}")
        # 2. With a window, its oldest tokens are those that a window decides on.
        near = self.at + 1 - (self.model.window or 0)
        if self.model.window and extra and max(extra) < near:
            words = f"{token} depend on {_spans(extra)}, outside of the window"
            return Named(Mistake.WRONG_WINDOW, words)
        if lost:
            words = f"{token} must depend on {_spans(lost)} but do not, or too little"
            if lost == list(range(self.start)):
                words = f"everything before token {self.start} is forgotten, or most of it"
            oldest = lost == list(range(lost[0], lost[-1] + 1)) and lost[-1] < self.start - 1
            windowed = self.model.window and oldest and self.at + 2 >= self.model.window
            return Named(Mistake.WRONG_WINDOW if windowed else Mistake.LOST_TOKEN, words)
        if extra and max(extra) < self.start and self.model.window:
            words = f"{token} depend on {_spans(extra)} too much"
            return Named(Mistake.WRONG_WINDOW, words)
        if self.model.window and self.at >= self.model.window:
            words = f"no shorter text shows it: it begins at token {self.at}, behind the window"
            return Named(Mistake.WRONG_WINDOW, words)
        words = "each token has an influence, as it must, and no other has: it is at another place"
        return Named(Mistake.SHIFTED_POSITION, words)

    def foreign(self, place: _Place) -> Named:
        """The mistake, if the logits depend on a token that is none of this text's."""
        step = self.program[place.step]
        if step.session != self.text.session:
            kind = self.relation(step.session)
            words = f"the logits depend on a token of {kind}, {step.session!r}"
            return Named(kind, words)
        if place.row != self.row_at(place.step):
            words = f"row {self.text.row} depends on row {place.row}: texts are mixed up"
            return Named(Mistake.WRONG_ROW, words)
        words = "the logits depend on a token that was taken back"
        return Named(Mistake.STALE_TOKEN, words)

    def row_at(self, step: int) -> int:
        """The row of this text in a step that read a part of it."""
        one = self.program[step]
        assert isinstance(one, Read)
        if len(one.ids) == 1:
            return 0
        mine = [int(x) for x, s in zip(self.text.ids, self.text.steps, strict=True) if s == step]
        rows = [r for r, ids in enumerate(one.ids) if list(ids[: len(mine)]) == mine]
        return self.text.row if self.text.row in rows or not rows else rows[0]

    def places(self) -> list[_Place]:
        """Where the program reads each token of this text."""
        found = []
        for i, step in enumerate(self.text.steps):
            found.append(_Place(step, self.row_at(step), i - self.text.starts_at(i)))
        return found

    def all_places(self) -> Iterator[_Place]:
        """Yield all tokens that are read before the wrong one's step ends."""
        for i, step in enumerate(self.program[: self.text.steps[self.at] + 1]):
            if isinstance(step, Read):
                for row, ids in enumerate(step.ids):
                    for column in range(len(ids)):
                        yield _Place(i, row, column)

    def influence(self, place: _Place, change: int = 1) -> float:
        """How far the wrong logits move if this token is another one."""
        vocab_size = self.setting.vocab_size
        other = changed(
            self.program, place.step, place.row, place.column, lambda x: (x + change) % vocab_size
        )
        return self.apart(logits_at(self.setting, other, self.failure), self.wrong)

    def needed(self, i: int, change: int = 1) -> float:
        """How far the right logits move if token i of the text is another one."""
        other = self.ids.clone()
        other[i] = (other[i] + change) % self.setting.vocab_size
        return self.apart(self.last(other), self.right)


def before_ids(step: object) -> tuple[tuple[int, ...], ...]:
    """The ids of a Read; none of any other step."""
    return step.ids if isinstance(step, Read) else ()


def _uses(step: object) -> tuple[str, ...]:
    return (getattr(step, "session", ""), getattr(step, "into", ""))


def name_padding_mistake(
    model: Model, padding: Padding, inside: float, apart: Callable[[Tensor, Tensor], float]
) -> Named:
    """The mistake of a padded batch: is the padding read, or are positions counted wrongly?"""
    try:
        usual = padding.read(model, cached=True)
        ids = torch.where(padding.mask > 0, padding.ids, (padding.ids + 1) % model.vocab_size)
        other = Padding(
            padding.name, ids, padding.mask, padding.texts, padding.lengths, padding.right
        ).read(model, cached=True)
    except ERRORS:
        return Named(None, "")
    if apart(other, usual) > inside:
        return Named(Mistake.MASK, "the logits depend on what the padding is: it is read as text")
    words = "what the padding is has no influence: it counts in the positions, or hides tokens"
    return Named(Mistake.SHIFTED_POSITION, words)


def _spans(numbers: list[int]) -> str:
    """Token numbers in words: "token 3", or "tokens 0 to 4 and 7"."""
    spans: list[list[int]] = []
    for i in numbers:
        if spans and i == spans[-1][-1] + 1:
            spans[-1].append(i)
        else:
            spans.append([i])
    words = [f"{s[0]} to {s[-1]}" if len(s) > 1 else str(s[0]) for s in spans[:3]]
    more = " and others" if len(spans) > 3 else ""
    return f"token{'s' if len(numbers) > 1 else ''} {' and '.join(words)}{more}"
