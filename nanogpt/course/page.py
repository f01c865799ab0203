"""A blank as data: its solution, what a check runs, the mistakes people make in it, its hints.

A page in `blanks/` has everything about one blank. Its mistakes are *edits of the solution*,
"old -> new", so that each is real code, which runs through the same cases as a learner's answer.

A *driver* is a generator that runs an answer and yields pairs (what, value), the most telling
first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Answer = Callable[..., Any]  # a function or a class
Pairs = Generator[tuple[str, Any], None, None]
Driver = Callable[..., Pairs]
Edits = Sequence[str]  # each "old -> new"; or one whole answer, which begins with a line break

ARROW = " -> "
_SHORT = 24  # characters of a setting quoted in a message


class Case:
    """One run of an answer: a driver, its settings, and how exact its numbers must be.

    `tolerance` is relative to a tensor's largest number; None means the default for its dtype.
    """

    def __init__(self, driver: Driver, tolerance: float | None = None, **settings: Any) -> None:
        self.driver = driver
        self.tolerance = tolerance
        self.settings = settings

    def __str__(self) -> str:
        return ", ".join(f"{name}={_short(value)}" for name, value in self.settings.items())


def _short(value: Any) -> str:
    text = getattr(value, "__name__", repr(value))
    if len(text) <= _SHORT:
        return text
    return f"{text[:_SHORT]}…"


@dataclass(frozen=True)
class Anew:
    """A wrong answer that may keep state between calls, so it is built anew for each run."""

    make: Callable[[], Answer]


@dataclass(frozen=True, eq=False)
class Blank:
    """Everything about one blank.

    A message begins in lower case, names the mistake and says what to do. It stands on the page
    because somebody made that mistake, or because it is to be expected in this blank and the first
    difference would not tell its cause. Any other answer is told the first difference. `advice` is
    for differences that no mistake on the page explains: a part of an observation's name, and a
    sentence.
    """

    number: str  # the notebook and the blank's place in it: "02.2"
    minutes: int  # a learner's, from the task to a check that passes: an estimate
    solution: Answer
    cases: Sequence[Case]  # from simple to full: the first that fails is explained
    mistakes: Mapping[str, Edits | tuple[Edits, ...]]  # a message: its edits, or ways to make it
    hints: tuple[str, str, str]  # a question, the idea, the line
    wrong: Sequence[str] = ()  # edits or whole answers that the cases must refuse
    right: Sequence[str] = ()  # whole answers in other styles
    method: str = ""  # of a class: the method to fill in
    advice: Mapping[str, str] = field(default_factory=dict)
    axes: Iterable[tuple[str, ...]] = ()  # names of the dimensions of what is observed

    @property
    def name(self) -> str:
        """The name of the solution, by which the blank is known."""
        return self.solution.__name__

    @property
    def notebook(self) -> str:
        """The number of the notebook whose blank it is: "02"."""
        return self.number.partition(".")[0]

    @cached_property
    def source(self) -> str:
        """The solution as text, without a line break at its end; the notebook shows it."""
        return inspect.getsource(self.solution).rstrip("\n")

    def text_of(self, *edits: str) -> str:
        """The text of the solution after these edits. Raises ValueError for an idle one."""
        source = f"{self.source}\n"
        for edit in edits:
            if edit.startswith("\n"):
                source = edit
                continue
            old, arrow, new = edit.partition(ARROW)
            if not arrow or old not in source:
                raise ValueError(f"the solution of {self.name} has no {old!r}: copy it from there")
            source = source.replace(old, new)
        return source
