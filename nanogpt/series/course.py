"""What a learner calls: check, hint and catch_up. The set-up cell of every notebook imports them.

    Head = check(Head)

The name of a function or a class says which exercise it answers. Code that is right goes to the
reader's lesson, which this page and the notebooks after it use.
"""

from __future__ import annotations

import difflib
import inspect
import linecache
import os
import re
import sys
from typing import Any, TypeVar

from .checks import EXERCISES
from .checks.finding import objection
from .mine import LessonError, keep, read_lesson
from .nbfile import FILLED_IN
from .restart import catch_up, explain_errors

__all__ = ["catch_up", "check", "hint"]

T = TypeVar("T")

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
    name = _last = _name_of(answer)
    found = objection(EXERCISES[name], answer)  # type: ignore[arg-type]
    if found is None:
        print(f"Right: {name} does what it should.")
        cell = _cell(answer, name)
        if not cell.startswith(FILLED_IN):
            print(f"From here on your {name} runs{keep(name, cell)}")
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
