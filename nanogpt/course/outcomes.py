"""The outcome of an exercise, as the graded process writes it and the report shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

_LONGEST = 1000  # characters of a learner's error message


class Outcome(Enum):
    """The result of one exercise: its mark in the table, and the words for it everywhere."""

    PASSED = "+", "passed"
    BORROWED = "=", "passed, but with the package's own code"
    MISTAKE = "x", "a mistake"
    MISSING = "-", "not there"
    NOT_GRADED = "?", "not graded"

    def __init__(self, mark: str, words: str) -> None:
        self.mark = mark
        self.words = words


ACCEPTED = {Outcome.PASSED, Outcome.BORROWED}
WRITTEN = ACCEPTED | {Outcome.MISTAKE}


@dataclass(frozen=True)
class ExerciseResult:
    """The outcome of one exercise; for a mistake, the sentence that names it."""

    outcome: Outcome
    sentence: str = ""
    mistake: str = ""  # the matching message from the blank's page, if any

    def __str__(self) -> str:
        return self.sentence or self.outcome.words


def to_line(name: str, result: ExerciseResult) -> str:
    """A result as a line of JSON, for `from_line`."""
    return json.dumps([name, result.outcome.name, result.sentence, result.mistake]) + "\n"


def from_line(line: str) -> tuple[str, ExerciseResult]:
    """The exercise and its result. Raises ValueError for a line that `to_line` did not write."""
    try:
        name, outcome, sentence, mistake = json.loads(line)
        words = one_line(sentence), one_line(mistake)
        return one_line(name), ExerciseResult(Outcome[outcome], *words)
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a result: {line:.60}") from error


def one_line(text: str) -> str:
    """A text as one printable line, because a learner's error message may contain anything."""
    words = " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in words)[:_LONGEST]
