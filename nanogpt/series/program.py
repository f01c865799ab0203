"""The text of a reader's lesson: a program that grows, part by part, out of frame.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOOTER = "# %% What you add below this line stays"
IMPORT = "from nanogpt.series.solutions import "
YOURS = re.compile(r"^Yours so far: (.*)\.$", re.M)
PARTS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
CONSTANTS = (ast.Assign, ast.AnnAssign)


def begin() -> str:
    """A lesson in which nothing is the reader's yet: it runs all the same."""
    return Path(__file__).with_name("frame.py").read_text(encoding="utf-8").partition("\n")[2]


def written(text: str) -> list[str]:
    """The names that a lesson says are the reader's, in its first lines."""
    line = YOURS.search(text)
    return [] if not line or line[1] == "nothing" else line[1].split(", ")


def merge(lesson: str, cell: str, name: str, order: list[str]) -> tuple[str, str]:
    """The lesson with a cell's imports and definitions, and the section that they replace.

    Each name has a section, from its line `# %% NAME` to the next. A new one goes before the
    sections of the names after it in `order`, and replaces its import. Raises SyntaxError.
    """
    section = f"# %% {name}\n{kept_parts(cell, name)}\n\n"
    old = re.search(rf"^# %% {name}\n.*?(?=^# %% |\Z)", lesson, re.M | re.S)
    later = "|".join([*order[order.index(name) + 1 :], FOOTER.removeprefix("# %% ")])
    at = old or re.search(rf"(?=^# %% (?:{later})$)", lesson, re.M)
    start, end = at.span() if at else (len(lesson), len(lesson))
    text = lesson[:start] + section + lesson[end:]
    text = re.sub(rf"^{re.escape(IMPORT)}{name}\b.*\n", "", text, flags=re.M)
    yours = {*written(text), name}
    names = [one for one in order if one in yours]
    text = YOURS.sub(f"Yours so far: {', '.join(names)}.", text, count=1)
    return text, old[0] if old else ""


def kept_parts(cell: str, name: str) -> str:
    """The parts of a cell that are kept: imports, defs, classes, and the constants that they use.

    With the comments right above each. Raises SyntaxError for a cell that does not define `name`.
    """
    cell = "\n".join("" if line.startswith(("%", "!")) else line for line in cell.split("\n"))
    tree = ast.parse(cell)
    parts = [x for x in tree.body if isinstance(x, PARTS)]
    if name not in [getattr(x, "name", None) for x in parts]:
        raise SyntaxError(f"write {name} as a def or a class, in the cell of its blank")
    used: set[str] = set().union(*map(_names, parts))
    constants = [x for x in tree.body if isinstance(x, CONSTANTS) and _targets(x) & used]
    lines = cell.splitlines()
    section: list[str] = []
    for x in tree.body:
        if x not in parts and x not in constants:
            continue
        first = min(y.lineno for y in (x, *getattr(x, "decorator_list", ())))
        while first > 1 and re.match("#(?! %%)", lines[first - 2]):  # a comment right above
            first -= 1
        gap = ["", ""] if section and isinstance(x, PARTS[2:]) else []
        section += [*gap, *lines[first - 1 : x.end_lineno]]
    return "\n".join(section)


def _targets(assignment: ast.Assign | ast.AnnAssign) -> set[str]:
    """The names that an assignment defines."""
    if isinstance(assignment, ast.AnnAssign):
        return _names(assignment.target)
    return set().union(*map(_names, assignment.targets))


def _names(tree: ast.AST) -> set[str]:
    """All names in a piece of code."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
