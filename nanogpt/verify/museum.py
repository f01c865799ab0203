"""The museum: public bugs as small models, each judged with its bug and without it.

An exhibit is a file of notebooks/museum. Its docstring has the thread and the group, then the
mechanism; its `model(seed, bug)` is what the referee takes.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch

from ..system.files import ROOT
from .referee import referee
from .report import Finding

FOLDER = ROOT / "notebooks" / "museum"
VERDICTS = FOLDER / "verdicts.json"  # what the site's page is made from
GROUPS = ["positions", "masks", "storing", "reuse", "rollback", "batches and seeds", "plain pass"]
TRAPS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]  # of notebook 04
LETTERS = "abcdefghijklmnopqrstuvwxyzäöü"  # for the 29 tokens of an exhibit
SERVED = "requests one after the other"


def exhibits(names: Iterable[str] = ()) -> list[Path]:
    """The museum's files; those with these names, if any. Raises ValueError."""
    paths = sorted(FOLDER.glob("*_*.py"))
    if unknown := set(names) - {path.stem for path in paths}:
        raise ValueError(f"no exhibit {sorted(unknown)[0]!r} among the {len(paths)} in {FOLDER}")
    return [path for path in paths if not names or path.stem in names]


def load(path: Path):
    """An exhibit as a module."""
    sys.path.insert(0, str(path.parent))  # where the parts are that it is built from
    try:
        return importlib.import_module(path.stem)
    finally:
        sys.path.remove(str(path.parent))


def describe(exhibit) -> dict:
    """What an exhibit's docstring says: thread, group, mechanism, trap of notebook 04 (or None)."""
    head, _, about = inspect.getdoc(exhibit).partition("\n\n")
    thread, group = re.fullmatch(r"(https://\S+) \((.+)\)", head).groups()
    if group not in GROUPS:
        raise ValueError(f"{exhibit.__name__}: {group!r} is none of the groups {', '.join(GROUPS)}")
    about = " ".join(about.split())
    trap = re.search(r"otebook 04's (\w+) trap", about)
    trap = TRAPS.index(trap[1]) + 1 if trap else None
    return {"name": exhibit.__name__, "thread": thread, "group": group, "trap": trap,
            "about": about}  # fmt: skip


@torch.inference_mode()
def judged(path: Path, seeds: Iterable[int]) -> dict:
    """What the referee says of an exhibit over these seeds, as plain data.

    `convicted` and `acquitted` count seeds, with the bug and without it. `found` and `missed` count
    them for each comparison. `turn` is the picture of the first that convicts and has one, `way`
    and `words` say which that is.
    """
    exhibit = load(path)
    result = describe(exhibit) | {"convicted": 0, "acquitted": 0}
    found, missed = Counter(), Counter()
    for seed in seeds:
        model = exhibit.model(seed, bug=True)
        report = referee(model, seed=seed)
        result["convicted"] += bool(report.bugs)
        result["acquitted"] += not referee(exhibit.model(seed, bug=False), seed=seed).bugs
        for finding in report.findings + report.padding:
            way = _way(finding, getattr(model, "caches", ()))
            (found if finding.verdict == "bug" else missed)[way] += 1
            if finding.verdict == "bug" and not result.get("turn"):
                result |= {"way": way, "words": finding.words, "turn": _picture(finding)}
    return result | {"found": dict(found), "missed": dict(missed)}


def _way(finding: Finding, caches: Iterable[str]) -> str:
    """The comparison without the names of the cache and of the request."""
    way = finding.way
    for cache in caches:
        way = way.removeprefix(f"{cache}, ")
    return SERVED if way.startswith("the requests A, ") else way


def _picture(finding: Finding) -> dict:
    """Finding.turn as short texts: a letter for each token, "." for none, and powers of ten."""
    expected, got, *sizes = finding.turn or ("", "")
    if not sizes:
        return {"expected": expected, "got": got} if expected or got else {}
    letters = [
        "".join(LETTERS[token] if token >= 0 else "." for token in row) for row in (expected, got)
    ]
    levels = [math.floor(math.log10(min(max(size, 1e-16), 1e2))) + 16 for size in sizes[0]]
    powers = "".join("0123456789abcdefghi"[level] for level in levels)
    return {"expected": letters[0], "got": letters[1], "sizes": powers, "at": finding.position}
