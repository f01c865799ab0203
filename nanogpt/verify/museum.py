"""The museum: public bugs as small models, each judged with its bug and without it.

An exhibit is a file of notebooks/museum. Its docstring has the thread and the group, then the
mechanism; its class, or `model`, makes the referee's subject from a seed and bug=True or False.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType

import torch

from ..files import ROOT
from .referee import referee

FOLDER = ROOT / "notebooks" / "museum"
VERDICTS = FOLDER / "verdicts.json"  # from which the site's page is made
# No number, and a word for each of the 29 tokens of an exhibit.
WORDS = "– the king and my lord will not come to her night love with a sword he said no more"
WORDS = f"{WORDS} than this day we live for gold once again still".split()
SHOWN = 16  # tokens of a picture: those around the first that changes
POWERS = "0123456789abcdefghi"  # of ten, from -16 to 2


def exhibits(names: Iterable[str] = ()) -> list[Path]:
    """The museum's files; those with these names, if any. Raises ValueError."""
    paths = sorted(FOLDER.glob("*_*.py"))
    unknown = set(names) - {path.stem for path in paths}
    if unknown:
        raise ValueError(f"no exhibit {min(unknown)!r} among the {len(paths)} in {FOLDER}")
    return [path for path in paths if not names or path.stem in names]


@torch.inference_mode()
def verdicts_on(path: Path, seeds: Iterable[int]) -> dict:
    """The verdicts on an exhibit over these seeds, as plain data.

    `convicted` and `acquitted` count seeds, with the bug and without it. `found` and `missed` count
    them for each comparison. `turn` is the picture of the first that convicts and has one; its name
    and evidence are `way` and `words`.
    """
    exhibit = _imported(path)
    make = _maker(exhibit)
    head, _, about = inspect.getdoc(exhibit).partition("\n\n")
    thread, group = re.fullmatch(r"(https://\S+) \((.+)\)", head).groups()
    result = {"name": path.stem, "thread": thread, "group": group, "about": " ".join(about.split())}
    counts = Counter()
    convictions = Counter()
    acquittals = Counter()
    for seed in seeds:
        model = make(seed, bug=True)
        report = referee(model, seed=seed, seconds=math.inf)
        repaired = referee(make(seed, bug=False), seed=seed, seconds=math.inf)
        counts["convicted"] += bool(report.bugs)
        counts["acquitted"] += not repaired.bugs
        for finding in report.findings + report.padding:
            way = finding.way
            for cache in getattr(model, "caches", ()):
                way = way.removeprefix(f"{cache}, ")
            if finding.verdict != "bug":
                acquittals[way] += 1
                continue
            convictions[way] += 1
            if not result.get("turn"):
                result |= {"way": way, "words": finding.words, "turn": _picture(*finding.turn)}
    return result | counts | {"found": dict(convictions), "missed": dict(acquittals)}


def _imported(path: Path) -> ModuleType:
    """The module of an exhibit, which imports its parts from the files beside it."""
    sys.path.insert(0, str(path.parent))
    try:
        return importlib.import_module(path.stem)
    finally:
        sys.path.remove(str(path.parent))


def _maker(exhibit: ModuleType) -> Callable:
    """The function `model` of an exhibit, or the first class that is its own."""
    if hasattr(exhibit, "model"):
        return exhibit.model
    classes = [kind for _, kind in inspect.getmembers(exhibit, inspect.isclass)]
    return next(kind for kind in classes if kind.__module__ == exhibit.__name__)


def _picture(expected=(), got=(), sizes=()) -> dict:
    """Finding.turn as short texts: a word for each token, a power of ten for each difference.

    A server's texts are letters: a word for each as well, and no sizes.
    """
    if not expected:
        return {}
    if isinstance(expected, str):
        expected = _letter_numbers(expected)
        got = _letter_numbers(got)
    first = first_difference(expected, got) or 0
    start = max(0, min(first - SHOWN // 4, len(expected) - SHOWN))
    part = slice(start, start + SHOWN)
    picture = {"expected": _in_words(expected[part]), "got": _in_words(got[part])}
    if sizes:
        picture["sizes"] = "".join(map(_power, sizes[part]))
    return picture


def _letter_numbers(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def _in_words(tokens: list[int]) -> str:
    return " ".join(WORDS[(token + 1) % 30] for token in tokens)


def _power(size: float) -> str:
    """The character of POWERS for a difference."""
    power = math.floor(math.log10(min(max(size, 1e-16), 1e2)))
    return POWERS[power + 16]


def first_difference(expected: Sequence, got: Sequence) -> int | None:
    """Where two texts part; None where one is the other's beginning."""
    for i, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return i
    return None
