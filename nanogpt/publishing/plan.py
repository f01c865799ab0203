"""What a run will do and how long that will take, said before it begins."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ..config.rows import FULL, ROWS, Row, Speed, choose_row
from ..system.console import clock
from .nbfile import read


@dataclass(frozen=True)
class Pace:
    """How much work a run does, and how fast the machine is that does it."""

    profile: str  # what the notebooks are given
    row: Row | None = None  # None: nothing is known of how long this profile takes
    speed: Speed | None = None
    lanes: int = 1  # notebooks side by side

    @property
    def card(self) -> dict:
        """What the manifest records of it."""
        if not self.row:
            return {}
        rounded = {name: round(value, 2) for name, value in asdict(self.speed).items()}
        return {"row": self.profile, "speed": {"ratio": round(self.speed.ratio, 2), **rounded}}

    def seconds(self, names: list[str]) -> float | None:
        """About how long these notebooks take; None where nothing is known."""
        return self.row and self.row.total(names, self.speed, self.lanes)


def choose_pace(profile: str, speed: Speed, *, full: bool = False) -> Pace:
    """The pace of a profile at this speed: for "cpu" a row of the table, in two lanes if it can.

    With `full`, all that the published run does. Profiles other than those of cpu have no table.
    """
    rows = {row.profile: row for row in (FULL, *ROWS)}
    two = 2 if cpus() > 1 else 1
    row = choose_row(speed, two) if profile == "cpu" and not full else rows.get(profile)
    lanes = two if row and row is not FULL else 1
    return Pace(row.profile if row else profile, row, speed, lanes)


def cpus() -> int:
    """How many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ordered(sources: list[Path], pace: Pace) -> list[Path]:
    """In two lanes: those that measure no time first, and of each kind the longest first."""
    if pace.lanes == 1:
        return sources
    took = {path: pace.row.cost(path.stem).seconds(pace.speed) for path in sources}
    return sorted(sources, key=lambda path: (measures(path), -took[path]))


def measures(path: Path) -> bool:
    """Whether a cell of this notebook measures time."""
    return any(is_timing(cell) for cell in read(path).cells)


def is_timing(cell) -> bool:
    """Whether this cell measures time."""
    return "timing" in cell.metadata.get("tags", [])


def describe_plan(names: list[str], pace: Pace) -> str:
    """The plan in lines: the row and why, the minutes of each notebook and of all."""
    if not pace.row:
        return f"profile {pace.profile}: {len(names)} notebooks"
    speed, width = pace.speed, max(map(len, names))
    why = f"{speed.calls:.2f} in calls, {speed.arithmetic:.2f} in arithmetic"
    lines = [f"this machine: {speed.ratio:.2f} times the speed of the reference ({why})"]
    beside = ", two notebooks side by side, timings alone" if pace.lanes > 1 else ""
    lines.append(f"profile {pace.profile}{beside}")
    for name in names:
        lines.append(f"  {name:{width}}  {clock(pace.row.cost(name).seconds(speed)):>6}")
    lines.append(f"  {'in all, about':{width}}  {clock(pace.seconds(names)):>6} (minutes:seconds)")
    return "\n".join(lines)
