"""A notebook's parameters cell as data, and the settings of a command line as its values."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .nbfile import read


class RunError(ValueError):
    """A run that cannot begin; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell, `name: kind = default`; kind is the annotation as written."""

    name: str
    kind: str
    default: object


def read_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters of the notebook at `path`, by name, in order.

    Raises RunError unless exactly one cell is tagged `parameters` and each of its lines gives a
    name, a type and a literal.
    """
    cells = [cell for cell in read(path).cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1 or cells[0].cell_type != "code":
        raise RunError(
            f"{path.name} has {len(cells)} cells tagged 'parameters': it needs one code cell"
        )
    try:
        lines = ast.parse(cells[0].source).body
        found = [
            Parameter(line.target.id, ast.unparse(line.annotation), ast.literal_eval(line.value))
            for line in lines
        ]
    except (SyntaxError, AttributeError, ValueError) as error:
        raise RunError(
            f"{path.name}, cell {cells[0].id!r}: each line must be `name: type = literal` ({error})"
        ) from error
    return {parameter.name: parameter for parameter in found}


def convert(parameter: Parameter, text: str):
    """The text of a command line as a value of the parameter's type. Raises RunError."""
    kind = parameter.kind
    if kind.endswith(" | None"):
        if text.lower() == "none":
            return None
        kind = kind.removesuffix(" | None")
    try:
        if kind == "str":
            return text
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind in ("int", "float"):
            return {"int": int, "float": float}[kind](text)
        return ast.literal_eval(text)
    except (KeyError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise RunError(
            f"-p {parameter.name}={text}: a value of type {parameter.kind} is needed, as in "
            f"-p {parameter.name}={parameter.default}"
        ) from None


def assign(sources: list[Path], settings: Sequence[str], profile: str) -> dict[str, dict]:
    """The values for each notebook, by its name: the profile, and the settings that it knows.

    Raises RunError for a setting that none of them knows, and for a notebook without `profile`.
    """
    known = {path.stem: read_parameters(path) for path in sources}
    names = sorted({name for parameters in known.values() for name in parameters} - {"profile"})
    wanted = {}
    for setting in settings:
        name, equals, wanted[name] = setting.partition("=")
        if not equals or name not in names:
            near = ", ".join(get_close_matches(name, names) or names) or "none"
            raise RunError(
                f"-p {setting}: write name=value, with a parameter of a chosen notebook: {near}"
            )
    if without := [name for name, parameters in known.items() if "profile" not in parameters]:
        raise RunError(
            f'{without[0]} has no parameter `profile: str = "auto"`: add it to its parameters cell'
        )
    return {
        name: {"profile": profile}
        | {key: convert(parameters[key], text) for key, text in wanted.items() if key in parameters}
        for name, parameters in known.items()
    }
