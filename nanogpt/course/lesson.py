"""The reader's own code: outputs/mine/lesson.py keeps everything that passes its check.

The lesson is the reader's program, used in all notebooks. If an exercise is missing from it, or no
longer passes its check, the solution runs.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from ..files import ROOT, path_in, write_whole
from ..training.folders import held
from . import program
from .blanks import BLANKS
from .editing import execute, execute_again
from .finding import objection
from .limits import limit
from .solutions import lesson_names

LESSON_SECONDS = 20  # time limit for a lesson's top-level statements, which are definitions
MODULE = "nanogpt_lesson"
FILLED_IN = "# @title The solution, filled in by a run without a reader"

Scope = dict[str, Any]  # a lesson's names and their values

_runs = "NANOGPT_HEADLESS" not in os.environ  # whether the reader's code may run


class LessonError(ValueError):
    """An exercise that does not exist, or a lesson that gets no certificate.

    A notebook shows it in one line, without a traceback; its message says what to do.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def choose(mine: str | bool) -> None:
    """Choose whose code runs, from a notebook's parameter `mine`. Raises ValueError.

    "auto": yours if you step through a notebook, the solutions in a headless run; "true": yours
    wherever you have written some; "false": the solutions.
    """
    global _runs
    choices = {"auto": not headless(), "true": True, "false": False}
    choice = str(mine).lower()
    if choice not in choices:
        raise ValueError(f"mine={mine!r}: choose {', '.join(choices)}")
    _runs = choices[choice]


def headless() -> bool:
    """Whether this notebook runs headless, started by a command."""
    return "NANOGPT_HEADLESS" in os.environ


def lesson_path() -> Path:
    """Where the reader's code is kept: outputs/mine, or the folder in NANOGPT_MINE."""
    return (path_in("NANOGPT_MINE") or ROOT / "outputs" / "mine") / "lesson.py"


def mine(*names: str) -> Any:
    """The reader's code for these exercises, or the solutions; prints which.

        Head, KVCache = run.mine("Head", "KVCache")

    Returns one object for one name, otherwise a list. Raises LessonError if a name is not an
    exercise.
    """
    unknown = [name for name in names if name not in BLANKS]
    if unknown:
        known = ", ".join(BLANKS)
        raise LessonError(f"no exercise is called {unknown[0]}: there is {known}")
    lesson = read_lesson()
    lesson.say(names)
    objects = [lesson.scope[name] for name in names]
    return objects if len(objects) > 1 else objects[0]


# ------------------------------------------------------------------ the lesson


class Lesson:
    """A reader's program: its own names if they pass their checks, else the solutions.

    `text` is executed immediately; a name is checked on first use, after the names it depends on.
    `path` is where the text is, or will be, stored.
    """

    def __init__(self, text: str = "", path: Path | None = None, unreadable: str = "") -> None:
        self.path = path
        self.text = text
        self.scope, stops = run_program(text, str(path), LESSON_SECONDS)
        stops = unreadable or stops
        # Where and why it stops, if it does; no name of it is used then.
        self.stops = f"The solutions run until it is fixed: {path} {stops}" if stops else ""
        self.written = dict(self.scope)  # the reader's own version, even if it fails
        self.broken: dict[str, str] = {}  # a line for each name that fails its check
        self._right: set[str] = set()
        self._checked: set[str] = set()
        self._parts = [x for x in program.body_of(text) if isinstance(x, program.DEFS)]

    @property
    def yours(self) -> list[str]:
        """The reader's names that pass their checks, in the notebooks' order."""
        return [name for name in BLANKS if name in self._right]

    @property
    def begun(self) -> bool:
        """Whether the reader has written anything."""
        return bool(self.text)

    def check(self, names: Iterable[str] = BLANKS) -> Lesson:
        """Check these names if they are the reader's and not yet checked. Returns self."""
        for name in names:
            if name in BLANKS and name not in self._checked:
                self._checked.add(name)
                for part in program.needed(self._parts, name):
                    self.check(program.names_in(part))
                self._check_one(name)
        return self

    def _check_one(self, name: str) -> None:
        """Record whether a name is the reader's and passes; otherwise use the solution."""
        solution = BLANKS[name].solution
        answer = self.scope.get(name)
        if self.stops:
            self.broken[name] = self.stops
        elif answer is None or answer is solution:  # it is missing
            if name in program.written(self.text) or program.needed(self._parts, name):
                self.broken[name] = (
                    f"Your {name} is gone from {self.path}: fill in its blank again."
                )
        else:
            found = objection(BLANKS[name], answer)
            if found is None:
                self._right.add(name)
                return
            self.broken[name] = f"Your {name} in {self.path} does not pass its check: {found}"
            put_solution(self.scope, name, self.text)
            return
        self.scope[name] = self.written[name] = solution

    def say(self, names: Iterable[str], words: str = "{}") -> None:
        """Print which of these names fail, and whose code runs, formatted with `words`."""
        names = list(names)
        self.check(names)
        yours = ", ".join(name for name in names if name in self._right)
        rest = ", ".join(name for name in names if name not in self._right)
        parts = []
        if yours:
            parts.append(f"your {yours} from {self.path}")
        if rest:
            parts.append(f"the solution's {rest}")
        lines = dict.fromkeys(self.broken[name] for name in names if name in self.broken)
        print(*lines, words.format("; ".join(parts)), sep="\n")


def read_lesson(path: Path | None = None) -> Lesson:
    """The lesson at `path`. None: the reader's own, if it runs here.

    Executed and checked only once unless the file changes.
    """
    if path is None and not (_runs and lesson_path().is_file()):
        return _lesson("", None)
    path = path or lesson_path()
    try:
        return _lesson(program.read(path), path)
    except ValueError as error:
        return _lesson("", path, str(error))


@functools.lru_cache(maxsize=4)
def _lesson(text: str, path: Path | None, unreadable: str = "") -> Lesson:
    return Lesson(text, path, unreadable)


def run_program(text: str, file: str, seconds: float) -> tuple[Scope, str]:
    """Execute a lesson as a module, with the solutions for the names that it does not define.

    Returns its names, and in one line where and why it stops; "" if it reaches its end.
    """
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    scope: Scope = vars(module)
    scope.update(lesson_names())
    scope.update({"__name__": MODULE, "__file__": file})
    try:
        with limit(seconds, "the lesson did not finish"):
            execute(text, file, scope)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also exit(), and TooLong is no Exception
        lines = [x.lineno for x in extract_tb(error.__traceback__) if x.filename == file]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        at = f" at line {line}" if line else ""
        # The message of a SyntaxError without its location, and the first line of any other.
        reason = str(getattr(error, "msg", error)).partition("\n")[0]
        return scope, f"stops{at} ({type(error).__name__}{f': {reason}' if reason else ''})"
    return scope, ""


def put_solution(scope: Scope, name: str, text: str) -> None:
    """Replace a lesson's answer by the solution, and define what inherits from it once more.

    `text` is the lesson. Raises nothing: what cannot be defined with the solution as its base
    stays as it was, and fails its own check.
    """
    scope[name] = BLANKS[name].solution
    file = str(scope["__file__"])
    replaced = {name}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name not in replaced:
            bases = set().union(*map(program.names_in, node.bases))
            if bases & replaced:
                replaced.add(node.name)
                with suppress(Exception):
                    execute_again(node, file, scope)


# ------------------------------------------------------------------ keeping


def keep(name: str, cell: str) -> str:
    """Add a cell's definitions to the lesson. Returns where they are kept, or why not."""
    if not _runs:
        return "."
    path = lesson_path().resolve()
    earlier = path.with_name("earlier.py")

    def merged() -> tuple[str, str]:
        old = program.read(path).rstrip() if path.is_file() else ""
        return program.merge((old or program.begin().rstrip()) + "\n", cell, name, [*BLANKS])

    try:
        # One that never ends is executed once: only this exercise's own section can mend it.
        lesson = read_lesson()
        if not lesson.stops or name in program.written(lesson.text):
            lesson = Lesson(merged()[0], path)
        if lesson.stops:
            return f", but is not kept, because {path} stops: fix or move it. {lesson.stops}"
        found = lesson.check([name]).broken.get(name)
        if found:
            return (
                ", but is not kept, because it fails with only the imports, defs and constants "
                f"of its own cell. {found}"
            )
        with held(path.with_name(".lesson.lock"), f"to {path}", wait=20):
            new, replaced = merged()  # another notebook may have changed it meanwhile
            if replaced not in new:
                before = earlier.read_bytes() if earlier.is_file() else b""
                write_whole(earlier, before + replaced.encode())
            write_whole(path, new.encode())
    except (SyntaxError, ValueError, OSError) as error:
        return f", but is not kept: {error}"
    return f"; it is kept in {path}."
