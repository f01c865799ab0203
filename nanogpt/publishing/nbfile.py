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
    "language_info": {"name": "python"},
}


class SyncError(ValueError):
    """A notebook, a name or an address that cannot be synced; the message says which and what to do."""


def title(nb) -> str:
    """The first heading of a notebook, without its hash."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and (found := re.search(r"^# +(.+)$", cell.source, re.M)):
            return found[1].strip()
    raise SyncError("a notebook has no heading: begin its first cell with '# Title'")


def read(path: Path):
    """A notebook as nbformat 4. Raises SyncError when the file is none."""
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, AttributeError, KeyError, nbformat.ValidationError) as error:
        raise SyncError(f"{path} is no readable notebook ({error}): restore it from git") from error


def write_notebook(path: Path, nb) -> None:
    """Write a notebook, whole or not at all, in the form that JupyterLab writes."""
    _write(path, _text(nb))


def _text(nb) -> str:
    return nbformat.writes(nb, version=4).rstrip("\n") + "\n"


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
