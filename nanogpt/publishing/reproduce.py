"""Two runs of the series side by side: is every output of every cell the same, to the byte?

Cells that measure time are left out. On one machine with the same versions nothing else may
differ; elsewhere this says what does, and by how much.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .manifest import read_manifest
from .nbfile import read
from .publish import WEIGHTS

NUMBER = re.compile(r"(?<![\w.])[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
# Fields of the environment card on which the last bits depend.
MACHINE = "python torch platform device device_name dtype threads cpu_capability".split()


@dataclass(frozen=True)
class Difference:
    """One cell whose outputs are not the same."""

    notebook: str
    cell: str
    what: str  # in words, with the numbers

    def __str__(self) -> str:
        return f"{self.notebook}, cell {self.cell!r}: {self.what}"


def compare_runs(old: Path, new: Path) -> tuple[int, int, list[Difference]]:
    """For the notebooks of `old`: cells compared, cells left out as timings, and what differs."""
    compared, timed, found = 0, 0, []
    for path in sorted(old.glob("[0-9][0-9]_*.ipynb")):
        if not (new / path.name).is_file():
            found.append(Difference(path.stem, "(all)", "it was not run"))
            continue
        others = {cell.id: cell for cell in read(new / path.name).cells}
        for cell in read(path).cells:
            timing = "timing" in cell.metadata.get("tags", [])
            timed, compared = timed + timing, compared + (not timing)
            if what := difference(cell, others.pop(cell.id, None), outputs=not timing):
                found.append(Difference(path.stem, cell.id, what))
        found += [Difference(path.stem, name, "a new cell") for name in others]
    return compared, timed, found


def difference(cell, other, outputs: bool = True) -> str:
    """What is not the same about two cells, in words; empty when nothing is."""
    if other is None:
        return "it is not there any more"
    if cell.source != other.source:
        return "its source has changed"
    if not outputs:
        return ""
    a, b = (visible(c.get("outputs", [])) for c in (cell, other))
    if len(a) != len(b):
        return f"{len(b)} outputs instead of {len(a)}"
    for (kind, one), (other_kind, two) in zip(a, b, strict=True):
        if kind != other_kind:
            return f"{other_kind} instead of {kind}"
        if one != two:
            return "another picture" if kind == "image/png" else text_difference(one, two)
    return ""


def visible(outputs: list) -> list[tuple[str, str]]:
    """What a reader sees of a cell's outputs: (kind, content) pairs."""
    found = []
    for output in outputs:
        if output.output_type == "stream":
            found.append((output.name, output.text))
        elif output.output_type == "error":
            found.append(("error", f"{output.ename}: {output.evalue}"))
        else:
            found += sorted(output.data.items())
    return found


def text_difference(a: str, b: str) -> str:
    """The first line that differs, and by how much when only numbers do."""
    how = "another text"
    if NUMBER.sub("#", a) == NUMBER.sub("#", b):
        pairs = zip(numbers(a), numbers(b), strict=True)
        sizes = [abs(x - y) / max(abs(x), abs(y), 1e-30) for x, y in pairs if x != y]
        how = "written differently"
        if sizes:
            how = f"numbers differ, by {max(sizes):.1e} of their size at most"
    lines = zip([*a.splitlines(), ""], [*b.splitlines(), ""], strict=False)
    one, two = next(((x, y) for x, y in lines if x != y), ("", ""))
    return f"{how}: {one.strip()[:100]!r} was {two.strip()[:100]!r} here"


def numbers(text: str) -> list[float]:
    return [float(n.replace(",", "").replace("−", "-")) for n in NUMBER.findall(text)]


def print_comparison(old: Path, new: Path) -> bool:
    """Print what is the same and what is not; True when all is."""
    compared, timed, found = compare_runs(old, new)
    for one in found:
        print(one)
    paths = [folder / WEIGHTS for folder in (old, new)]
    weights = [path.read_bytes() if path.is_file() else None for path in paths]
    equal = weights[0] == weights[1]
    print(f"trained weights: {'the same bytes' if equal else 'not the same bytes'}")
    cells = f"{compared} cells ({timed} more measure time)"
    if compared and not found and equal:
        print(f"reproduced: the outputs of {cells} are those of {old.name}, to the byte")
        return True
    print(f"{len(found)} difference{'s' * (len(found) != 1)} in {cells}")
    print(_likely_reason(old, new))
    return False


def _likely_reason(old: Path, new: Path) -> str:
    """What differs between the machines of two runs that differ."""
    before, here = (read_manifest(folder)["environment"] for folder in (old, new))
    changed = [
        f"{key} {before.get(key)}, here {here.get(key)}"
        for key in MACHINE
        if before.get(key) != here.get(key)
    ]
    if changed:
        return "equal bits are promised for one machine and the same versions; it was " + "; ".join(
            changed
        )
    return "the machine and the versions are the same: has the code changed since?"
