"""outputs/published as a whole: what may go there, how it is exchanged, and a run beside it.

On one machine with the same versions nothing but timings may differ between two runs; elsewhere
the comparison says what does, and by how much.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..data.corpus import SHA256, Corpus
from ..system.files import ROOT, exchange, sha256
from .manifest import read_manifest
from .nbfile import is_timing, read
from .parameters import RunError

# Where a run for publication works, and what stays there if it fails.
BUILD = ROOT / "outputs" / "run" / "publish"
# Notebook 01 trains it, all others load it: one model on every page.
WEIGHTS = "checkpoints/small.safetensors"
NUMBER = re.compile(r"(?<![\w.])[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
# Fields of the environment card on which the last bits depend.
MACHINE = "python torch platform device device_name dtype threads cpu_capability".split()


def check(plan, profile: str, corpus: Corpus) -> None:
    """Raise RunError unless this is what is published: cpu, all notebooks as they are, Shakespeare.

    `plan` is the RunPlan that asks for it.
    """
    flag = "--publish" if plan.publish else "--reproduce"
    if profile != "cpu":
        raise RunError(
            f"{flag} with profile {profile}: what is published was made with cpu, on any laptop"
        )
    if plan.notebooks or plan.settings or plan.out or plan.source:
        raise RunError(
            f"{flag} runs all notebooks as they are: leave out names, -p, --out and --source"
        )
    if corpus.sha256 != SHA256:
        raise RunError(
            f"{flag} with {corpus.name}: put Tiny Shakespeare into data/ first (see data/README.md)"
        )


def empty(folder: Path) -> None:
    """Remove all that an earlier attempt left; the lock file stays."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def publish(new: Path, target: Path) -> None:
    """Put a complete run in the place of the published one, without what only a run needs."""
    for pattern in (".lock", "checkpoints/*-last.*", "checkpoints/*.jsonl"):
        for path in new.glob(pattern):
            path.unlink()
    exchange(new, target)


def outdated(folder: Path) -> list[str]:
    """The notebooks of a run whose source in notebooks/ is another by now."""
    made = {e["notebook"]: e.get("source_sha256") for e in read_manifest(folder)["notebooks"]}
    paths = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    return [path.stem for path in paths if made.get(path.stem) != sha256(path)]


# ------------------------------------------------------------------ two runs side by side


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
            timing = is_timing(cell)
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
        pairs = zip(_numbers(a), _numbers(b), strict=True)
        sizes = [abs(x - y) / max(abs(x), abs(y), 1e-30) for x, y in pairs]
        how = f"numbers differ, by {max(sizes):.1e} of their size at most"
    lines = zip([*a.splitlines(), ""], [*b.splitlines(), ""], strict=False)
    one, two = next(((x, y) for x, y in lines if x != y), ("", ""))
    return f"{how}: {one.strip()[:100]!r} was {two.strip()[:100]!r} here"


def _numbers(text: str) -> list[float]:
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
    before, here = (read_manifest(folder)["environment"] for folder in (old, new))
    pairs = ((key, before.get(key), here.get(key)) for key in MACHINE)
    if changed := "; ".join(f"{key} {was}, here {now}" for key, was, now in pairs if was != now):
        print(f"equal bits are promised for one machine and the same versions; it was {changed}")
    else:
        print("the machine and the versions are the same: has the code changed since?")
    return False
