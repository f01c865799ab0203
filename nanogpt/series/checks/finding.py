"""Run an answer on an exercise's cases, and find the known mistake that explains what it shows."""

from __future__ import annotations

import dis
import functools
import inspect
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

from torch import Tensor

from ..limits import TooLong, limit
from .comparing import agrees, difference
from .exercise import Anew, Answer, Case, Exercise
from .observing import ERROR, Observed, observe
from .words import describe

SECONDS = 20  # time limit for one check: a correct answer takes less than one
RETURNS_NOTHING = "it returned None: does it end with `return`?"
YIELDS_NOTHING = "it returned None: produce one value after another with `yield`."
EMPTY = {"RESUME", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "NOP", "COPY_FREE_VARS"}


@dataclass(frozen=True)
class Objection:
    """What is wrong with an answer, in a sentence or two."""

    words: str
    mistake: str = ""  # the message of the known mistake that explains it, if any
    empty: bool = False  # the blank has not been filled in yet

    def __str__(self) -> str:
        return self.words


def objection(
    exercise: Exercise, answer: Answer | Anew, seconds: float | None = None
) -> Objection | None:
    """What is wrong with an answer; None if it is right.

    The message is that of a known mistake that behaves the same up to the first failing case. If
    there is none, it describes the first difference. An answer that runs for more than `seconds`
    (default SECONDS) fails.
    """
    name = getattr(answer, "__name__", "it")
    if is_empty(exercise, answer):
        words = f"{name} is still empty. Write its body, run its cell, then run this one."
        return Objection(words, empty=True)
    try:
        with limit(seconds or SECONDS, f"checking your {name} did not finish"):
            return _first_difference(exercise, answer)
    except TooLong as error:
        return Objection(str(error))


def is_empty(exercise: Exercise, answer: Answer | Anew) -> bool:
    """Whether the blank's body is still only a docstring, `pass` or `...`."""
    function = getattr(answer, exercise.method, None) if exercise.method else answer
    if not isinstance(function, FunctionType):
        return False
    steps = list(dis.get_instructions(function))
    values = {step.argval for step in steps if step.opname in ("LOAD_CONST", "RETURN_CONST")}
    return {step.opname for step in steps} <= EMPTY and values <= {None}


def _first_difference(exercise: Exercise, answer: Answer | Anew) -> Objection | None:
    """The objection at the first case that fails."""
    shown: list[Observed] = []
    results: list[Any] = []
    noted = _noted(answer, results) if isinstance(answer, FunctionType) else answer
    for case in exercise.cases:
        right = _right(case, exercise.right)
        shown.append(observe(case, noted))
        what = difference(shown[-1], right, case.tolerance)
        if what is None:
            continue
        if results and all(result is None for result in results) and _returns(exercise):
            yields = inspect.isgeneratorfunction(inspect.unwrap(exercise.right))
            words = YIELDS_NOTHING if yields else RETURNS_NOTHING
            return Objection(words, words)
        return _explain(exercise, answer, shown, what, right)
    return None


def _noted(function: FunctionType, results: list[Any]) -> Answer:
    """Wrap the function so that each call appends its result to `results`."""

    @functools.wraps(function)
    def noted(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        results.append(result)
        return result

    return noted


def _returns(exercise: Exercise) -> bool:
    """Whether the reference solution, a function, returns something in the first case."""
    results: list[Any] = []
    right = exercise.right
    if isinstance(right, FunctionType):
        observe(exercise.cases[0], _noted(right, results))
    return any(result is not None for result in results)


@cache
def _right(case: Case, answer: Answer) -> Observed:
    """What the reference solution shows, observed once. If it raises, the check is broken."""
    shown = observe(case, answer)
    if ERROR in shown:
        raise shown[ERROR]
    return shown


def _explain(
    exercise: Exercise, answer: Answer | Anew, shown: list[Observed], what: str, right: Observed
) -> Objection:
    """Describe an answer whose last observed case differs from the reference in `what`."""
    value = shown[-1].get(what)
    perhaps = mistake_of(exercise, answer, shown)
    if perhaps and _is_evidence(value):
        return Objection(perhaps, perhaps)
    if not perhaps and isinstance(value, Tensor) and _is_evidence(value):
        perhaps = mistake_of(exercise, answer, shown, until=what)
    case = exercise.cases[len(shown) - 1]
    words = describe(exercise, answer, case, what, shown[-1], right)
    return Objection(f"{words} Perhaps {perhaps}", perhaps) if perhaps else Objection(words)


def mistake_of(
    exercise: Exercise, answer: Answer | Anew, shown: list[Observed], until: str | None = None
) -> str | None:
    """The message of the mistake that behaves the same up to and including the first failing case.

    If several do, the one that explains most of the later cases: an answer with two mistakes
    hears about one now and about the other next time. With `until`, what the last case shows
    after that observation is not compared.
    """
    found = {
        message: mistake
        for message, mistake in exercise.mistakes.items()
        if _shows(exercise, mistake, shown, until)
    }
    if len(found) < 2:
        return next(iter(found), None)
    scores = dict.fromkeys(found, 0)
    for case in exercise.cases[len(shown) :]:
        theirs = observe(case, answer)
        for message, mistake in found.items():
            scores[message] += agrees(case, mistake, theirs)
    return max(scores, key=lambda message: scores[message])


def _shows(
    exercise: Exercise, mistake: Answer | Anew, shown: list[Observed], until: str | None
) -> bool:
    """Whether a mistake shows what an answer has shown; most differ in the first case."""
    *before, (case, theirs) = zip(exercise.cases, shown, strict=False)
    if not all(_is_right(earlier, exercise.right, mistake) for earlier, _ in before):
        return False
    return agrees(case, mistake, theirs, until)


@cache
def _is_right(case: Case, right: Answer, mistake: Answer | Anew) -> bool:
    """Whether a mistake goes unnoticed on a case."""
    return agrees(case, mistake, _right(case, right))


def _is_evidence(value: Any) -> bool:
    """Whether only this mistake would show it: an error or a NaN alone has many causes."""
    if value is None or isinstance(value, BaseException):
        return False
    return not (isinstance(value, Tensor) and bool(value.isnan().all()))
