"""The blanks of a notebook: a run without a reader fills in the solutions that the text folds."""

from __future__ import annotations

import re
from copy import deepcopy

from .nbfile import SyncError, fold

PAGES = "](../outputs/published/html/"  # where a link to a page leads from notebooks/
FIRST_LINE = "# @title The solution, filled in by a run without a reader"
SOLUTION = re.compile(
    r"<details><summary>Solution</summary>\s*```python\n(.*?)\n```\s*</details>", re.S
)


def is_blank(cell) -> bool:
    """Whether the cell is for the learner to fill in."""
    return "blank" in cell.metadata.get("tags", [])


def solution(nb, index: int) -> str:
    """The code in the first folded solution after the blank at `index`. Raises SyncError."""
    for cell in nb.cells[index + 1 :]:
        if is_blank(cell):
            break
        if cell.cell_type == "markdown" and (found := SOLUTION.search(cell.source)):
            return found[1]
    raise SyncError(
        f"the blank {nb.cells[index].id!r} has no solution: put <details><summary>Solution"
        f"</summary>, a block of Python and </details> into a text cell below it"
    )


def filled(nb):
    """A copy of a notebook as it is executed, beside its pages. Raises SyncError.

    Every blank is filled in, and folded. A link to a page leads to the one of the same run.
    """
    nb = deepcopy(nb)
    for index, cell in enumerate(nb.cells):
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(PAGES, "](html/")
        if is_blank(cell):
            cell.metadata.setdefault("nanogpt", {})["blank"] = cell.source  # which the page shows
            cell.source = f"{FIRST_LINE}\n{solution(nb, index)}"
            cell.metadata["tags"] = [*cell.metadata["tags"], "hide-input"]
            fold(cell)
    return nb
