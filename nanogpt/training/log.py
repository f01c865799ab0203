"""The log of a training run: a line of JSON for each evaluation."""

from __future__ import annotations

import json
from pathlib import Path

from ..system.files import atomic_path

LOSSES = ("step", "train", "val")


def log_path(out: Path) -> Path:
    """Where the log of the run that writes to `out` is."""
    return out.with_name(f"{out.name}.jsonl")


def write_log(out: Path, history: dict, speed: dict) -> None:
    """Add the newest evaluation to `<out>.jsonl`; lines of another run are replaced."""
    path, columns = log_path(out), (history[name] for name in LOSSES)
    *before, newest = (dict(zip(LOSSES, row, strict=True)) for row in zip(*columns, strict=True))
    line = json.dumps(newest | speed) + "\n"
    old = _lines(path)
    kept = old[: len(before)]  # a run that was killed may have logged more than its state knows
    if not _are_of(kept, before):
        kept = [json.dumps(row) + "\n" for row in before]
    if kept and kept == old:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
    else:
        with atomic_path(path) as temporary:
            temporary.write_text("".join([*kept, line]), encoding="utf-8")


def logged_speed(out: Path, step: int) -> dict | None:
    """The newest line of the log that says something of the speed, not later than `step`."""
    for line in reversed(_lines(log_path(out))):
        row = _parsed(line)
        numbers = [row.get(name) for name in ("step", "seconds", "evaluation")]
        if all(type(n) in (int, float) and n >= 0 for n in numbers) and row["step"] <= step:
            return row
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, ValueError):
        return []


def _parsed(line: str) -> dict:
    """The row of a line; empty for a line that was cut, or damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) and line.endswith("\n") else {}


def _are_of(lines: list[str], rows: list[dict]) -> bool:
    """Whether these lines of a log are of these evaluations."""
    found = [{key: row.get(key) for key in LOSSES} for row in map(_parsed, lines)]
    return found == rows
