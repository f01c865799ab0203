"""Measurements as text: tables, times and counts; and the timing of interleaved runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from .. import timing
from ..timing import CPU, Name, Result, Summary, interleave

_SHOWN = {  # rung labels: as stored in results, and as displayed
    "per-Head, no cache": "per-head, no cache",
    "per-Head, cache by torch.cat": "per-head, torch.cat cache",
    "batched heads, torch.cat": "packed heads (fused QKV)",
}


def shown_label(label: str) -> str:
    """The displayed label of a rung; stored results, some of them published, keep the old one."""
    return _SHOWN.get(label, label)


def time_interleaved(
    runs: Mapping[Name, Callable[[], Result]],
    repeats: int,
    device: torch.device = CPU,
    after_turn: Callable[[], None] = lambda: None,
) -> tuple[dict[Name, list[float]], dict[Name, Result]]:
    """Time interleaved runs: the seconds of every run, and the last result of each."""

    def timed(run: Callable[[], Result]) -> tuple[float, Result]:
        before = timing.clock(device)
        returned = run()
        return timing.clock(device) - before, returned

    timed_runs = {name: partial(timed, run) for name, run in runs.items()}
    results = interleave(timed_runs, repeats, after_turn)
    seconds = {name: [one for one, _ in pairs] for name, pairs in results.items()}
    return seconds, {name: pairs[-1][1] for name, pairs in results.items()}


def summary_text(s: Summary, digits: int) -> str:
    """A summary as text: median [low – high], or only the number for a single measurement."""
    spread = f" [{s['low']:,.{digits}f} – {s['high']:,.{digits}f}]" if s["n"] > 1 else ""
    return f"{s['median']:,.{digits}f}{spread}"


def repeats_text(n: int) -> str:
    """The number of repeats, in words."""
    return f"medians of {n}, interleaved" if n > 1 else "timed once, interleaved"


def number_of(n: int, noun: str) -> str:
    """A number and its noun: "1 request", "2 requests"."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Format rows with the same keys as a text table; numeric columns are right-aligned."""
    columns = []
    for name in rows[0]:
        column = [name, *(str(row[name]) for row in rows)]
        width = max(map(len, column))
        words = any(cell[:1].isalpha() for cell in column[1:])
        columns.append([cell.ljust(width) if words else cell.rjust(width) for cell in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def clock_text(seconds: float) -> str:
    """Minutes and seconds, such as 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
