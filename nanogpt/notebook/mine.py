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
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from traceback import extract_tb
from types import FunctionType, ModuleType

from ..system.files import ROOT, write_whole
from .blanks import FIRST_LINE, judge, solution_in, wrong

USE = ("auto", "true", "false")
KEPT = re.compile(r"^(\w+) = kept\(", re.M)  # in the judge cell of a kept blank
IMPORTS, NAMED = (ast.Import, ast.ImportFrom), (ast.FunctionDef, ast.ClassDef)  # are kept
HEADER = '''\
"""What you wrote in the notebooks: each name below was accepted by the judge of its blank.

The notebooks, `python -m nanogpt verify model outputs/mine/lesson.py` and an ordinary import use
this file, and you may edit it. What you have not written yet is the package's, imported here; what
you write takes its place.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from nanogpt import GPT, GPTConfig, kv_cache
from nanogpt import DynamicCache as KVCache
from nanogpt import StaticCache as StaticKVCache
from nanogpt.decoding.sampling import sample
from nanogpt.model.attention import attention_weights, visible
from nanogpt.model.gpt import Head
'''
_use = "auto"  # the parameter `mine` of the notebook that runs


class LessonError(ValueError):
    """A lesson that cannot be read, or a name that no notebook asks for."""


def choose(mine: str | bool) -> None:
    """Whose code runs, as a notebook's parameter `mine` says. Raises ValueError.

    "auto": yours where you step through a notebook, the solutions where a command runs it; "true":
    yours, wherever there is some; "false": the solutions.
    """
    global _use
    if (said := str(mine).lower()) not in USE:
        raise ValueError(f"mine={mine!r}: choose {', '.join(USE)}")
    _use = said


def uses_mine() -> bool:
    """Whether the reader's code is used here at all."""
    return _use == "true" or (_use == "auto" and "NANOGPT_HEADLESS" not in os.environ)


def lesson_path() -> Path:
    """Where the reader's code is kept: outputs/mine, or the folder that NANOGPT_MINE names."""
    return Path(os.environ.get("NANOGPT_MINE") or ROOT / "outputs" / "mine") / "lesson.py"


def kept(problem, answer, *, body=None):
    """Judge the answer to a blank, and return the code that carries on; says whose it is.

    The answer, where it is right: it is then kept in the lesson. Else what the lesson has of that
    name, where it is right; else the solution. `problem` and `body` are those of `judge`.
    """
    name, text = getattr(answer, "__name__", "it"), _cell(answer)
    right = judge(problem, answer, body=body)
    filled = text.startswith(FIRST_LINE)
    if name not in blanks() or (right and not filled):
        if right:
            print(f"From here on your {name} runs{_keep(name, text)}")
        return answer
    if right and not uses_mine():
        print(f"From here on the solution's {name} runs.")
        return answer
    lesson = load() if uses_mine() else solutions()
    whose = f"the solution's {name}"
    if name in lesson.yours:
        whose = f"the {name} that you kept in {shown(lesson_path())}"
    elif name in lesson.broken:
        print(lesson.broken[name])
    print(f"From here on {whose} runs.")
    return lesson[name]


def mine(*names: str):
    """What the reader wrote in earlier notebooks, or the solution, by name; prints whose it is.

    One object for one name, else a list of them. Raises LessonError for an unknown name.
    """
    lesson = load() if uses_mine() else solutions()
    if unknown := [name for name in names if name not in blanks()]:
        raise LessonError(f"no blank asks for {unknown[0]}: there is {', '.join(blanks())}")
    print(lesson.whose(names))
    found = [lesson[name] for name in names]
    return found if len(found) > 1 else found[0]


@dataclass
class Lesson:
    """Every name that the notebooks ask for: the reader's where it is right, else the solution."""

    scope: dict
    written: dict  # the same with the reader's own names as they stand, wrong or not
    path: Path | None = None
    yours: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # a line on each that is wrong by now

    def __getitem__(self, name: str):
        return self.scope[name]

    def whose(self, names) -> str:
        """Whose code these names are, in one line, after one on each that is broken."""
        own = [name for name in names if name in self.yours]
        rest = [name for name in names if name not in own]
        parts = [f"yours from {shown(lesson_path())}: {', '.join(own)}"] if own else []
        parts += [f"the solution: {', '.join(rest)}"] if rest else []
        return "\n".join([*dict.fromkeys(self.broken.values()), "; ".join(parts)])


def solutions() -> Lesson:
    """The solutions of all kept blanks."""
    return _judged("")


def load(path: Path | None = None) -> Lesson:
    """The lesson at `path` (the reader's own when None), each name of it judged again.

    A name that is missing, or wrong by now, is the solution's. So is all of it where the file stops
    with an error.
    """
    if path is None and not lesson_path().is_file():
        return solutions()
    path = path or lesson_path()
    try:
        return _judged(path.read_text(encoding="utf-8"), path)
    except ValueError as error:  # a LessonError, or no UTF-8
        found = solutions()
        found.broken = dict.fromkeys(blanks(), f"{error}: the solutions run until it is mended.")
        return found


def _judged(text: str, path: Path | None = None) -> Lesson:
    """A lesson of this text, every name of which is the reader's and right, or the solution."""
    scope = _run(text, path)
    lesson, own = Lesson(scope, dict(scope), path), _spans(text.splitlines())
    for name, blank in blanks().items():
        if name in own:
            if not (why := wrong(blank.problem(scope), scope.get(name))):
                lesson.yours.append(name)
                continue
            line = f"Your {name} in {shown(path)} is wrong by now, so the solution runs: {why}"
            lesson.broken[name] = line
        _execute(blank.solution, f"<the solution of {name}>", scope)
    return lesson


def _run(text: str, path: Path | None) -> dict:
    """The names of a lesson of this text. Raises LessonError with the line where it stops."""
    module = sys.modules["nanogpt_lesson"] = ModuleType("nanogpt_lesson")
    try:
        _execute(HEADER, "<the header>", vars(module))
        _execute(text, str(path), vars(module))
    except (Exception, SystemExit) as error:
        lines = [x.lineno for x in extract_tb(error.__traceback__) if x.filename == str(path)]
        at = lines[-1] if lines else getattr(error, "lineno", None)
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise LessonError(f"{shown(path)} stops at line {at} ({why})") from None
    return vars(module)


def _execute(text: str, name: str, scope: dict) -> None:
    """Execute code so that inspect and error messages find its lines."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), scope)


# ------------------------------------------------------------------ keeping


def _keep(name: str, cell: str) -> str:
    """Put what a cell defines into the lesson. Returns where it is kept, or why it is not."""
    path = lesson_path().resolve()
    if "NANOGPT_HEADLESS" in os.environ or _use == "false" or name not in blanks():
        return "."
    try:
        old = path.read_text(encoding="utf-8") if path.is_file() else HEADER
        new, replaced = merge(old, cell, name)
        lesson = _judged(new, path)
    except (SyntaxError, LessonError, OSError, UnicodeDecodeError) as error:
        return f", and is not kept: {error}"
    if name in lesson.broken:
        why = lesson.broken[name].partition(": ")[2]
        return f", and is not kept, as it needs more than its cell: {why}"
    if new != old or not path.is_file():
        for other, text in replaced.items():
            places = (path.parent / "earlier" / f"{other}-{n}.py" for n in count(1))
            write_whole(next(x for x in places if not x.exists()), f"{text}\n".encode())
        write_whole(path, new.encode())
    return f"; it is kept in {shown(path)}."


def merge(lesson: str, cell: str, name: str) -> tuple[str, dict[str, str]]:
    """The lesson with what a cell imports and defines, and the texts that this replaces, by name.

    A name that the lesson has is replaced where it stands. A new one goes before the first name of
    a later blank. All else in the lesson stays as it is. Raises SyntaxError.
    """
    lines, source, new, replaced = lesson.splitlines(), cell.splitlines(), [], {}
    if name not in _spans(source):
        raise SyntaxError(f"write {name} as a def or a class, in the cell of its blank")
    for part, span in _spans(source).items():
        text, old = source[span], _spans(lines).get(part)
        if old is None:
            new += ["", "", *text]
        elif lines[old] != text:
            replaced[part], lines[old] = "\n".join(lines[old]), text
    later = [*blanks()][[*blanks()].index(name) :]
    starts = (span.start for part, span in _spans(lines).items() if part in later)
    at = next(starts, len(lines))
    while at and (not lines[at - 1].strip() or lines[at - 1].startswith("#")):
        at -= 1  # comments above a name belong to it
    lines[at:at] = new
    imports = [ast.unparse(x) for x in ast.parse(cell).body if isinstance(x, IMPORTS)]
    body = ast.parse("\n".join(lines)).body
    at = max((x.end_lineno for x in body if isinstance(x, IMPORTS)), default=0)
    lines[at:at] = [line for line in imports if line not in lines]
    return "\n".join(lines) + "\n", replaced


def _spans(lines: list[str]) -> dict[str, slice]:
    """Where the functions and classes of a module stand, decorators included, by name."""
    nodes = [x for x in ast.parse("\n".join(lines)).body if isinstance(x, NAMED)]
    first = [min([x, *x.decorator_list], key=lambda y: y.lineno).lineno - 1 for x in nodes]
    return {x.name: slice(n, x.end_lineno) for n, x in zip(first, nodes, strict=True)}


def _cell(answer) -> str:
    """The text of the cell that defined a function or a class; empty where it cannot be found."""
    inside = vars(answer).values() if isinstance(answer, type) else [answer]
    inside = [inspect.unwrap(x) for x in inside if isinstance(x, FunctionType)]
    texts = ("".join(linecache.getlines(x.__code__.co_filename)) for x in inside)
    return next((text for text in texts if answer.__name__ in text), "")


def shown(path: Path | None) -> str:
    """A path as a reader of the repository names it."""
    path = Path(path or "lesson.py")
    return str(path.relative_to(ROOT)) if ROOT in path.parents else str(path)


# ------------------------------------------------------------------ the kept blanks


@dataclass(frozen=True)
class Blank:
    """A kept blank of a notebook: its judge and its solution, as text."""

    notebook: str
    judge: str
    solution: str

    def problem(self, scope: dict):
        """The function `problem` of its judge cell, which finds the names of `scope`."""
        tree = ast.parse(self.judge)
        tree.body = [x for x in tree.body if not KEPT.match(ast.unparse(x))]
        names = dict(scope)
        exec(compile(tree, f"<the judge of {self.notebook}>", "exec"), names)
        return names["problem"]


@functools.cache
def blanks() -> dict[str, Blank]:
    """The kept blanks of all notebooks, by name, in the order of the lesson."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        if "= kept(" not in (text := path.read_text(encoding="utf-8")):
            continue
        cells = json.loads(text)["cells"]
        for cell in cells:
            cell["source"] = "".join(cell["source"])
        for index, cell in enumerate(cells):
            if "blank" in cell["metadata"].get("tags", []):
                check = next(x for x in cells[index + 1 :] if x["cell_type"] == "code")
                name, text = KEPT.search(check["source"]), solution_in(cells[index + 1 :])
                if name and text:
                    found[name[1]] = Blank(path.stem, check["source"], text)
    return found
