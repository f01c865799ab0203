"""Notebook files: read, write, fold, fill in blanks; also the manifest of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, TypedDict

import nbformat
from nbformat import NotebookNode, ValidationError

from ..course.blanks import BLANKS
from ..course.lesson import FILLED_IN
from ..files import read_json

METADATA = {
    "accelerator": "GPU",  # makes Colab open the notebook with a GPU
    "colab": {"gpuType": "T4", "provenance": []},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    # A file extension, without which nbconvert --to script writes .txt.
    "language_info": {"file_extension": ".py", "name": "python", "nbconvert_exporter": "python"},
}
_PAGES = "](../outputs/published/html/"  # where a link to a page leads from notebooks/
# Branches off the spine, which is read in order: a notebook's number, and the one it follows.
BRANCHES = {"07": "06", "08": "02", "09": "06", "10": "06", "11": "01", "12": "03", "13": "06"}
STUDENT = "student"  # marks the edition without solutions, in the metadata of its blanks
FILLED = "# For you to fill in. This run used the solution that is folded below.\n"


class _Place(TypedDict):
    """A notebook's place in the series: the names of its neighbours."""

    origin: str | None  # where a branch starts; None on the spine
    before: str | None
    after: str | None
    branches: list[str]  # that start here


class SyncError(ValueError):
    """A notebook, a page, a name or an address that cannot be used; the message says what to do."""


def title(nb: NotebookNode) -> str:
    """The first heading of a notebook, without its hash. Raises SyncError if there is none."""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            heading = re.search(r"^# +(.+)$", cell.source, re.M)
            if heading:
                return str(heading[1]).strip()
    raise SyncError("a notebook has no heading: begin its first cell with '# Title'")


def place(name: str, names: Iterable[str]) -> _Place:
    """A notebook's place among `names`, in their order.

    `before` and `after` follow the spine; those of a branch are its origin and the notebook after
    its origin.
    """
    names_by_number = {other[:2]: other for other in names}
    leaves = {
        names_by_number[n]: names_by_number[at]
        for n, at in BRANCHES.items()
        if {n, at} <= names_by_number.keys()
    }
    spine = [other for other in names if other not in leaves]
    origin = leaves.get(name)
    i = spine.index(origin or name)
    branches = [other for other in names if leaves.get(other) == name]
    before = origin or [None, *spine][i]
    after = [*spine, None][i + 1]
    return {"origin": origin, "before": before, "after": after, "branches": branches}


def read(path: Path) -> NotebookNode:
    """Read a notebook as nbformat 4. Raises SyncError if the file is not a notebook."""
    try:
        nb: NotebookNode = nbformat.read(path, as_version=4)
    except (ValueError, AttributeError, KeyError, RecursionError, ValidationError) as error:
        raise SyncError(
            f"{path} cannot be read as a notebook ({error}): restore it from git"
        ) from error
    return nb


def to_text(nb: NotebookNode) -> str:
    """The notebook as text, formatted as JupyterLab does."""
    text: str = nbformat.writes(nb, version=4)
    return text.rstrip("\n") + "\n"


def tagged(cell: NotebookNode, tag: str) -> bool:
    """Whether the cell has this tag, for example "timing": its outputs differ from run to run."""
    return tag in cell.metadata.get("tags", [])


def ours(cell: NotebookNode) -> dict[str, Any]:
    """This project's own entries in a cell's metadata."""
    notes: dict[str, Any] = cell.metadata.get("nanogpt", {})
    return notes


def keep_metadata(cell: NotebookNode) -> None:
    """Remove the metadata of editors and papermill from a cell; keep ours."""
    fields = ("tags", "nanogpt", "jupyter", "cellView")
    cell.metadata = {key: value for key, value in cell.metadata.items() if key in fields and value}


def fold(cell: NotebookNode) -> None:
    """Fold a code cell tagged "hide-input", both in JupyterLab and in Colab; unfold any other."""
    for key in ("jupyter", "cellView"):
        cell.metadata.pop(key, None)
    if tagged(cell, "hide-input"):
        cell.metadata["jupyter"] = {"source_hidden": True}
        cell.metadata["cellView"] = "form"


def png_of(output: NotebookNode) -> str | None:
    """The picture of one output in base64, or None."""
    png: str | None = output.get("data", {}).get("image/png")
    return png


def _about_png(output: NotebookNode) -> dict[str, Any]:
    """The metadata that `run.figure` stores with a picture; empty if there is none."""
    about: dict[str, Any] = output.get("metadata", {}).get("image/png", {})
    return about


def alt_text(output: NotebookNode) -> str:
    """The alt text of a picture; empty if there is none."""
    return str(_about_png(output).get("alt", ""))


def figure_name(output: NotebookNode) -> str:
    """The name of a figure; empty if it has none."""
    return str(_about_png(output).get("name", ""))


def phone_png(output: NotebookNode) -> str | None:
    """The phone version of the picture, in base64, or None."""
    return _about_png(output).get("phone")


def moving(output: NotebookNode) -> dict[str, Any] | None:
    """{kind, data} of an interactive figure; None for any other output."""
    return _about_png(output).get("moving")


def is_student_edition(nb: NotebookNode) -> bool:
    """Whether a notebook's solutions were removed by `python -m nanogpt student`."""
    return any(ours(cell).get("edition") == STUDENT for cell in nb.cells)


def exercise(cell: NotebookNode) -> str:
    """The exercise of a blank, or of the solution below one. Raises SyncError if there is none."""
    name = str(ours(cell).get("exercise", ""))
    if name not in BLANKS:
        raise SyncError(
            f'the cell {cell.get("id")!r} names no exercise: put {{"exercise": NAME}} into its '
            f"metadata under nanogpt, and its page into course/blanks"
        )
    return name


def solution(name: str) -> str:
    """The source of the solution of that name."""
    return BLANKS[name].source


def filled(nb: NotebookNode) -> NotebookNode:
    """A copy of a notebook for execution, next to its pages. Raises SyncError.

    Every blank is filled in. The metadata keep the learner's version, which `execute` restores
    because GitHub does not fold cells. Links to pages point to those of the same run.
    """
    nb = deepcopy(nb)
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(_PAGES, "](html/")
        if tagged(cell, "blank"):
            cell.metadata.setdefault("nanogpt", {})["blank"] = FILLED + cell.source
            cell.source = f"{FILLED_IN}\n{solution(exercise(cell))}"
    return nb


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read manifest.json of an output folder; {"notebooks": []} if it is missing or unreadable."""
    manifest = read_json(folder / "manifest.json")
    return {"notebooks": [], **(manifest if isinstance(manifest, dict) else {})}
