"""The student edition: the notebooks without their solutions, for a class.

Blanks, checks and hints stay. The repository around it still contains the solutions.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path

from nbformat import NotebookNode

from ..files import OURS, ROOT, atomic_path, read_json, real_path, sha256
from ..site.nbfile import STUDENT, SyncError, exercise, ours, read, tagged, title, to_text
from ..training.folders import check_folder
from .mirror import links_cell, solution_cell

MARK = "student.json"  # marks a folder that we wrote, and has the digests of its notebooks
_FORMAT = f"{OURS} student edition"
FOLDED = "<details><summary>Solution"


def write_edition(out: Path, *, hints: bool = True, overwrite: bool = False) -> list[Path]:
    """Write all notebooks without solutions into a folder atomically, and return their paths.

    Raises ValueError if the folder is not ours or a notebook in it was edited, unless `overwrite`
    is set, and always for the folder of the originals; SyncError if a solution cannot be found.
    """
    out = real_path(out)
    originals = real_path(ROOT / "notebooks")
    if out == originals or originals in out.parents:
        raise ValueError(
            f"{out} contains the notebooks with their solutions: choose another folder"
        )
    check_folder(out, MARK, overwrite)
    books = {path.name: read(path) for path in sorted(originals.glob("[0-9][0-9]_*.ipynb"))}
    titles = {name: title(nb) for name, nb in books.items()}
    texts = {}
    for name, nb in books.items():
        texts[name] = to_text(without_solutions(nb, name, titles, out, hints=hints)).encode()
    if not overwrite:
        _check_unedited(out)
    digests = {name: sha256(text) for name, text in texts.items()}
    card = {"format": _FORMAT, "hints": hints, "sha256": digests}
    texts[MARK] = f"{json.dumps(card, indent=1)}\n".encode()
    with ExitStack() as files:  # write all next to the old ones before renaming the first
        for name, text in texts.items():
            files.enter_context(atomic_path(out / name)).write_bytes(text)
    return [out / name for name in books]


def _check_unedited(out: Path) -> None:
    """Raise ValueError if a notebook in the folder was edited since we wrote it."""
    card = read_json(out / MARK)
    for name, digest in (card or {}).get("sha256", {}).items():
        path = out / name
        if path.is_file() and sha256(path) != digest:
            raise ValueError(
                f"{path} was edited since it was written: choose a new folder, or pass --overwrite"
            )


def without_solutions(
    nb: NotebookNode, name: str, titles: dict[str, str], out: Path, *, hints: bool
) -> NotebookNode:
    """A copy of a notebook for `out`: without solutions, and without links to pages that have some.

    Raises SyncError if a blank has no solution to remove, or one is left.
    """
    nb = deepcopy(nb)
    inside = real_path(ROOT) in out.parents
    up = Path(os.path.relpath(ROOT, out)).as_posix() if inside else ".."
    taken = 0
    for cell in nb.cells:
        if tagged(cell, "blank"):
            cell.metadata.setdefault("nanogpt", {})["edition"] = STUDENT
        if ours(cell).get("generated") == "links":
            cell.source = links_cell(name, titles, "", "")  # no address: Colab opens the original
        if ours(cell).get("generated") == "solution":
            cell.source = solution_cell(exercise(cell), hint=hints, solved=False)
            taken += 1
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("](../", f"]({up}/").strip()
    blanks = sum(tagged(cell, "blank") for cell in nb.cells)
    left = [cell.id for cell in nb.cells if FOLDED in cell.source]
    if taken < blanks or left:
        raise SyncError(f"{name}: {blanks} blanks, {taken} solutions removed, left in {left}")
    nb.cells = [cell for cell in nb.cells if cell.source]  # without hints some are empty now
    return nb
