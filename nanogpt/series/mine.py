"""The reader's own code: blanks that are kept in outputs/mine/lesson.py, and used from there.

The judge cell of a kept blank says `NAME = kept(problem, NAME)`. Accepted code goes to the
lesson, a program of the reader's, which this page and the notebooks after it use. Where there is
none, or it is wrong by now, the solution runs.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from ..cluster.folders import held
from ..files import ROOT, path_in, write_whole
from . import program, solutions
from .blanks import FIRST_LINE, Answer, Problem, judge, limit, wrong
from .solutions import Scope, blanks, execute

_runs = "NANOGPT_HEADLESS" not in os.environ  # whether the reader's code is used at all
SECONDS = 60  # at most, for a lesson's own statements


class LessonError(ValueError):
    """A name that no notebook asks for, or a lesson for which there is no certificate."""


def choose(mine: str | bool) -> None:
    """Whose code runs, as a notebook's parameter `mine` says. Raises ValueError.

    "auto": yours where you step through a notebook, the solutions where a command runs it; "true":
    yours, wherever there is some; "false": the solutions.
    """
    global _runs
    choices = {"auto": not headless(), "true": True, "false": False}
    choice = str(mine).lower()
    if choice not in choices:
        raise ValueError(f"mine={mine!r}: choose {', '.join(choices)}")
    _runs = choices[choice]


def headless() -> bool:
    """Whether nobody steps through this notebook: a command runs it."""
    return "NANOGPT_HEADLESS" in os.environ


def lesson_path() -> Path:
    """Where the reader's code is kept: outputs/mine, or the folder that NANOGPT_MINE names."""
    return (path_in("NANOGPT_MINE") or ROOT / "outputs" / "mine") / "lesson.py"


def kept(problem: Problem, answer: Answer, *, body: Answer | str | None = None) -> Any:
    """Judge the answer to a blank, and return the code that carries on; says whose it is.

    In this order: the answer, where it is right, which is then kept in the lesson; the lesson's own
    code of that name, where it is right; the solution. `problem` and `body` are those of `judge`.
    """
    name = problem.__name__
    cell = _cell(answer, name)
    right = judge(problem, answer, body=body)
    if right and not cell.startswith(FIRST_LINE):
        print(f"From here on your {name} runs{_keep(name, cell)}")
    elif name in blanks():
        lesson = read_lesson()
        lesson.say([name], "From here on {} runs.")
        return answer if right and name not in lesson.yours else lesson.scope[name]
    return answer


def mine(*names: str) -> Any:
    """The reader's code from the blanks of earlier notebooks, or the solution; prints which.

        Head, KVCache = run.mine("Head", "KVCache")

    One object for one name, else a list. Raises LessonError for a name of no kept blank.
    """
    unknown = [name for name in names if name not in blanks()]
    if unknown:
        raise LessonError(f"no blank asks for {unknown[0]}: there is {', '.join(blanks())}")
    lesson = read_lesson()
    lesson.say(names)
    objects = [lesson.scope[name] for name in names]
    return objects if len(objects) > 1 else objects[0]


def back(number: str, *more: str) -> Scope:
    """The kept blanks of a notebook, and `more`: after a restart, its first cell brings them back.

    The reader's, and prints which; where there are none the solutions, until a blank is filled in.
    """
    names = [*more, *(name for name, blank in blanks().items() if blank.number == number)]
    lesson = read_lesson()
    lesson.say([name for name in names if name in {*lesson.yours, *lesson.broken}])
    return {name: lesson.scope[name] for name in names}


@dataclass
class Lesson:
    """Every name that the notebooks ask for: the reader's where it is right, else the solution."""

    scope: Scope
    written: Scope  # the reader's own names as they stand, wrong or not
    path: Path | None = None
    yours: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # a line on each that is wrong by now

    def say(self, names: Collection[str], words: str = "{}") -> None:
        """Print which of these names are wrong by now, and in `words` whose code runs."""
        if not names:
            return
        yours = ", ".join(name for name in names if name in self.yours)
        rest = ", ".join(name for name in names if name not in self.yours)
        parts = []
        if yours:
            parts.append(f"your {yours} from {self.path}")
        if rest:
            parts.append(f"the solution's {rest}")
        lines = dict.fromkeys(self.broken[name] for name in names if name in self.broken)
        print(*lines, words.format("; ".join(parts)), sep="\n")


def read_lesson(path: Path | None = None) -> Lesson:
    """The lesson at `path`, each name of it judged again. None: the reader's own, if it runs here.

    A name that is missing, or wrong by now, is the solution's. So is all of it where the file stops
    with an error. Judged once, as long as the file stays as it is.
    """
    if path is None and not (_runs and lesson_path().is_file()):
        return _judged("", None)
    path = path or lesson_path()
    return _judged(path.read_text(encoding="utf-8-sig", errors="surrogateescape"), path)


@functools.lru_cache(maxsize=4)
def _judged(text: str, path: Path | None) -> Lesson:
    return judged_lesson(text, path)


def judged_lesson(text: str = "", path: Path | None = None) -> Lesson:
    """The lesson of this text, which is to stand at `path`. Of no text: the solutions."""
    module = ModuleType("nanogpt_lesson")
    sys.modules["nanogpt_lesson"] = module
    names = vars(module)
    names.update(solutions.header())
    names.update({"__name__": "nanogpt_lesson", "__file__": str(path)})
    lesson = Lesson(solutions.header(), names, path)
    _judge_all(lesson, text, _run(text, path, names))
    return lesson


def _judge_all(lesson: Lesson, text: str, stops: str | None) -> None:
    """Fill the lesson: each name by the reader, where it is right, else by the solution."""
    written = lesson.written
    path = lesson.path
    for name, blank in blanks().items():
        answer = written.get(name)
        if stops:
            lesson.broken[name] = stops
        elif answer is None or answer is solutions.scope()[name]:  # it is missing
            if name in program.written(text) or _defines(text, name):
                lesson.broken[name] = f"Your {name} is gone from {path}: fill in its blank again."
        else:
            objection = wrong(blank.problem, answer, name=name)
            if objection is None:
                lesson.yours.append(name)
                lesson.scope[name] = answer
                continue
            lesson.broken[name] = f"Your {name} in {path} is wrong: {objection}"
        execute(blank.solution, f"<the solution of {name}>", lesson.scope)
        written[name] = lesson.scope[name]


def _run(text: str, path: Path | None, scope: Scope) -> str | None:
    """Execute a lesson; in a line, where and why it stops, if it does."""
    try:
        with limit(SECONDS, "the lesson is not at its end"):
            execute(text, str(path), scope)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        lines = [x.lineno for x in extract_tb(error.__traceback__) if x.filename == str(path)]
        at = lines[-1] if lines else getattr(error, "lineno", "?")
        reason = f"{path} stops at line {at} ({type(error).__name__}: {error})".partition("\n")[0]
        return f"The solutions run until it is mended: {reason}"
    return None


# ------------------------------------------------------------------ keeping


def _keep(name: str, cell: str) -> str:
    """Put the definitions of a cell into the lesson. Returns where they are kept, or why not."""
    if not _runs or name not in blanks():
        return "."
    path = lesson_path().resolve()
    earlier = path.with_name("earlier.py")

    def merged() -> tuple[str, str]:
        old = path.read_text(encoding="utf-8-sig").rstrip() if path.is_file() else ""
        return program.merge((old or program.begin().rstrip()) + "\n", cell, name, [*blanks()])

    try:
        objection = judged_lesson(merged()[0], path).broken.get(name)
        if objection:
            return (
                ", and is not kept, as it fails there, with the imports, defs and constants of its "
                f"cell alone. {objection}"
            )
        with held(path.with_name(".lesson.lock"), f"to {path}", wait=20):
            new, replaced = merged()  # another notebook may have written since
            if replaced not in new:
                before = earlier.read_bytes() if earlier.is_file() else b""
                write_whole(earlier, before + replaced.encode())
            write_whole(path, new.encode())
    except (SyntaxError, ValueError, OSError) as error:
        return f", and is not kept: {error}"
    return f"; it is kept in {path}."


def _cell(answer: Answer, name: str) -> str:
    """The text of the cell that defined a function or a class; empty where it cannot be found.

    A cell with a magic as %%time is not among the files that inspect knows, but in the history.
    """
    parts = vars(answer).values() if isinstance(answer, type) else [answer]
    for part in parts:
        code = getattr(inspect.unwrap(part), "__code__", None)
        if code is None:
            continue
        text = "".join(linecache.getlines(code.co_filename))
        if getattr(answer, "__name__", name) in text:
            return text
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    typed = getattr(getattr(shell, "history_manager", None), "input_hist_raw", [])
    return next((text for text in reversed(typed) if _defines(text, name)), "")


def _defines(text: str, name: str) -> bool:
    """Whether a line of this text begins the def or the class of that name."""
    return bool(re.search(rf"^(?:def|class) {name}\b", text, re.M))
