"""An exercise as data: a reference solution, cases to run, mistakes to recognise.

A *driver* is a generator that runs an answer and yields pairs (what, value), the most
informative first. A *mistake* is wrong code that runs through the same cases as the learner's
answer, so the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[..., Any]  # a function or a class
Pairs = Generator[tuple[str, Any], None, None]
Driver = Callable[..., Pairs]

MOST = 24  # characters of a setting quoted in a message


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
    if len(text) <= MOST:
        return text
    return f"{text[:MOST]}…"


@dataclass(frozen=True)
class Anew:
    """A mistake that keeps state between calls, so it is built anew for each run."""

    make: Callable[[], Answer]


@dataclass(frozen=True)
class Exercise:
    """What an answer to a blank is tested with, and the messages for wrong ones.

    A message begins in lower case, names the mistake and says what to do. `advice` is for
    differences that no known mistake explains: part of an observation's name, and a sentence.
    """

    notebook: str  # the number of the notebook whose blank it is: "02"
    right: Answer
    cases: list[Case]  # from simple to full: the first that fails is explained
    mistakes: Mapping[str, Answer | Anew]  # a message, and code that makes the mistake
    hints: tuple[str, str, str]  # a question, the idea, the line
    method: str = ""  # of a class: the method to fill in
    advice: Mapping[str, str] = field(default_factory=dict)
    axes: Iterable[tuple[str, ...]] = ()  # names of the dimensions of what is observed
