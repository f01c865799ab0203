"""The plan of a run: its notebooks, their parameters, and how long it will take.

One number is measured: the time this machine takes for a fixed piece of work. It scales the seconds
that each notebook took on the reference machine. It only predicts a run's time, and never changes
the work.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ..bench.pace import seconds_of_work
from ..bench.tables import clock_text, table
from ..config import SIZES
from ..data import SIZE
from ..files import PUBLISHED
from ..site.nbfile import read, read_manifest, tagged
from .profiles import get_profile

# `make run` runs the spine, and the branches that also fit into ten minutes.
DEFAULT = ("00", "01", "02", "03", "04", "05", "06", "07", "12")
WORK_SECONDS = 0.062  # `seconds_of_work` on the machine where LAPTOP was measured
LAPTOP = {  # seconds of each notebook on that machine, by number
    "00": 43.0,
    "01": 80.0,
    "02": 11.0,
    "03": 26.0,
    "04": 30.0,
    "05": 50.0,
    "06": 97.0,
    "07": 63.0,
    "08": 96.0,
    "09": 45.0,
    "10": 31.0,
    "11": 95.0,
    "12": 32.0,
    "13": 160.0,
}
# Losses over the whole validation text take longer for a longer text; all other counts are fixed.
_PASSES = {"01": 1, "06": 2, "07": 2, "11": 5}  # number of such losses, by notebook number
DISTINCT = 65  # characters of Tiny Shakespeare
PASS = 2.0  # seconds of such a loss there, at size `small`, per million characters of the text


class RunError(ValueError):
    """A run that cannot start; the message says what is wrong and what to do."""


class Parameter(NamedTuple):
    """A line `name: kind = default` of a parameters cell; kind is the annotation as written."""

    kind: str
    default: Any


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_READ: dict[str, Callable[[str], int | float | str | bool]] = {  # parsers by kind
    "int": int,
    "float": float,
    "str": str,
    "bool": _truth,
}


@dataclass(frozen=True)
class Pace:
    """How long each notebook takes on this machine, if known. It never affects a run's counts."""

    profile: str
    work: float | None = None  # `seconds_of_work` on this machine
    speed: float = 1.0  # this machine's speed relative to the reference machine
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds of all notebooks; 0 if unknown."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        """The plan as text: the profile, and the minutes of each notebook and in total."""
        if not self.seconds:
            return f"profile {self.profile}"
        minutes = self.seconds | {"in all, about": self.total}
        rows = [{"notebook": name, "minutes": clock_text(s)} for name, s in minutes.items()]
        speed = f"this machine is {self.speed:.2f} times as fast as the reference machine"
        return f"profile {self.profile}: the same work on every machine\n{speed}\n{table(rows)}"


def estimate(
    profile: str, names: list[str], characters: int = SIZE, vocab_size: int = DISTINCT
) -> Pace:
    """Estimate how long these notebooks take here, from one short measurement of this machine.

    The reference times of `laptop` (in LAPTOP) and of `full` (in the published manifest) are for
    Tiny Shakespeare. The text has `characters` characters, `vocab_size` of them distinct.
    """
    if profile not in ("laptop", "full"):
        return Pace(profile)
    took = {name: LAPTOP[name[:2]] for name in names if name[:2] in LAPTOP}
    reference = WORK_SECONDS
    if profile == "full":
        manifest = read_manifest(PUBLISHED)
        for entry in manifest["notebooks"]:
            took[entry["notebook"]] = entry["seconds"]
        reference = manifest.get("work_seconds", WORK_SECONDS)
    work = round(seconds_of_work(), 4)
    longer = _longer_pass(profile, characters, vocab_size) * reference / WORK_SECONDS
    for name in took:
        took[name] += _PASSES.get(name[:2], 0) * longer
    speed = reference / work
    return Pace(profile, work, speed, {x: took[x] / speed for x in names if x in took})


def _longer_pass(profile: str, characters: int, vocab_size: int) -> float:
    """Extra seconds of a loss on LAPTOP's machine, compared with Tiny Shakespeare."""

    def seconds(n: int, distinct: int) -> float:
        shape = replace(SIZES[get_profile(profile).size], vocab_size=distinct)
        return PASS * shape.n_params / SIZES["small"].n_params * n / 1e6

    return max(0.0, seconds(characters, vocab_size) - seconds(SIZE, DISTINCT))


# ------------------------------------------------------------------ parameters


def read_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters of the notebook at `path`, by name, in order.

    Raises RunError unless exactly one cell is tagged `parameters` and each of its lines has a name,
    a type and a literal.
    """
    cells = [cell for cell in read(path).cells if tagged(cell, "parameters")]
    if len(cells) != 1 or cells[0].cell_type != "code":
        raise RunError(
            f"{path.name} has {len(cells)} cells tagged 'parameters': it needs one code cell"
        )
    parameters = {}
    try:
        for line in ast.parse(cells[0].source).body:
            default = ast.literal_eval(line.value)
            parameters[line.target.id] = Parameter(ast.unparse(line.annotation), default)
    except (SyntaxError, AttributeError, ValueError) as error:
        raise RunError(
            f"{path.name}, cell {cells[0].id!r}: each line must be `name: type = literal` ({error})"
        ) from error
    return parameters


def convert(name: str, parameter: Parameter, text: str) -> int | float | str | bool | None:
    """Convert a command-line text to the parameter's type. Raises RunError."""
    kind, default = parameter
    if kind.endswith(" | None") and text.lower() == "none":
        return None
    try:
        return _READ[kind.removesuffix(" | None")](text)
    except (KeyError, ValueError):
        raise RunError(
            f"-p {name}={text}: must be of type {kind}, for example -p {name}={default}"
        ) from None


def assign(sources: list[Path], settings: Sequence[str], profile: str) -> dict[str, dict[str, Any]]:
    """Assign values to each notebook, by name: the profile, and the settings that apply to it.

    Raises RunError for a setting that applies to none of them.
    """
    known = {path.stem: read_parameters(path) for path in sources}
    names = sorted(set().union(*known.values()) - {"profile"})
    wanted = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        wanted[name] = text
        if setting != setting.encode(errors="replace").decode():  # raw bytes from the shell
            raise RunError(f"-p {setting!r}: not UTF-8 text")
        if not equals or name not in names:
            near = ", ".join(get_close_matches(name, names) or names) or "none"
            raise RunError(
                f"-p {setting}: write name=value, with a parameter of a chosen notebook: {near}"
            )
    values: dict[str, dict[str, Any]] = {}
    for name, parameters in known.items():
        values[name] = {"profile": profile}
        for key, text in wanted.items():
            if key in parameters:
                values[name][key] = convert(key, parameters[key], text)
    return values
