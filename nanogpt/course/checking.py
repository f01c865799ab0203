"""The learner's two functions: check and hint. Every notebook's set-up cell imports them.

    Head = check(Head)

The name of a function or class identifies the exercise. Correct code is added to the reader's
lesson, which this notebook and the later ones use. A wrong answer raises no error, so that the
notebook continues; in a test, write `assert check(Head) is Head`.
"""

from __future__ import annotations

import builtins
import difflib
import inspect
import linecache
import os
import re
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from . import program
from .blanks import BLANKS
from .finding import objection
from .lesson import FILLED_IN, LessonError, Scope, keep, read_lesson
from .missing import explain_errors, running_shell
from .solutions import lesson_names

T = TypeVar("T")

_HELPERS = 20  # most cells that an answer may depend on
STAGES = ("a question", "the idea", "the line")

_last = ""  # the most recently checked exercise
_shown: dict[str, int] = {}  # number of hint stages already shown, by exercise

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic sums on a GPU
explain_errors()


def check(answer: T) -> T:
    """Check the answer to a blank, and return the code for the rest of the notebook.

    An answer that passes is returned and added to the lesson. Otherwise the mistake is named, and
    the lesson's version or the solution is returned; so it is for an empty blank. Raises
    LessonError if no exercise has the answer's name.
    """
    global _last
    if isinstance(answer, str):
        raise LessonError(f"check takes the function or class itself: {answer} = check({answer})")
    name = _last = _name_of(answer)
    found = objection(BLANKS[name], answer)  # type: ignore[arg-type]
    if found is None:
        print(f"Right: {name} does what it should.")
        cell = _cell(answer, name)
        if not cell.startswith(FILLED_IN):
            print(f"From here on your {name} runs{keep(name, _with_helpers(answer, cell))}")
            return answer
    lesson = read_lesson().check([name])
    own = name in lesson.yours
    carries_on: T = lesson.scope[name]
    if found is not None and found.empty and own:  # a notebook that was opened again
        print(f"You solved {name} before. From here on your {name} from {lesson.path} runs.")
        return carries_on
    if found is not None:
        print(f"Not yet: {found}")
        if not found.empty:
            print("hint() helps, in three stages.")
    lesson.say([name], "From here on {} runs.")
    return answer if found is None and not own else carries_on


def hint(exercise: Any = None) -> None:
    """Print the next stage of the hint: a question, the idea, then the line.

    Without an argument, for the exercise checked last; otherwise for the one given as a name,
    function or class. Raises LessonError if there is none.
    """
    name = exercise if isinstance(exercise, str) else getattr(exercise, "__name__", "")
    name = _name_of(name) if name else _last
    if not name:
        raise LessonError("a hint is for the exercise that you checked last: run its check first")
    stage = min(_shown.get(name, 0), len(STAGES) - 1)
    _shown[name] = stage + 1
    print(f"{name}, {STAGES[stage]}: {BLANKS[name].hints[stage]}")


def _name_of(answer: Any) -> str:
    """The exercise that an answer or a name belongs to. Raises LessonError if there is none."""
    name: Any = answer if isinstance(answer, str) else getattr(answer, "__name__", None)
    if name in BLANKS:
        return str(name)
    if type(answer).__name__ in BLANKS:
        kind = type(answer).__name__
        raise LessonError(f"check takes the class, not an instance: {kind} = check({kind})")
    if not isinstance(name, str):
        raise LessonError(
            "check takes your function or class, for example Head = check(Head), not "
            f"{answer!r:.60}"
        )
    near = difflib.get_close_matches(name, BLANKS, 1)
    cure = f"did you mean {near[0]}?" if near else f"there is {', '.join(BLANKS)}"
    raise LessonError(f"no exercise is called {name}: {cure}")


def _with_helpers(answer: Any, cell: str) -> str:
    """An answer's cell, preceded by the functions, classes and imports it uses from the notebook.

    Omits names that the solutions also define, and other exercises: the lesson has them.
    """
    page = _page(answer)
    known = {*lesson_names(), *BLANKS, *dir(builtins)}
    texts = [cell]
    while len(texts) < _HELPERS:
        made = set().union(*map(program.made_in, texts))
        needed = sorted(set().union(*map(program.names_used, texts)) - made - known)
        found = dict.fromkeys(_source(page[name], name, page) for name in needed if name in page)
        new = [text for text in found if text and text not in texts]
        if not new:
            break
        texts = [*new, *texts]
    return "\n\n\n".join(texts)


def _page(answer: Any) -> Scope:
    """The namespace of the notebook in which a function or class was defined."""
    parts = vars(answer).values() if isinstance(answer, type) else [answer]
    pages = (getattr(inspect.unwrap(part), "__globals__", None) for part in parts if callable(part))
    return next((page for page in pages if page), {})


def _source(thing: Any, name: str, page: Scope) -> str:
    """Source code that recreates a function, a class or a module; empty for anything else."""
    if isinstance(thing, ModuleType):
        return f"import {thing.__name__} as {name}"
    if not isinstance(thing, (FunctionType, type)) or not thing.__qualname__.isidentifier():
        return ""
    if _page(thing) is page:
        return _cell(thing, name)
    return f"from {thing.__module__} import {thing.__name__} as {name}"


def _cell(answer: Any, name: str) -> str:
    """The source of the cell that defined a function or a class; empty if it cannot be found.

    inspect cannot find cells with a magic such as %%time, but the history has them.
    """
    parts = vars(answer).values() if isinstance(answer, type) else [answer]
    for part in parts:
        code = getattr(inspect.unwrap(part), "__code__", None)
        if code is None:
            continue
        text = "".join(linecache.getlines(code.co_filename))
        if name in text:
            return text
    typed = getattr(getattr(running_shell(), "history_manager", None), "input_hist_raw", [])
    defines = re.compile(rf"^(?:def|class) {name}\b", re.M)
    return next((text for text in reversed(typed) if defines.search(text)), "")
