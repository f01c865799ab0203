"""Run an answer on a blank's cases, and find the known mistake that explains what it shows."""

from __future__ import annotations

import dis
import functools
import inspect
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType
from typing import Any

from torch import Tensor

from .comparing import agrees, difference, is_number
from .editing import known_mistakes
from .limits import TooLong, limit
from .observing import ERROR, Observed, observe
from .page import Anew, Answer, Blank, Case
from .words import describe

SURE = 2  # later cases in which an answer and the only mistake that explains it are both wrong
CHECK_SECONDS = 20  # time limit for one check: a correct answer takes less than one
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
    blank: Blank, answer: Answer | Anew, seconds: float | None = None
) -> Objection | None:
    """What is wrong with an answer; None if it is right.

    The message is that of a known mistake that behaves the same up to the first failing case. If
    there is none, it describes the first difference. An answer that runs for more than `seconds`
    (default CHECK_SECONDS) fails.
    """
    name = getattr(answer, "__name__", "it")
    if is_empty(blank, answer):
        words = f"{name} is still empty. Write its body, run its cell, then run this one."
        return Objection(words, empty=True)
    try:
        with limit(seconds or CHECK_SECONDS, f"checking your {name} did not finish"):
            return _first_difference(blank, answer)
    except TooLong as error:
        return Objection(str(error))


def is_empty(blank: Blank, answer: Answer | Anew) -> bool:
    """Whether the blank's body is still only a docstring, `pass` or `...`."""
    function = getattr(answer, blank.method, None) if blank.method else answer
    if not isinstance(function, FunctionType):
        return False
    steps = list(dis.get_instructions(function))
    values = {step.argval for step in steps if step.opname in ("LOAD_CONST", "RETURN_CONST")}
    return {step.opname for step in steps} <= EMPTY and values <= {None}


def _first_difference(blank: Blank, answer: Answer | Anew) -> Objection | None:
    """The objection at the first case that fails."""
    shown: list[Observed] = []
    results: list[Any] = []
    noted = _noted(answer, results) if isinstance(answer, FunctionType) else answer
    for case in blank.cases:
        right = _right(case, blank.solution)
        shown.append(observe(case, noted))
        what = difference(shown[-1], right, case.tolerance)
        if what is None:
            continue
        words = _nothing_but_none(blank.solution) if results else ""
        if words and all(result is None for result in results):
            return Objection(words, words)
        return _explain(blank, answer, shown, what, right)
    return None


def _noted(function: FunctionType, results: list[Any]) -> Answer:
    """Wrap the function so that each call appends its result to `results`."""

    @functools.wraps(function)
    def noted(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        results.append(result)
        return result

    return noted


def _nothing_but_none(solution: Answer) -> str:
    """What to say of an answer that only returns None; "" if its solution does, too."""
    if inspect.isgeneratorfunction(inspect.unwrap(solution)):
        return YIELDS_NOTHING
    return RETURNS_NOTHING if "return " in inspect.getsource(solution) else ""


@cache
def _right(case: Case, answer: Answer) -> Observed:
    """What the reference solution shows, observed once. If it raises, the check is broken."""
    shown = observe(case, answer)
    if ERROR in shown:
        raise shown[ERROR]
    return shown


def _explain(
    blank: Blank, answer: Answer | Anew, shown: list[Observed], what: str, right: Observed
) -> Objection:
    """Describe an answer whose last observed case differs from the reference in `what`."""
    value = shown[-1].get(what)
    perhaps = mistake_of(blank, answer, shown)
    if perhaps and _is_evidence(value):
        return Objection(perhaps, perhaps)
    if not perhaps and isinstance(value, Tensor) and value.numel() > 1 and _is_evidence(value):
        perhaps = mistake_of(blank, answer, shown, until=what)
    case = blank.cases[len(shown) - 1]
    if perhaps:  # it says what to do, so the advice is left out
        words = describe(replace(blank, advice={}), answer, case, what, shown[-1], right)
        return Objection(f"{words} Perhaps {perhaps}", perhaps)
    return Objection(describe(blank, answer, case, what, shown[-1], right))


def mistake_of(
    blank: Blank, answer: Answer | Anew, shown: list[Observed], until: str | None = None
) -> str | None:
    """The message of the mistake that behaves the same up to and including the first failing case.

    A mistake that shows in a later case where the answer is right is not the answer's. If several
    are left, the one that explains most of the later cases: an answer with two mistakes hears about
    one now and about the other next time. With `until`, what the last case shows after that
    observation is not compared.
    """
    found = [
        (message, mistake)
        for message, mistake in known_mistakes(blank)
        if _shows(blank, mistake, shown, until)
    ]
    scores = [0] * len(found)
    innocent = set()
    for case in blank.cases[len(shown) :] if found else []:
        try:
            theirs = observe(case, answer)
        except TooLong:  # what is known already is said
            break
        is_right = difference(theirs, _right(case, blank.solution), case.tolerance) is None
        for i, (_, mistake) in enumerate(found):
            if is_right and not _is_right(case, blank.solution, mistake):
                innocent.add(i)
            elif len(found) > 1:
                scores[i] += agrees(_shown_by(case, mistake), theirs, case.tolerance)
            else:
                scores[i] += not is_right
        if len(found) == 1 and scores[0] == SURE:
            break  # the rest would take longer and change nothing
    left = [i for i in range(len(found)) if i not in innocent]
    if not left:
        return None
    message, _ = found[max(left, key=lambda i: scores[i])]
    return message


def _shows(blank: Blank, mistake: Anew, shown: list[Observed], until: str | None) -> bool:
    """Whether a mistake shows what an answer has shown; most differ in the first case."""
    *before, (case, theirs) = zip(blank.cases, shown, strict=False)
    if not all(_is_right(earlier, blank.solution, mistake) for earlier, _ in before):
        return False
    return agrees(_shown_by(case, mistake), theirs, case.tolerance, until)


@cache
def _is_right(case: Case, right: Answer, mistake: Anew) -> bool:
    """Whether a mistake goes unnoticed on a case."""
    return agrees(_shown_by(case, mistake), _right(case, right), case.tolerance)


@cache
def _shown_by(case: Case, mistake: Anew) -> Observed:
    """What a mistake shows on a case, observed once."""
    return observe(case, mistake)


def _is_evidence(value: Any) -> bool:
    """Whether only this mistake would show it: an error, a NaN or a 0 alone has many causes."""
    if value is None or isinstance(value, BaseException):
        return False
    if isinstance(value, Tensor):
        return not bool(value.isnan().all())
    return not (is_number(value) and value == 0)
