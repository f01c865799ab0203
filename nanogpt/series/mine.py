"""The reader's own code: blanks that are kept in outputs/mine/lesson.py, and used from there.

The judge cell of a kept blank says `NAME = kept(problem, NAME)`. What the judge accepts goes to
the lesson, a module of the reader's, which this page and the notebooks after it use. Where there is
none, or it is wrong by now, the solution runs: its text stands in the notebook, below the blank.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import linecache
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import NamedTuple

from ..files import ROOT, held, write_whole
from . import judges
from .blanks import FIRST_LINE, SOLUTION, judge, wrong

KEPT = re.compile(r"^(\w+) = kept\(", re.M)  # in the judge cell of a kept blank
DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)  # what is kept of a cell
HEADER = '''\
"""What you wrote in the notebooks: each name below was accepted by the judge of its blank.

The notebooks and `python -m nanogpt verify model outputs/mine/lesson.py` use this file. You may
edit it. What you have not written yet is the package's, imported here.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from nanogpt import GPT, GPTConfig, kv_cache
from nanogpt import DynamicCache as KVCache
from nanogpt import StaticCache as StaticKVCache
from nanogpt.sampling import sample
from nanogpt.attention import attention_weights, visible
from nanogpt.model import Head
'''
FOOTER = "# %% What you add below this line stays"
_runs = "NANOGPT_HEADLESS" not in os.environ  # whether the reader's code is used at all


class LessonError(ValueError):
    """A name that no notebook asks for, or a lesson for which there is no certificate."""


def choose(mine: str | bool) -> None:
    """Whose code runs, as a notebook's parameter `mine` says. Raises ValueError.

    "auto": yours where you step through a notebook, the solutions where a command runs it; "true":
    yours, wherever there is some; "false": the solutions.
    """
    global _runs
    choices = {"auto": "NANOGPT_HEADLESS" not in os.environ, "true": True, "false": False}
    if (said := str(mine).lower()) not in choices:
        raise ValueError(f"mine={mine!r}: choose {', '.join(choices)}")
    _runs = choices[said]


def lesson_path() -> Path:
    """Where the reader's code is kept: outputs/mine, or the folder that NANOGPT_MINE names."""
    return Path(os.environ.get("NANOGPT_MINE") or ROOT / "outputs" / "mine") / "lesson.py"


def kept(problem, answer, *, body=None):
    """Judge the answer to a blank, and return the code that carries on; says whose it is.

    The answer, where it is right: it is then kept in the lesson. Else what the lesson has of that
    name, where it is right; else the solution. `problem` and `body` are those of `judge`.
    """
    name, cell = problem.__name__, _cell(answer)
    right, filled = judge(problem, answer, body=body), cell.startswith(FIRST_LINE)
    if right and not filled:
        print(f"From here on your {name} runs{_keep(name, cell)}")
    elif name in blanks():
        lesson = load()
        lesson.say([name], "From here on {} runs.")
        return answer if right and name not in lesson.yours else lesson.scope[name]
    return answer


def mine(*names: str):
    """What the reader wrote in the blanks of earlier notebooks, or the solution; prints which.

        Head, KVCache = run.mine("Head", "KVCache")

    One object for one name, else a list. Raises LessonError for a name of no kept blank.
    """
    if unknown := [name for name in names if name not in blanks()]:
        raise LessonError(f"no blank asks for {unknown[0]}: there is {', '.join(blanks())}")
    lesson = load()
    lesson.say(names)
    found = [lesson.scope[name] for name in names]
    return found if len(found) > 1 else found[0]


@dataclass
class Lesson:
    """Every name that the notebooks ask for: the reader's where it is right, else the solution."""

    scope: dict
    written: dict  # the same with the reader's own names as they stand, wrong or not
    path: Path | None = None
    yours: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # a line on each that is wrong by now

    def say(self, names, words: str = "{}") -> None:
        """Print what is wrong by now with these names, and in `words` whose code runs."""
        own = ", ".join(name for name in names if name in self.yours)
        rest = ", ".join(name for name in names if name not in self.yours)
        parts = [f"your {own} from {self.path}"] if own else []
        parts += [f"the solution's {rest}"] if rest else []
        lines = dict.fromkeys(self.broken[name] for name in names if name in self.broken)
        print(*lines, words.format("; ".join(parts)), sep="\n")


def load(path: Path | None = None) -> Lesson:
    """The lesson at `path`, each name of it judged again. None: the reader's own, if it runs here.

    A name that is missing, or wrong by now, is the solution's. So is all of it where the file stops
    with an error.
    """
    if path is None and not (_runs and lesson_path().is_file()):
        return judged()
    path = path or lesson_path()
    return judged(path.read_text(encoding="utf-8-sig", errors="surrogateescape"), path)


def judged(text: str = "", path: Path | None = None) -> Lesson:
    """The lesson of this text, which is to stand at `path`. Of no text: the solutions."""
    module = sys.modules["nanogpt_lesson"] = ModuleType("nanogpt_lesson")
    _execute(HEADER, "<the header>", scope := vars(module))
    package = dict(scope)
    try:
        _execute(text, str(path), scope)
    except (Exception, SystemExit) as error:
        lines = [x.lineno for x in extract_tb(error.__traceback__) if x.filename == str(path)]
        at = lines[-1] if lines else getattr(error, "lineno", "?")
        why = f"{path} stops at line {at} ({type(error).__name__}: {error})".partition("\n")[0]
        why = f"The solutions run until it is mended: {why}"
        return replace(judged(), broken=dict.fromkeys(blanks(), why))
    lesson = Lesson(scope, dict(scope), path)
    for name, blank in blanks().items():
        if (own := scope.get(name)) is not package.get(name):
            if not (why := wrong(blank.problem, own)):
                lesson.yours.append(name)
                continue
            lesson.broken[name] = f"Your {name} in {path} is wrong: {why}"
        _execute(blank.solution, f"<the solution of {name}>", scope)
    return lesson


def _execute(text: str, name: str, scope: dict) -> None:
    """Execute code so that inspect and error messages find its lines."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), scope)


# ------------------------------------------------------------------ keeping


def _keep(name: str, cell: str) -> str:
    """Put what a cell defines into the lesson. Returns where it is kept, or why it is not."""
    if not _runs or name not in blanks():
        return "."
    path = lesson_path().resolve()
    earlier = path.with_name("earlier.py")

    def merged():
        old = path.read_text(encoding="utf-8-sig").rstrip() if path.is_file() else ""
        return merge((old or f"{HEADER}\n\n{FOOTER}") + "\n", cell, name)

    try:
        if why := judged(merged()[0], path).broken.get(name):
            return f", and is not kept, as it fails there, with its imports and defs alone. {why}"
        with held(path.with_name(".lesson.lock"), f"to {path}", wait=20):
            new, replaced = merged()  # another notebook may have written since
            if replaced not in new:
                before = earlier.read_bytes() if earlier.is_file() else b""
                write_whole(earlier, before + replaced.encode())
            write_whole(path, new.encode())
    except (SyntaxError, ValueError, OSError) as error:
        return f", and is not kept: {error}"
    return f"; it is kept in {path}."


def merge(lesson: str, cell: str, name: str) -> tuple[str, str]:
    """The lesson with what a cell imports and defines, and the text that this replaces.

    Each name has a section, from its line `# %% NAME` to the next. A new one goes before the
    reader's own additions. Raises SyntaxError.
    """
    parts = [x for x in ast.parse(cell).body if isinstance(x, DEFINES)]
    if name not in [getattr(x, "name", None) for x in parts]:
        raise SyntaxError(f"write {name} as a def or a class, in the cell of its blank")
    lines, section = cell.splitlines(), [f"# %% {name}"]
    for x in parts:
        first = min(y.lineno for y in (x, *getattr(x, "decorator_list", ())))
        section += [*lines[first - 1 : x.end_lineno], "", ""]
    old = re.search(rf"^# %% {name}\n.*?(?=^# %% |\Z)", lesson, re.M | re.S)
    old = old or re.search(rf"(?=^{FOOTER}|\Z)", lesson, re.M)
    return lesson[: old.start()] + "\n".join([*section, ""]) + lesson[old.end() :], old[0]


def _cell(answer) -> str:
    """The text of the cell that defined a function or a class; empty where it cannot be found."""
    for inside in vars(answer).values() if isinstance(answer, type) else [answer]:
        if code := getattr(inspect.unwrap(inside), "__code__", None):
            text = "".join(linecache.getlines(code.co_filename))
            if answer.__name__ in text:
                return text
    return ""


# ------------------------------------------------------------------ the kept blanks


class Blank(NamedTuple):
    """A kept blank: its judge, the number of its notebook, and its solution, as text."""

    problem: Callable[[object], str | None]
    number: str
    solution: str


@functools.cache
def blanks() -> dict[str, Blank]:
    """The kept blanks of all notebooks, by name, in the order of the notebooks."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells]
        for i, text in enumerate(texts):
            if name := KEPT.search(text):
                solution = SOLUTION.search("\n".join(texts[i:]))[1]
                found[name[1]] = Blank(getattr(judges, name[1]), path.name[:2], solution)
    return found
