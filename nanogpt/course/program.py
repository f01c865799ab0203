"""The text of a reader's lesson: a program that starts as frame.py and grows part by part."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from pathlib import Path

_FOOTER = "# %% What you add below this line stays"
YOURS = re.compile(r"^Yours so far: (.*)\.$", re.M)
DEFS = (ast.FunctionDef, ast.ClassDef)


def read(path: Path) -> str:
    """The text of a lesson. Raises OSError, and ValueError for a file in another encoding."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"is not UTF-8 in line {line}: save the file as UTF-8") from None


def begin() -> str:
    """A lesson with none of the reader's code yet; it already runs."""
    return Path(__file__).with_name("frame.py").read_text(encoding="utf-8").partition("\n")[2]


def written(text: str) -> list[str]:
    """The names listed as the reader's in a lesson's first lines."""
    line = YOURS.search(text)
    return [] if not line or line[1] == "nothing" else line[1].split(", ")


def merge(lesson: str, cell: str, name: str, order: list[str]) -> tuple[str, str]:
    """Merge a cell's imports and definitions into the lesson.

    Returns the new lesson and the section that was replaced. Each name has a section, from its line
    `# %% NAME` to the next such line. A new section goes before those of the names after it in
    `order`. Raises SyntaxError.
    """
    section = f"# %% {name}\n{kept_parts(cell, name, {*order})}\n\n"
    old = re.search(rf"^# %% {name}\n.*?(?=^# %% |\Z)", lesson, re.M | re.S)
    later = "|".join([*order[order.index(name) + 1 :], _FOOTER.removeprefix("# %% ")])
    at = old or re.search(rf"(?=^# %% (?:{later})$)", lesson, re.M)
    start, end = at.span() if at else (len(lesson), len(lesson))
    text = lesson[:start] + section + lesson[end:]
    yours = {*written(text), name}
    names = [one for one in order if one in yours]
    text = YOURS.sub(f"Yours so far: {', '.join(names)}.", text, count=1)
    return text, old[0] if old else ""


def kept_parts(cell: str, name: str, others: Collection[str] = ()) -> str:
    """The parts of a cell to keep: a def or class, and everything in the cell that it uses.

    That includes imports, other defs and classes, and constants, with the comments directly above
    each, but none of `others`, which are kept when they pass their own checks. Raises SyntaxError
    for a cell that does not define `name`.
    """
    cell = without_magics(cell)
    body = ast.parse(cell).body
    if name not in [x.name for x in body if isinstance(x, DEFS)]:
        raise SyntaxError(f"write {name} as a def or a class, in the cell of its blank")
    lines = cell.splitlines()
    section: list[str] = []
    for x in needed([x for x in body if not made_by(x) & ({*others} - {name})], name):
        first = min(y.lineno for y in (x, *getattr(x, "decorator_list", ())))
        while first > 1 and re.match("#(?! %%)", lines[first - 2]):  # a comment directly above
            first -= 1
        gap = ["", ""] if section and isinstance(x, DEFS) else []
        section += [*gap, *lines[first - 1 : x.end_lineno]]
    return "\n".join(section)


def needed(body: Sequence[ast.stmt], name: str, others: Collection[str] = ()) -> list[ast.stmt]:
    """The statements that define a name, and all that it uses but `others`, in their order."""
    used = {name}
    found: list[ast.stmt] = []
    for _ in body:  # the longest possible chain of uses
        found = [x for x in body if made_by(x) & used]
        more = set().union(*map(names_in, found)) - {*others}
        if more <= used:
            break
        used |= more
    return found


def made_by(statement: ast.stmt) -> set[str]:
    """The names defined by an import, a def, a class or an assignment.

    Empty for other statements, and for `Head = check(Head)`, which is not part of an answer.
    """
    if isinstance(statement, DEFS):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(x.asname or x.name).partition(".")[0] for x in statement.names}
    if "check" in names_in(getattr(statement, "value", None) or ast.Pass()):
        return set()
    if isinstance(statement, ast.AnnAssign):
        return names_in(statement.target)
    if isinstance(statement, ast.Assign):
        return set().union(*map(names_in, statement.targets))
    return set()


def names_in(tree: ast.AST) -> set[str]:
    """All names in a piece of code."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def made_in(cell: str) -> set[str]:
    """The names that a cell defines at its top level; empty if the cell is not Python."""
    return set().union(*map(made_by, body_of(cell)))


def names_used(cell: str) -> set[str]:
    """All names in the defs and classes of a cell; empty if the cell is not Python."""
    return set().union(*(names_in(x) for x in body_of(cell) if isinstance(x, DEFS)))


def body_of(cell: str) -> list[ast.stmt]:
    """The statements of a cell or a lesson; none if it is not Python."""
    try:
        return ast.parse(without_magics(cell)).body
    except (SyntaxError, ValueError):
        return []


def without_magics(cell: str) -> str:
    """A cell with each magic, which is not Python, replaced by an empty line."""
    return "\n".join("" if line.startswith(("%", "!")) else line for line in cell.split("\n"))
