"""outputs/published as a whole: which runs may replace it, and how a run compares with it.

On one machine with the same versions, only timings may differ between two runs; otherwise the
comparison says which cells differ, and where.
"""

from __future__ import annotations

from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from ..files import ROOT, sha256, write_whole
from ..site.nbfile import read, read_manifest, tagged
from .profiles import PROFILES

# The model that notebook 01 trains and the others load.
_WEIGHTS = f"checkpoints/{PROFILES['full'].size}.safetensors"
# The parent of a publication run's working folder, which is new each time.
BUILD = ROOT / "outputs" / "run"
# Fields of the environment card that affect the last bits.
MACHINE = "python torch platform device device_name dtype threads cpu_capability".split()


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of a run's manifest, by notebook."""
    return {entry["notebook"]: entry for entry in read_manifest(folder)["notebooks"]}


def publish(new: Path, target: Path) -> list[str]:
    """Copy a complete run over the published one, each file atomically.

    Returns the published files that this run did not produce; they are kept.
    """
    made = set()
    for path in sorted(new.rglob("*")):
        name = path.relative_to(new).as_posix()
        for_the_run_only = path.name == ".lock" or fnmatch(name, "checkpoints/*-last.*")
        if path.is_file() and not for_the_run_only and path.suffix != ".jsonl":
            write_whole(target / name, path.read_bytes())
            made.add(name)
    present = (path for path in target.rglob("*") if path.is_file())
    return sorted({path.relative_to(target).as_posix() for path in present} - made)


# ------------------------------------------------------------------ two runs side by side


def compare_runs(old: Path, new: Path) -> tuple[int, list[str]]:
    """The number of cells of `old` that were compared, and a line for each that differs in `new`.

    Cells that measure time are not counted, and only their sources are compared.
    """
    compared = 0
    differences = []
    for path in sorted(old.glob("[0-9][0-9]_*.ipynb")):
        if not (new / path.name).is_file():
            differences.append(f"{path.stem}: it was not run")
            continue
        cells = {cell.id: cell for cell in read(path).cells}
        others = {cell.id: cell for cell in read(new / path.name).cells}
        compared += sum(not tagged(cell, "timing") for cell in cells.values())
        for name in cells | others:
            change = difference(cells.get(name), others.get(name))
            if change:
                differences.append(f"{path.stem}, cell {name!r}: {change}")
    return compared, differences


def difference(cell: NotebookNode | None, other: NotebookNode | None) -> str:
    """The difference between two cells, in words; empty if there is none."""
    if cell is None or other is None:
        return "it no longer exists" if cell else "a new cell"
    if cell.source != other.source:
        return "its source has changed"
    a = shown(cell)
    b = shown(other)
    if tagged(cell, "timing") or a == b:
        return ""
    pairs = zip_longest(a.splitlines(True), b.splitlines(True), fillvalue="")
    one, two = next((x, y) for x, y in pairs if x != y)
    return f"{one.strip()[:100]!r} was {two.strip()[:100]!r} here"


def shown(cell: NotebookNode) -> str:
    """A cell's outputs as text lines, with a checksum for each picture."""
    text = ""
    for output in cell.get("outputs", []):
        words = output.get("text", f"{output.get('ename')}: {output.get('evalue')}")
        data = output.get("data", {output.get("name", output.output_type): words})
        for kind, content in data.items():
            text += f"{kind}: {sha256(content.encode()) if kind == 'image/png' else content}\n"
    return text


def print_comparison(old: Path, new: Path) -> bool:
    """Print whether the runs are identical, and any differences; True if there are none."""
    compared, differences = compare_runs(old, new)
    weights = _digest(old / _WEIGHTS)
    if not weights or weights != _digest(new / _WEIGHTS):
        differences.append(f"{_WEIGHTS}: different bytes, or missing")
    for line in differences:
        print(line)
    if compared and not differences:
        print(f"reproduced: {compared} cells and the weights are byte-identical to {old.name}")
        return True
    published = read_manifest(old).get("environment", {})
    current = read_manifest(new).get("environment", {})
    pairs = ((key, published.get(key), current.get(key)) for key in MACHINE)
    changed = "; ".join(f"{key} {was}, here {now}" for key, was, now in pairs if was != now)
    n = len(differences)
    print(
        f"{n} differences in {compared} cells. Bit-identical results are promised for one machine"
    )
    print(f"and the same versions. {changed or 'These are the same: has the code changed since?'}")
    return False


def _digest(path: Path) -> str | None:
    """The SHA-256 of a file; None if it does not exist."""
    return sha256(path) if path.is_file() else None
