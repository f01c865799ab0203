"""What a run will do and how long that will take, said before it begins.

One number is measured, how soon this machine does a fixed piece of work. The seconds of each
notebook are those that the published run's manifest notes. So much of its work is done, as one part
in profiles.PARTS, as fits into LIMIT.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..benchmarks.timing import seconds_of_work
from ..config.profiles import PARTS, get_profile
from ..system.console import clock, table
from ..system.files import PUBLISHED
from .nbfile import read_manifest

LIMIT = 345  # seconds that all notebooks may take: six minutes, with the pages
# On the machine of the published run:
WORK = 0.094  # seconds of `seconds_of_work`, for a manifest that does not note them
TYPICAL = 80.0  # of a notebook that is not in the manifest
FIXED = 6.0  # of each notebook, whatever the part: imports, figures, a kernel


@dataclass(frozen=True)
class Pace:
    """How much work a run does, and how long each notebook takes here, where that is known."""

    profile: str  # what the notebooks are given: smoke, cpu/4, …
    work: float | None = None  # what `seconds_of_work` gave here
    speed: float = 1.0  # of this machine, as a multiple of the published run's
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds of all notebooks; 0 where they are not known."""
        return sum(self.seconds.values())

    @property
    def card(self) -> dict:
        """What the manifest records of it."""
        return {"profile": self.profile} | ({"work_seconds": self.work} if self.work else {})

    def __str__(self) -> str:
        """The plan in lines: the part and why, the minutes of each notebook and of all."""
        if not self.seconds:
            return f"profile {self.profile}"
        minutes = self.seconds | {"in all, about": self.total}
        rows = [{"notebook": name, "minutes": clock(s)} for name, s in minutes.items()]
        speed = f"this machine has {self.speed:.2f} times the speed of the published run's"
        return f"{speed}\nprofile {self.profile}\n{table(rows)}"


def choose_pace(profile: str, names: list[str], *, full: bool = False) -> Pace:
    """The pace of these notebooks; for "cpu" unless `full` the largest part that fits into LIMIT.

    The part is what fits for all notebooks of the published run: so a notebook does the same work
    alone as among them. Nothing is known of how long other profiles than those of cpu take.
    """
    kind = get_profile(profile).kind
    if kind != "cpu":
        return Pace(profile)
    found, work = read_manifest(PUBLISHED), round(seconds_of_work(), 4)
    took = {entry["notebook"]: entry["seconds"] for entry in found["notebooks"]}
    speed = found.get("work_seconds", WORK) / work

    def part(n: int, names: list[str]) -> Pace:
        seconds = {x: (FIXED + (took.get(x, TYPICAL) - FIXED) / n) / speed for x in names}
        return Pace(get_profile(kind).scaled(n).name, work, speed, seconds)

    if profile != "cpu" or full:
        return part(int(profile.partition("/")[2] or 1), names)
    everything = [*took] or names
    fits = (n for n in PARTS if part(n, everything).total <= LIMIT)
    return part(next(fits, PARTS[-1]), names)
