"""The museum: public bugs as small models, each judged with its bug and without it.

An exhibit is a file of notebooks/museum. Its docstring has the thread and the group, then the
mechanism; its class, or `model`, makes what the referee takes of a seed and bug=True or False.
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

from ..files import ROOT, read_json
from .referee import referee

FOLDER = ROOT / "notebooks" / "museum"
VERDICTS = FOLDER / "verdicts.json"  # what the site's page is made from
# No number, and a word for each of the 29 tokens of an exhibit.
WORDS = "– the king and my lord will not come to her night love with a sword he said no more"
WORDS = f"{WORDS} than this day we live for gold once again still".split()
SHOWN = 16  # tokens of a picture: those around the first that changes
KINDS = {"issues": "issue", "pull": "pull request"}
POWERS = "0123456789abcdefghi"  # of ten, from -16 to 2


def exhibits(names: Iterable[str] = ()) -> list[Path]:
    """The museum's files; those with these names, if any. Raises ValueError."""
    paths = sorted(FOLDER.glob("*_*.py"))
    if unknown := set(names) - {path.stem for path in paths}:
        raise ValueError(f"no exhibit {min(unknown)!r} among the {len(paths)} in {FOLDER}")
    return [path for path in paths if not names or path.stem in names]


@torch.inference_mode()
def judged(path: Path, seeds: Iterable[int]) -> dict:
    """What the referee says of an exhibit over these seeds, as plain data.

    `convicted` and `acquitted` count seeds, with the bug and without it. `found` and `missed` count
    them for each comparison. `turn` is the picture of the first that convicts and has one, `way`
    and `words` say which that is.
    """
    sys.path.insert(0, str(path.parent))  # where the parts are that it is built from
    try:
        exhibit = importlib.import_module(path.stem)
    finally:
        sys.path.remove(str(path.parent))
    own = (kind for _, kind in inspect.getmembers(exhibit, inspect.isclass))
    make = getattr(exhibit, "model", None) or next(x for x in own if x.__module__ == path.stem)
    head, _, about = inspect.getdoc(exhibit).partition("\n\n")
    thread, group = re.fullmatch(r"(https://\S+) \((.+)\)", head).groups()
    result = {"name": path.stem, "thread": thread, "group": group, "about": " ".join(about.split())}
    counts, found, missed = Counter(), Counter(), Counter()
    for seed in seeds:
        model = make(seed, bug=True)
        report = referee(model, seed=seed, seconds=math.inf)
        counts["convicted"] += bool(report.bugs)
        counts["acquitted"] += not referee(make(seed, bug=False), seed=seed, seconds=math.inf).bugs
        for finding in report.findings + report.padding:
            way = finding.way
            for cache in getattr(model, "caches", ()):
                way = way.removeprefix(f"{cache}, ")
            (found if finding.verdict == "bug" else missed)[way] += 1
            if finding.verdict == "bug" and not result.get("turn"):
                result |= {"way": way, "words": finding.words, "turn": _picture(*finding.turn)}
    return result | counts | {"found": dict(found), "missed": dict(missed)}


def _picture(expected=(), got=(), sizes=()) -> dict:
    """Finding.turn as short texts: a word for each token, a power of ten for each difference.

    A server's texts are letters: a word for each as well, and no sizes.
    """
    if not expected:
        return {}
    if isinstance(expected, str):
        expected, got = ([ord(letter) - ord("a") for letter in row] for row in (expected, got))
    wrong = (i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b)
    start = max(0, min(next(wrong, 0) - SHOWN // 4, len(expected) - SHOWN))
    part = slice(start, start + SHOWN)
    rows = [" ".join(WORDS[(token + 1) % 30] for token in row[part]) for row in (expected, got)]
    powers = (math.floor(math.log10(min(max(size, 1e-16), 1e2))) for size in sizes[part])
    drawn = {"sizes": "".join(POWERS[power + 16] for power in powers)} if sizes else {}
    return {"expected": rows[0], "got": rows[1], **drawn}


def rooms() -> dict | None:
    """What the site's page shows, from the verdicts that were written; None where they are not."""
    data = read_json(VERDICTS)
    if not isinstance(data, dict):
        return None
    rows, seeds = [_room(row) for row in data["exhibits"]], data["seeds"]
    convicts = Counter(way for row in rows for way, n in row["found"].items() if n == seeds)
    alone = Counter(way for row in rows for way in row["found"] if len(row["found"]) == 1)
    tried = sorted({way for row in rows for way in row["found"] | row["missed"]})
    ways = [{"way": way, "found": convicts[way], "alone": alone[way]} for way in tried]
    ways.sort(key=lambda way: -way["found"])
    return {"bugs": rows, "seeds": seeds, "powers": POWERS, "ways": ways}


def _room(row: dict) -> dict:
    """What the page says of an exhibit, beside its verdicts."""
    owner, kind, number = re.fullmatch(r".*\.com/(.+)/(\w+)/(\w+)", row["thread"]).groups()
    trap = re.search(r"otebook 04's (\w+) trap", row["about"])
    texts = [row.get("turn", {}).get(key, "").split() for key in ("expected", "got")]
    pairs = enumerate(zip(*texts, strict=False))
    path = FOLDER / f"{row['name']}.py"
    code = path.read_text(encoding="utf-8").split('"""', 2)[2].strip() if path.is_file() else ""
    return row | {
        "owner": owner,
        "number": f"{KINDS.get(kind, kind)} {number}",
        "trap": trap and trap[1],
        "first": next((i for i, (a, b) in pairs if a != b), None),
        "code": code,
    }
