"""What a run will do and how long that will take, said before it begins.

One number is measured, how soon this machine does a fixed piece of work. The seconds of each
notebook are those that the published run's manifest notes. So much of its work is done, as one part
in profiles.PARTS, as fits into LIMIT.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..benchmarks.timing import seconds_of_work
from ..config.profiles import PARTS, get_profile
from ..system.console import clock
from ..system.files import PUBLISHED
from .manifest import read_manifest

LIMIT = 345  # seconds that all notebooks may take: six minutes, with the pages
# On the machine of the published run:
WORK = 0.094  # seconds of `seconds_of_work`, for a manifest that does not note them
TYPICAL = 80.0  # of a notebook that is not in the manifest
FIXED = 6.0  # of each notebook, whatever the part: imports, figures, a kernel
# Two notebooks at a time, on two CPUs, are done so many times as soon as one after another: a fifth
# of the time goes to cells that measure, as nothing runs beside them, and these wait for others.
BESIDE = 1.3


@dataclass(frozen=True)
class Pace:
    """How much work a run does, and how long each notebook takes here, where that is known."""

    profile: str  # what the notebooks are given: smoke, cpu/4, …
    lanes: int = 1  # notebooks at a time
    work: float | None = None  # what `seconds_of_work` gave here
    speed: float = 1.0  # of this machine, as a multiple of the published run's
    seconds: dict[str, float] | None = None

    @property
    def total(self) -> float | None:
        """Seconds of all notebooks."""
        return self.seconds and sum(self.seconds.values()) / (BESIDE if self.lanes > 1 else 1)

    @property
    def card(self) -> dict:
        """What the manifest records of it."""
        return {"profile": self.profile} | ({"work_seconds": self.work} if self.work else {})

    def __str__(self) -> str:
        """The plan in lines: the part and why, the minutes of each notebook and of all."""
        if not self.seconds:
            return f"profile {self.profile}"
        beside = ", two notebooks at a time, timings alone" if self.lanes > 1 else ""
        width = max(map(len, self.seconds))
        return "\n".join(
            [
                f"this machine has {self.speed:.2f} times the speed of the published run's",
                f"profile {self.profile}{beside}",
                *(f"  {name:{width}}  {clock(s):>6}" for name, s in self.seconds.items()),
                f"  {'in all, about':{width}}  {clock(self.total):>6} (minutes:seconds)",
            ]
        )


def choose_pace(profile: str, names: list[str], *, full: bool = False, lanes: int = 2) -> Pace:
    """The pace of these notebooks; for "cpu" unless `full` the largest part that fits into LIMIT.

    The part is what fits for all notebooks of the published run: so a notebook does the same work
    alone as among them. Nothing is known of how long other profiles than those of cpu take.
    """
    kind = get_profile(profile).kind
    if kind != "cpu":
        return Pace(profile)
    lanes = 1 if full or cpus() < 2 else lanes
    found, work = read_manifest(PUBLISHED), round(seconds_of_work(), 4)
    took = {entry["notebook"]: entry.get("seconds", TYPICAL) for entry in found["notebooks"]}
    speed = found.get("work_seconds", WORK) / work

    def part(n: int, names: list[str]) -> Pace:
        seconds = {x: (FIXED + (took.get(x, TYPICAL) - FIXED) / n) / speed for x in names}
        at_once = min(lanes, len(names))
        return Pace(get_profile(kind).scaled(n).name, at_once, work, speed, seconds)

    if profile != "cpu" or full:
        return part(int(profile.partition("/")[2] or 1), names)
    everything = [*took] or names
    fits = (n for n in PARTS if part(n, everything).total <= LIMIT)
    return part(next(fits, PARTS[-1]), names)


def cpus() -> int:
    """How many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
