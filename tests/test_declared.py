"""Every package that the code imports is in pyproject.toml, and the lists agree with it."""

import ast
import re
import sys

import pytest

from nanogpt.files import PACKAGE, ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or newer reads TOML")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Where a package goes by another name than its module.
NAMES = {"PIL": "pillow", "IPython": "ipython", "prometheus_client": "prometheus-client"}
NAMES |= {"jupyter_client": "jupyter-client", "huggingface_hub": "huggingface-hub"}
# The extras whose packages a folder may import; the lesson and all other folders have none.
EXTRAS = {
    "pretrained": ["pretrained"],
    "serving": ["notebooks", "ray"],
    "series": ["notebooks", "peers"],
    "site": ["notebooks", "docs"],
    "bench": ["notebooks", "peers"],
    "kv_referee": ["export", "test"],  # its fixture is a plugin of pytest
    "verify": ["export", "test"],  # as well as this one's
    "cli": ["ray"],
}
COMMANDS = {"jupyterlab"}  # started, not imported
PARTS = {"uvloop"}  # what uvicorn takes as its event loop, if it is there


def lines_of(file: str) -> list[str]:
    """The lines of a list of requirements, without comments."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and line[0] != "#"]


def packages(requirements: list[str]) -> set[str]:
    """The names in a list of requirements."""
    return {re.match(r"[\w-]+", line)[0] for line in requirements}


def imported() -> dict[str, set[str]]:
    """The packages by the part that imports them: a folder, or "" for the files at the top."""
    parts: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        folder, *name = path.relative_to(PACKAGE).parts
        part = parts.setdefault(folder if name else "", set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                part.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                part.add(node.module.split(".")[0])
    own = {*sys.stdlib_module_names, "nanogpt"}
    return {part: {NAMES.get(x, x) for x in names - own} for part, names in parts.items()}


def test_a_folder_imports_only_dependencies_of_the_wheel_and_of_its_extras():
    undeclared = {}
    for part, names in imported().items():
        extras = [PROJECT["optional-dependencies"][extra] for extra in EXTRAS.get(part, [])]
        allowed = packages(PROJECT["dependencies"]) | packages(sum(extras, []))
        undeclared[part] = names - allowed
    assert {part: names for part, names in undeclared.items() if names} == {}


def test_every_dependency_of_the_series_is_imported():
    declared = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["notebooks"]
    assert packages(declared) - set.union(*imported().values()) == COMMANDS | PARTS


def test_requirements_are_those_of_the_wheel_and_its_notebooks():
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["notebooks"]
    assert sorted(lines_of("requirements.txt")) == sorted(wanted)


def test_the_exact_set_pins_all_that_is_required():
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["notebooks"]
    assert packages(wanted) <= packages(lines_of("constraints.txt"))


def test_the_lowest_set_is_every_lower_bound():
    """`make test LOWEST=1` installs lowest.txt, so a bound that does not work fails there."""
    extras = PROJECT["optional-dependencies"]
    bounds = {}
    lines = sum((extras[name] for name in ("notebooks", "pretrained", "docs", "test")), [])
    for line in PROJECT["dependencies"] + lines:
        match = re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line)
        if match:
            bounds[match[1]] = match[2]
    assert dict(line.split("==") for line in lines_of("lowest.txt")) == bounds
