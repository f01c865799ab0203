"""What a run will do, with which parameters, and how long that will take, before it begins.

One number is measured, how soon this machine does a fixed piece of work. The seconds of each
notebook are those that the published run's manifest notes. So much of its work is done, as one part
in profiles.PARTS, as fits into LIMIT.
"""

from __future__ import annotations

import ast
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from ..benchmarks.timing import seconds_of_work
from ..config.profiles import PARTS, get_profile
from ..system.console import clock, table
from ..system.files import PUBLISHED
from .nbfile import read, read_manifest, tagged

LIMIT = 345  # seconds that all notebooks may take: six minutes, with the pages
# On the machine of the published run:
WORK = 0.09  # seconds of `seconds_of_work`, for a manifest that does not note them
TYPICAL = 80.0  # of a notebook that is not in the manifest
FIXED = 16.0  # of each notebook at most, whatever the part: a run of cpu/2 beside one of cpu


class RunError(ValueError):
    """A run that cannot begin; the message says what is wrong and what to do."""


# Of a line `name: kind = default` of a parameters cell; kind is the annotation as written.
Parameter = namedtuple("Parameter", "kind default")
TRUTHS = {"true": True, "false": False}
READ = {"int": int, "float": float, "str": str, "bool": lambda text: TRUTHS[text.lower()]}


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
        whole = {x: took.get(x, TYPICAL) for x in names}
        seconds = {x: (min(FIXED, s) + max(0, s - FIXED) / n) / speed for x, s in whole.items()}
        return Pace(get_profile(kind).scaled(n).name, work, speed, seconds)

    if profile != "cpu" or full:
        return part(int(profile.partition("/")[2] or 1), names)
    everything = [*took] or names
    fits = (n for n in PARTS if part(n, everything).total <= LIMIT)
    return part(next(fits, PARTS[-1]), names)


# ------------------------------------------------------------------ parameters


def read_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters of the notebook at `path`, by name, in order.

    Raises RunError unless exactly one cell is tagged `parameters` and each of its lines gives a
    name, a type and a literal.
    """
    cells = [cell for cell in read(path).cells if tagged(cell, "parameters")]
    if len(cells) != 1 or cells[0].cell_type != "code":
        why = f"has {len(cells)} cells tagged 'parameters': it needs one code cell"
        raise RunError(f"{path.name} {why}")
    found = {}
    try:
        for line in ast.parse(cells[0].source).body:
            default = ast.literal_eval(line.value)
            found[line.target.id] = Parameter(ast.unparse(line.annotation), default)
    except (SyntaxError, AttributeError, ValueError) as error:
        why = f"each line must be `name: type = literal` ({error})"
        raise RunError(f"{path.name}, cell {cells[0].id!r}: {why}") from error
    return found


def convert(name: str, parameter: Parameter, text: str):
    """The text of a command line as a value of the parameter's type. Raises RunError."""
    kind, default = parameter
    if kind.endswith(" | None") and text.lower() == "none":
        return None
    try:
        return READ[kind.removesuffix(" | None")](text)
    except (KeyError, ValueError):
        why = f"a value of type {kind} is needed, as in -p {name}={default}"
        raise RunError(f"-p {name}={text}: {why}") from None


def assign(sources: list[Path], settings: Sequence[str], profile: str) -> dict[str, dict]:
    """The values for each notebook, by its name: the profile, and the settings that it knows.

    Raises RunError for a setting that none of them knows.
    """
    known = {path.stem: read_parameters(path) for path in sources}
    names = sorted({name for parameters in known.values() for name in parameters} - {"profile"})
    wanted = {}
    for setting in settings:
        name, equals, wanted[name] = setting.partition("=")
        if setting != setting.encode(errors="replace").decode():  # bytes of a shell
            raise RunError(f"-p {setting!r}: not UTF-8 text")
        if not equals or name not in names:
            near = ", ".join(get_close_matches(name, names) or names) or "none"
            why = f"write name=value, with a parameter of a chosen notebook: {near}"
            raise RunError(f"-p {setting}: {why}")
    values = {name: {"profile": profile} for name in known}
    for name, parameters in known.items():
        own = {key: text for key, text in wanted.items() if key in parameters}
        values[name] |= {key: convert(key, parameters[key], text) for key, text in own.items()}
    return values
