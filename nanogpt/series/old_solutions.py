"""The solutions of the kept blanks, by name: a reader's lesson imports them until it has its own.

    from nanogpt.series.solutions import Head

Their text stands in the notebooks, below each blank.
"""

from __future__ import annotations

import functools
import json
import linecache
import re
from typing import Any, NamedTuple

from ..files import ROOT
from . import judges
from .blanks import SOLUTION, Problem

Scope = dict[str, Any]  # names of a lesson, and what they stand for

KEPT = re.compile(r"^(\w+) = kept\(", re.M)  # in the judge cell of a kept blank
HEADER = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from nanogpt import kv_cache
"""


class Blank(NamedTuple):
    """A kept blank: its judge, the number of its notebook, and its solution, as text."""

    problem: Problem
    number: str
    solution: str


@functools.cache
def blanks() -> dict[str, Blank]:
    """The kept blanks of all notebooks, by name, in the order of the notebooks."""
    by_name = {}
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells]
        for i, text in enumerate(texts):
            name = KEPT.search(text)
            if name is None:
                continue
            solution = SOLUTION.search("\n".join(texts[i:]))
            if solution is None:
                raise ValueError(f"{path}: the blank {name[1]} has no solution below its judge")
            by_name[name[1]] = Blank(getattr(judges, name[1]), path.name[:2], solution[1])
    return by_name


def execute(text: str, name: str, scope: Scope) -> None:
    """Execute code so that inspect and error messages find its lines."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), scope)


def header() -> Scope:
    """A scope with the names that every solution uses."""
    names: Scope = {"__name__": __name__}
    execute(HEADER, "<the header>", names)
    return names


@functools.cache
def scope() -> Scope:
    """All solutions, executed in one scope."""
    names = header()
    for name, blank in blanks().items():
        execute(blank.solution, f"<the solution of {name}>", names)
    return names


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in blanks():
        raise AttributeError(f"no blank asks for {name!r}")
    return scope()[name]
