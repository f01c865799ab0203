"""The parameters of the notebooks: read them, and give them values from the command line.

A notebook has one code cell tagged `parameters`, whose lines are `name: type = literal`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ..site.nbfile import read, tagged


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
