"""After a restart: which cell of the notebook defines a missing name."""

from __future__ import annotations

import difflib
import json
import os
import re
import symtable
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..files import ROOT
from .program import without_magics

_TITLE = re.compile(r"# @title (.+)")
_HEADING = re.compile(r"^#+ +(.+)$", re.M)
_SHORT = 60  # characters of a line quoted in a message


@dataclass(frozen=True)
class Cell:
    """A notebook's code cell, and the heading above it."""

    id: str
    source: str
    section: str

    def defines(self, name: str) -> bool:
        """Whether the cell defines this name in any way."""
        try:
            symbol = symtable.symtable(without_magics(self.source), "a cell", "exec").lookup(name)
        except (SyntaxError, ValueError, KeyError):
            return False
        return symbol.is_assigned() or symbol.is_imported()

    def __str__(self) -> str:
        title = _TITLE.match(self.source)
        words = [line for line in self.source.split("\n") if line and not line.startswith("#")]
        line = words[0] if words else self.source
        cut = line if len(line) <= _SHORT else f"{line[:_SHORT]}…"
        name = f"the folded cell “{title[1]}”" if title else f"the cell that begins `{cut}`"
        return f"{name}, in the section “{self.section}”"


@dataclass(frozen=True)
class Page:
    """The code cells of the running notebook, and how many are above the running cell.

    `above` is None if the running cell is not one of them.
    """

    cells: list[Cell]
    above: int | None

    def maker(self, name: str) -> Cell | None:
        """The cell that defines a name: the last one above the running cell, else the first."""
        makers = [i for i, cell in enumerate(self.cells) if cell.defines(name)]
        before = [i for i in makers if self.above is None or i < self.above]
        if self.above is not None and before:
            return self.cells[before[-1]]
        return self.cells[makers[0]] if makers else None


def running_shell() -> Any:
    """The IPython shell that runs this code; None outside a notebook. IPython is not imported."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


# ------------------------------------------------------------------ the page


def cells_of(path: Path) -> list[Cell]:
    """A notebook's code cells. Raises OSError or ValueError if the file is not a notebook."""
    nb = json.loads(path.read_text(encoding="utf-8"))
    section = ""
    cells = []
    for cell in nb["cells"] if isinstance(nb, dict) and "cells" in nb else []:
        source = "".join(cell["source"])  # a list of lines, or one text
        if cell["cell_type"] == "markdown":
            headings = _HEADING.findall(source)
            section = headings[-1] if headings else section
        elif cell["cell_type"] == "code":
            cells.append(Cell(cell.get("id", ""), source, section))
    return cells


def running_page() -> Page | None:
    """The notebook running in this kernel; None outside the series.

    JupyterLab tells the kernel its notebook's file. Elsewhere, for example on Colab, it is the
    notebook of the series that shares the most cells with the input history.
    """
    shell = running_shell()
    if not hasattr(shell, "kernel"):
        return None
    typed = [text for text in shell.history_manager.input_hist_raw if text.strip()]
    own = Path(os.environ.get("JPY_SESSION_NAME", ""))
    books = [own] if own.suffix == ".ipynb" and own.is_file() else []
    pages = []
    for path in books or sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        try:
            pages.append(cells_of(path))
        except (OSError, ValueError, KeyError):
            continue
    if not pages:
        return None
    own_texts = {*map(str.strip, typed)}
    cells = max(pages, key=lambda cells: len({str.strip(x.source) for x in cells} & own_texts))
    return Page(cells, _above(cells, shell, typed[-1] if typed else ""))


def _above(cells: list[Cell], shell: Any, source: str) -> int | None:
    """The number of cells above the running one, found by the client's cell id or by its text."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    name = str((parent or {}).get("metadata", {}).get("cellId", ""))
    for i, cell in enumerate(cells):
        if name and cell.id == name:
            return i
    same = [i for i, cell in enumerate(cells) if str.strip(cell.source) == str.strip(source)]
    return same[0] if len(same) == 1 and str.strip(source) else None


# ------------------------------------------------------------------ missing names


def explain_errors() -> None:
    """In a notebook, make a NameError say which cell defines the name."""
    shell = running_shell()
    if hasattr(shell, "kernel") and "NANOGPT_HEADLESS" not in os.environ:
        shell.set_custom_exc((NameError,), _explained)


def _explained(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> list[str]:
    """The usual traceback, and below it the cell that defines the missing name."""
    lines: list[str] = shell.InteractiveTB.structured_traceback(
        kind, error, trace, tb_offset=tb_offset
    )
    words = explanation(str(getattr(error, "name", "") or ""))
    lines += ["", words] if words else []
    shell._showtraceback(kind, error, lines)
    return lines


def explanation(name: str) -> str:
    """A message saying which cell of this notebook defines the name; "" if none does."""
    page = running_page()
    maker = page.maker(name) if page and name else None
    if maker is None:
        return ""
    shell = running_shell()
    near = difflib.get_close_matches(name, [x for x in shell.user_ns if x[0] != "_"], 1, 0.8)
    slip = f" Did you mean {near[0]}?" if near else ""
    return (
        f"{name} is defined in {maker}: run that cell first.{slip} After a restart, run all cells "
        "above this one: Run All Above Selected Cell in JupyterLab, Run before on Colab."
    )
