"""What a learner calls: check, hint and catch_up. The set-up cell of every notebook imports them.

    Head = check(Head)

The name of a function or a class says which exercise it answers. Code that is right goes to the
reader's lesson, which this page and the notebooks after it use. A wrong answer is no error, so that
a page goes on; in a test write `assert check(Head) is Head`.
"""

from __future__ import annotations

import builtins
import difflib
import inspect
import linecache
import os
import re
import sys
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from . import program
from .checks import EXERCISES
from .checks.finding import objection
from .mine import LessonError, Scope, keep, public_names, read_lesson
from .nbfile import FILLED_IN
from .restart import catch_up, explain_errors

__all__ = ["catch_up", "check", "hint"]

T = TypeVar("T")

HELPERS = 20  # cells at most that an answer may use
STAGES = ("a question", "the idea", "the line")

_last = ""  # the exercise that was checked last
_shown: dict[str, int] = {}  # how many stages of its hint were shown, by exercise

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums each time on a GPU
explain_errors()


def check(answer: T) -> T:
    """Check the answer to a blank, and return the code with which the page goes on.

    That is the answer, if it is right: it is then kept in the lesson. Otherwise the mistake is
    named, and the page goes on with what the lesson has under this name, or with the solution.
    Raises LessonError if no exercise has the name of the answer.
    """
    global _last
    if isinstance(answer, str):
        raise LessonError(f"check takes the function or class itself: {answer} = check({answer})")
    name = _last = _name_of(answer)
    found = objection(EXERCISES[name], answer)  # type: ignore[arg-type]
    if found is None:
        print(f"Right: {name} does what it should.")
        cell = _cell(answer, name)
        if not cell.startswith(FILLED_IN):
            print(f"From here on your {name} runs{keep(name, _with_helpers(answer, cell))}")
            return answer
    else:
        print(f"Not yet: {found}")
        if not found.empty:
            print("hint() helps, in three stages.")
    lesson = read_lesson()
    lesson.say([name], "From here on {} runs.")
    if found is None and name not in lesson.yours:
        return answer
    carries_on: T = lesson.scope[name]
    return carries_on


def hint(exercise: Any = None) -> None:
    """Print the next stage of the hint: a question, the idea, then the line.

    It is about the exercise that was checked last, or about the one given, by its name or its
    function or class. Raises LessonError if there is none.
    """
    name = exercise if isinstance(exercise, str) else getattr(exercise, "__name__", "")
    name = _name_of(name) if name else _last
    if not name:
        raise LessonError("a hint is about the exercise that you checked last: run its check first")
    stage = min(_shown.get(name, 0), len(STAGES) - 1)
    _shown[name] = stage + 1
    print(f"{name}, {STAGES[stage]}: {EXERCISES[name].hints[stage]}")


def _name_of(answer: Any) -> str:
    """The exercise that an answer, or a name, is about. Raises LessonError for none."""
    name: Any = answer if isinstance(answer, str) else getattr(answer, "__name__", None)
    if name in EXERCISES:
        return str(name)
    if type(answer).__name__ in EXERCISES:
        kind = type(answer).__name__
        raise LessonError(f"check takes the class, not an object of it: {kind} = check({kind})")
    if not isinstance(name, str):
        raise LessonError(
            f"check takes your function or class, as in Head = check(Head), not {answer!r:.60}"
        )
    near = difflib.get_close_matches(name, EXERCISES, 1)
    cure = f"did you mean {near[0]}?" if near else f"there is {', '.join(EXERCISES)}"
    raise LessonError(f"no exercise is called {name}: {cure}")


def _with_helpers(answer: Any, cell: str) -> str:
    """The cell of an answer, below what it uses of the page: functions, classes and imports.

    What the solutions have too, and other exercises, are left out: a lesson has them.
    """
    page = _page(answer)
    known = {*public_names(), *EXERCISES, *dir(builtins)}
    texts = [cell]
    while len(texts) < HELPERS:
        made = set().union(*map(program.made_in, texts))
        needed = sorted(set().union(*map(program.names_used, texts)) - made - known)
        found = dict.fromkeys(_source(page[name], name, page) for name in needed if name in page)
        new = [text for text in found if text and text not in texts]
        if not new:
            break
        texts = [*new, *texts]
    return "\n\n\n".join(texts)


def _page(answer: Any) -> Scope:
    """The names of the page, among which a function or a class was defined."""
    parts = vars(answer).values() if isinstance(answer, type) else [answer]
    pages = (getattr(inspect.unwrap(part), "__globals__", None) for part in parts if callable(part))
    return next((page for page in pages if page), {})


def _source(thing: Any, name: str, page: Scope) -> str:
    """The text that makes a function, a class or a module again; empty for other things."""
    if isinstance(thing, ModuleType):
        return f"import {thing.__name__} as {name}"
    if not isinstance(thing, (FunctionType, type)) or not thing.__qualname__.isidentifier():
        return ""
    if _page(thing) is page:
        return _cell(thing, name)
    return f"from {thing.__module__} import {thing.__name__} as {name}"


def _cell(answer: Any, name: str) -> str:
    """The text of the cell that defined a function or a class; empty if it cannot be found.

    A cell with a magic as %%time is not among the files that inspect knows, but in the history.
    """
    parts = vars(answer).values() if isinstance(answer, type) else [answer]
    for part in parts:
        code = getattr(inspect.unwrap(part), "__code__", None)
        if code is None:
            continue
        text = "".join(linecache.getlines(code.co_filename))
        if name in text:
            return text
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    typed = getattr(getattr(shell, "history_manager", None), "input_hist_raw", [])
    defines = re.compile(rf"^(?:def|class) {name}\b", re.M)
    return next((text for text in reversed(typed) if defines.search(text)), "")
