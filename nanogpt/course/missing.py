"""After a restart: which cell of the notebook defines a missing name."""

from __future__ import annotations

import json
import os
import re
import symtable
import sys
from contextlib import suppress
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
            cells.append(Cell(source, section))
    return cells


def running_cells(shell: Any) -> list[Cell]:
    """The code cells of the notebook running in this kernel; none if it is not known.

    JupyterLab tells the kernel its notebook's file. Elsewhere, for example on Colab, it is the
    notebook of the series that shares the most cells with the input history.
    """
    own = Path(os.environ.get("JPY_SESSION_NAME", ""))
    books = [own] if own.suffix == ".ipynb" and own.is_file() else []
    pages = []
    for path in books or sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        with suppress(OSError, ValueError, KeyError):
            pages.append(cells_of(path))
    typed = {text.strip() for text in shell.history_manager.input_hist_raw}
    return max(pages, default=[], key=lambda cells: sum(x.source.strip() in typed for x in cells))


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
    words = explanation(str(getattr(error, "name", "") or ""), running_cells(shell))
    lines += ["", words] if words else []
    shell._showtraceback(kind, error, lines)
    return lines


def explanation(name: str, cells: list[Cell]) -> str:
    """A message saying which of these cells defines the name; "" if none does."""
    maker = next((cell for cell in cells if cell.defines(name)), None)
    if maker is None:
        return ""
    return (
        f"{name} is defined in {maker}: run that cell first. After a restart, run all cells "
        "above this one: Run All Above Selected Cell in JupyterLab, Run before on Colab."
    )
