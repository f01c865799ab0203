"""Diagnose a bug: which tokens do its wrong logits depend on?

Tokens are changed one by one. An influence that is missing, or one that must not be, names the
mistake. Shifted positions and coarse rounding leave each token its influence; they are named if a
plain pass at those positions has the same logits, or if everything that is read from the cache is a
little off. A kind that nothing shows is not named: the report says what was ruled out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import ERRORS, OutOfTime
from .programs import Failure, Fork, Length, Read, Written, changed, in_pieces, sessions
from .report import Mistake
from .shrinking import Setting, logits_at

_FAR = 3  # positions by which tokens are tried to be too far
_MANY = 24  # tokens: of longer texts, only some are tried
_CHANGES = 60  # tokens that are changed to see what depends on them
_OTHERS = (1, 2, 3, 5, 7)  # by how much an id is changed
_LITTLE = 0.5  # of the influence that a token must have: it is lost, or hardly seen
_SLIGHT = 0.02  # of the spread of a token's logits: rounding moves them by no more


class Named(NamedTuple):
    """A kind of mistake, and the mistake in words; without a kind, what was ruled out."""

    mistake: Mistake | None
    words: str


@dataclass(frozen=True)
class _Place:
    """A token in a program: the step that reads it, the row, the column."""

    step: int
    row: int
    column: int


def name_mistake(setting: Setting, failure: Failure) -> Named:
    """The kind of mistake; none if the numbers do not show it."""
    if failure.text is None:
        return Named(None, "")
    try:
        return _Diagnosis(setting, failure, failure.text).named()
    except ERRORS:  # also OutOfTime: what is known anyway is reported
        return Named(None, "")


class _Diagnosis:
    """One wrong token: its text, the logits it got, and the program that read it."""

    def __init__(self, setting: Setting, failure: Failure, text: Written):
        self.setting = setting
        self.model = setting.reference.model
        self.yard = setting.yard
        self.failure = failure
        self.program = failure.program
        self.text = text
        self.at = failure.at
        self.wrong = text.logits[self.at]
        self.start = text.starts_at(self.at)
        self.ids = text.ids[: self.at + 1]
        self.right = self.last(self.ids)
        self.size = setting.apart(self.wrong, self.right)

    def last(self, ids: Tensor) -> Tensor:
        """The right logits of the last token of a text.  (T,) -> (V,)"""
        return self.setting.reference.expected([ids])[0][-1]

    def named(self) -> Named:
        """The first mistake that the numbers show."""
        mine = [
            _Place(step, row, i - self.text.starts_at(i))
            for i, (step, row) in enumerate(zip(self.text.steps, self.text.rows, strict=True))
        ]
        found = self.shifted() or self.of_foreign_tokens(mine) or self.of_its_own(mine)
        if found:
            return found
        # All tokens have their influence, and no others: what else leaves them that?
        slight = self.size < _SLIGHT * self.yard.spread
        if slight and self.everything_is_off():
            share = self.size / self.yard.spread
            words = f"all that is read from the cache is off, here by {share:.1e} of the spread"
            return Named(Mistake.ROUNDING, words)
        window = self.model.window
        if window and self.at >= window:
            words = f"no shorter text shows it: it begins at token {self.at}, behind the window"
            return Named(Mistake.WRONG_WINDOW, words)
        words = (
            "no token has lost half of its influence, and none of other rows and requests, drafts "
            "and later tokens has any"
        )
        if not callable(getattr(self.model.given, "placed", None)):
            words += "; whether positions are shifted needs placed(ids, pos)"
        return Named(None, words)

    # -------------------------------------------------------------- positions

    def shifted(self) -> Named | None:
        """Whether the logits are those of shifted positions, if a plain pass accepts positions."""
        if not callable(getattr(self.model.given, "placed", None)) or not self.start:
            return None
        pos = torch.arange(self.at + 1)
        for n in sorted({*range(-self.start, _FAR + 1)} - {0}, key=abs):
            try:
                places = torch.where(pos >= self.start, pos + n, pos)
                logits = self.model.placed(self.ids[None], places)[0, -1]
            except OutOfTime:
                raise
            except ERRORS:  # positions that the model does not have
                continue
            if self.setting.apart(self.wrong, logits) <= self.yard.inside:
                words = f"positions are shifted by {n:+d} from token {self.start} on"
                if n == -self.start:
                    words = f"positions restart at 0 in the piece that begins at {self.start}"
                return Named(Mistake.SHIFTED_POSITION, words)
        return None

    # -------------------------------------------------------------- what the logits depend on

    def of_foreign_tokens(self, mine: list[_Place]) -> Named | None:
        """Whether the logits depend on tokens that they must not depend on."""
        # 1. Tokens that are none of this text's: neighbours, other requests, drafts taken back.
        tries = iter(range(_CHANGES))
        slight = self.size < _SLIGHT * self.yard.spread
        least = max(self.yard.inside, self.size / 2 if slight else 0)
        for place in self.all_places():
            if place in mine or next(tries, None) is None:
                continue
            if self.influence(place) > least:
                return self.foreign(place)
        # 2. Tokens behind this one.
        for i, place in enumerate(mine[self.at + 1 :], self.at + 1):
            if next(tries, None) is not None and self.influence(place) > self.yard.inside:
                words = f"the logits of token {self.at} depend on the later token {i}"
                return Named(Mistake.MASK, words)
        return None

    def of_its_own(self, mine: list[_Place]) -> Named | None:
        """Whether tokens of the text itself have lost or gained an influence."""
        # 1. How much each moves the wrong logits, and how much the right ones.
        lost, extra = [], []
        for i in self.near(self.at + 1):
            got = sum(self.influence(mine[i], change) for change in _OTHERS)
            due = sum(self.needed(i, change) for change in _OTHERS)
            if due > self.yard.inside and got < _LITTLE * due:
                lost.append(i)
            elif got > self.yard.inside and due < _LITTLE * got:
                extra.append(i)
        token = f"the logits of token {self.at}"
        # 2. A token of the piece itself is not seen: the mask. Earlier ones are lost.
        if lost and max(lost) >= self.start:
            return Named(Mistake.MASK, f"{token} depend too little on {_spans(lost)}")
        # 3. With a window, its oldest tokens are those that a window decides on.
        window = self.model.window
        if window and extra and max(extra) < self.at + 1 - window:
            words = f"{token} depend on {_spans(extra)}, outside of the window"
            return Named(Mistake.WRONG_WINDOW, words)
        if lost:
            words = f"{token} must depend on {_spans(lost)} but do not, or too little"
            if lost == list(range(self.start)):
                words = f"everything before token {self.start} is forgotten, or most of it"
            oldest = lost == list(range(lost[0], lost[-1] + 1)) and lost[-1] < self.start - 1
            windowed = window and oldest and self.at + 2 >= window
            return Named(Mistake.WRONG_WINDOW if windowed else Mistake.LOST_TOKEN, words)
        if window and extra and max(extra) < self.start:
            return Named(Mistake.WRONG_WINDOW, f"{token} depend on {_spans(extra)} too much")
        return None

    def near(self, n: int) -> list[int]:
        """The numbers below n; of many, the first, the last, and those around the piece's start."""
        chosen = {*range(4), *range(n - 6, n), *range(self.start - 3, self.start + 3)}
        return [i for i in range(n) if n <= _MANY or i in chosen]

    def foreign(self, place: _Place) -> Named:
        """The mistake, if the logits depend on a token that is none of this text's."""
        step = self.program[place.step]
        if step.session != self.text.session:
            kind = self.relation(step.session)
            words = f"the logits depend on a token of {kind}, {step.session!r}"
            return Named(kind, words)
        # The row of this text when that step was read: drafts that were taken back have none left.
        before = [
            row for row, at in zip(self.text.rows, self.text.steps, strict=True) if at <= place.step
        ]
        if (before[-1] if before else self.text.row) == place.row:
            words = "the logits depend on a token that was taken back"
            return Named(Mistake.STALE_TOKEN, words)
        words = f"row {self.text.row} depends on a token of another text, read in row {place.row}"
        return Named(Mistake.WRONG_ROW, words)

    def relation(self, name: str) -> Mistake:
        """What another session is to this one: an earlier request, or one beside it."""
        uses = {
            one: [
                i
                for i, step in enumerate(self.program)
                if one == step.session or isinstance(step, Fork) and one == step.into
            ]
            for one in sessions(self.program)
        }
        earlier = uses[name][-1] < uses[self.text.session][0]
        return Mistake.PREVIOUS_REQUEST if earlier else Mistake.ANOTHER_SESSION

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
        return self.setting.apart(logits_at(self.setting, other, self.failure), self.wrong)

    def needed(self, i: int, change: int = 1) -> float:
        """How far the right logits move if token i of the text is another one."""
        other = self.ids.clone()
        other[i] = (other[i] + change) % self.setting.vocab_size
        return self.setting.apart(self.last(other), self.right)

    # -------------------------------------------------------------- rounding

    def everything_is_off(self) -> bool:
        """Whether whatever is read from the cache is a little off, in single tokens and in pieces.

        Stored in too few bits, each token is: already behind the first one, and however it is read.
        A mistake in a mask, a position or a state spares some of them.
        """
        n = max(len(self.ids), 6)
        ids = self.model.text(1, self.setting.reference.seed, n)
        first = self.model.limits.shortest
        ways: list[list[Length]] = [[first, *[1] * (n - first)]]
        if self.model.limits.chunks:
            ways.append([first, n - first])
        (right,) = self.setting.reference.expected([ids[0]])
        for lengths in ways:
            (text,) = self.setting.run(in_pieces(ids, lengths, self.setting.vocab_size))
            sizes = self.yard.sizes(text.logits[None], right[None])[0, first:]
            if not (self.yard.inside < sizes).all() or sizes.max() > _SLIGHT * self.yard.spread:
                return False
        return True


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
