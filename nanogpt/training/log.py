"""The log of a training run: a line of JSON for each evaluation."""

from __future__ import annotations

import json
from pathlib import Path

from ..system.files import atomic_path


def write_log(out: Path, history: dict, reading: dict) -> None:
    """Add the newest evaluation to `<out>.jsonl`; what another run left there is replaced."""
    path, names = log_path(out), ("step", "train", "val")
    rows = [
        dict(zip(names, row, strict=True)) for row in zip(*(history[n] for n in names), strict=True)
    ]
    newest = json.dumps(rows[-1] | reading) + "\n"
    old = _lines(path)
    kept = old[: len(rows) - 1]  # a run that was killed may have told more than its state knows
    if not _same_run(kept, rows[:-1]):
        kept = [json.dumps(row) + "\n" for row in rows[:-1]]
    if kept and kept == old:
        with open(path, "a", encoding="utf-8") as file:
            file.write(newest)
    else:
        with atomic_path(path) as temporary:
            temporary.write_text("".join([*kept, newest]), encoding="utf-8")


def log_path(out: Path) -> Path:
    """Where the log of the run that writes to `out` lies."""
    return out.with_name(f"{out.name}.jsonl")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, ValueError):
        return []


def _same_run(lines: list[str], rows: list[dict]) -> bool:
    """Whether these lines of a log are of these evaluations."""
    try:
        told = [
            {key: line[key] for key in ("step", "train", "val")} for line in map(json.loads, lines)
        ]
        return told == rows and all(line.endswith("\n") for line in lines)
    except (ValueError, KeyError, TypeError):
        return False
