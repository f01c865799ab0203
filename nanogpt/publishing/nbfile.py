"""A notebook as a file: read, written, its title."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

from ..system.files import atomic_path

METADATA = {
    "accelerator": "GPU",  # makes Colab open the notebook with one
    "colab": {"gpuType": "T4", "provenance": []},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    # A file extension, without which nbconvert --to script writes .txt.
    "language_info": {"file_extension": ".py", "name": "python", "nbconvert_exporter": "python"},
}


class SyncError(ValueError):
    """A notebook, a name or an address that cannot be used; the message says what to do."""


def title(nb) -> str:
    """The first heading of a notebook, without its hash. Raises SyncError when there is none."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and (found := re.search(r"^# +(.+)$", cell.source, re.M)):
            return found[1].strip()
    raise SyncError("a notebook has no heading: begin its first cell with '# Title'")


def read(path: Path):
    """A notebook as nbformat 4. Raises SyncError when the file is not a notebook."""
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, AttributeError, KeyError, nbformat.ValidationError) as error:
        raise SyncError(
            f"{path} cannot be read as a notebook ({error}): restore it from git"
        ) from error


def to_text(nb) -> str:
    """The notebook in the form that JupyterLab writes."""
    return nbformat.writes(nb, version=4).rstrip("\n") + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_notebook(path: Path, nb) -> None:
    """Write a notebook, whole or not at all."""
    write_text(path, to_text(nb))


def keep_metadata(cell) -> None:
    """Drop what editors and papermill note in a cell's metadata; keep what we put there."""
    kept = ("tags", "nanogpt", "jupyter", "cellView")
    cell.metadata = {key: value for key, value in cell.metadata.items() if key in kept and value}


def fold(cell) -> None:
    """Fold a code cell tagged "hide-input" in JupyterLab and in Colab too; open any other one."""
    if "hide-input" in cell.metadata.get("tags", []):
        cell.metadata |= {"jupyter": {"source_hidden": True}, "cellView": "form"}
    else:
        cell.metadata = {
            key: value for key, value in cell.metadata.items() if key not in ("jupyter", "cellView")
        }


def png_of(output) -> str | None:
    """The picture of one output in base64, or None."""
    return output.get("data", {}).get("image/png")


def alt_text(output) -> str:
    """The alt text of a picture: beside the picture, or for its type."""
    metadata = output.get("metadata", {})
    return metadata.get("image/png", {}).get("alt") or metadata.get("alt") or ""
