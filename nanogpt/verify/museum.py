"""The museum: public bugs rebuilt as small models, each judged with and without its bug.

An exhibit is a file in notebooks/museum. Its docstring has the thread and the group, then the
mechanism. Its class, or its function `model`, builds the referee's subject from a seed and
bug=True or False.
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
from typing import Any

import torch

from ..files import ROOT
from ..kv_referee.report import LogitTurn, TextTurn, Verdict
from .referee import referee

FOLDER = ROOT / "notebooks" / "museum"
VERDICTS_FILE = FOLDER / "verdicts.json"  # the source of the site's page
# The sign for NaN, and a word for each of the 29 tokens of an exhibit.
_WORDS = (
    "– the king and my lord will not come to her night love with a sword he said no more "
    "than this day we live for gold once again still"
).split()
_SHOWN = 16  # tokens in a picture, around the first that changes
POWERS = "0123456789abcdefghi"  # a character per power of ten, from -16 to 2


def exhibits(names: Iterable[str] = ()) -> list[Path]:
    """The museum's files, or only those with these names. Raises ValueError for an unknown name."""
    paths = sorted(FOLDER.glob("*_*.py"))
    unknown = set(names) - {path.stem for path in paths}
    if unknown:
        raise ValueError(f"no exhibit {min(unknown)!r} among the {len(paths)} in {FOLDER}")
    return [path for path in paths if not names or path.stem in names]


@torch.inference_mode()
def verdicts_on(path: Path, seeds: Iterable[int]) -> dict[str, Any]:
    """The verdicts on an exhibit over these seeds, as plain data.

    `convicted` counts seeds with the bug, `acquitted` seeds without it. `found` and `missed` count
    them for each comparison. `turn` is the picture of the first convicting comparison that has one;
    `way` and `words` are its name and evidence.
    """
    exhibit = _imported(path)
    make = _maker(exhibit)
    head, _, about = (inspect.getdoc(exhibit) or "").partition("\n\n")
    described = re.fullmatch(r"(https://\S+) \((.+)\)", head)
    if not described:
        raise ValueError(f"{path}: its docstring must begin with `https://… (group)`, not {head!r}")
    thread, group = described.groups()
    result: dict[str, Any] = {
        "name": path.stem,
        "thread": thread,
        "group": group,
        "about": " ".join(about.split()),
    }
    counts: Counter[str] = Counter()
    convictions: Counter[str] = Counter()
    acquittals: Counter[str] = Counter()
    for seed in seeds:
        model = make(seed, bug=True)
        report = referee(model, seed=seed)
        repaired = referee(make(seed, bug=False), seed=seed)
        counts["convicted"] += bool(report.bugs)
        counts["acquitted"] += not repaired.bugs
        for finding in report.findings + report.padding:
            name = finding.name
            if finding.verdict is not Verdict.BUG:
                acquittals[name] += 1
                continue
            convictions[name] += 1
            if not result.get("turn"):
                picture = _picture(finding.turn)
                result |= {"way": name, "words": finding.words, "turn": picture}
    return result | counts | {"found": dict(convictions), "missed": dict(acquittals)}


def _imported(path: Path) -> ModuleType:
    """Import an exhibit's module, which imports its parts from the same folder."""
    sys.path.insert(0, str(path.parent))
    try:
        return importlib.import_module(path.stem)
    finally:
        sys.path.remove(str(path.parent))


def _maker(exhibit: ModuleType) -> Callable[..., Any]:
    """An exhibit's function `model`, or the first class that it defines."""
    if hasattr(exhibit, "model"):
        model: Callable[..., Any] = exhibit.model
        return model
    classes = [kind for _, kind in inspect.getmembers(exhibit, inspect.isclass)]
    return next(kind for kind in classes if kind.__module__ == exhibit.__name__)


def _picture(turn: LogitTurn | TextTurn | None) -> dict[str, str]:
    """A finding's turn as short texts: a word for each token, a power of ten for each difference.

    A server's texts are letters: each is also shown as a word, without sizes.
    """
    if turn is None or not turn.expected:
        return {}
    if isinstance(turn, TextTurn):
        expected = _letter_numbers(turn.expected)
        got = _letter_numbers(turn.got)
        sizes: list[float] = []
    else:
        expected, got, sizes = turn
    first = first_difference(expected, got) or 0
    start = max(0, min(first - _SHOWN // 4, len(expected) - _SHOWN))
    part = slice(start, start + _SHOWN)
    picture = {"expected": _in_words(expected[part]), "got": _in_words(got[part])}
    if sizes:
        picture["sizes"] = "".join(map(_power, sizes[part]))
    return picture


def _letter_numbers(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def _in_words(tokens: list[int]) -> str:
    return " ".join(_WORDS[(token + 1) % 30] for token in tokens)


def _power(size: float) -> str:
    """The character of POWERS for a difference."""
    power = math.floor(math.log10(min(max(size, 1e-16), 1e2)))
    return POWERS[power + 16]


def first_difference(expected: Sequence[object], got: Sequence[object]) -> int | None:
    """The index at which two texts diverge; None if one is a prefix of the other."""
    for i, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return i
    return None
