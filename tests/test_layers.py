"""A room imports only from the rooms before it, and no two modules of a room import each other."""

import ast
import functools
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import nanogpt

PACKAGE = Path(nanogpt.__file__).parent
ROOMS = "config system cache data model decoding engines training serving".split()
ROOMS += "verify benchmarks notebook publishing export server cli".split()
LIMITS = {"module": 420, "function": 40}  # lines; about 400, and a screen of 25, are the aim


def modules(package: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name inside it, as in `cache.base`."""
    paths = [path for path in package.rglob("*.py") if path.parent != package]
    return {".".join(path.relative_to(package).with_suffix("").parts): path for path in paths}


MODULES = modules(PACKAGE)


@functools.cache
def imports(name: str, path: Path) -> set[str]:
    """The full names of all that a module imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = ["nanogpt", *name.split(".")][: -node.level] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def neighbours(name: str, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports."""
    found = set()
    for full in imports(name, known[name]):
        inside = full.removeprefix("nanogpt.")
        if inside == full:
            continue
        part = inside if inside in known else inside.rpartition(".")[0]
        found |= {n for n in (part, f"{part}.__init__") if n in known}
    return found - {name}


def room_of(name: str) -> str:
    return name.partition(".")[0]


def violations(known: dict[str, Path]) -> list[str]:
    """Imports of a room that does not stand before, in words."""
    return [
        f"{name} imports {other}"
        for name in known
        for other in sorted(neighbours(name, known))
        if ROOMS.index(room_of(other)) > ROOMS.index(room_of(name))
    ]


def cycles(known: dict[str, Path]) -> list[str]:
    """Modules that cannot be put in an order in which each imports only earlier ones."""
    left = {name: neighbours(name, known) for name in known}
    while ready := [name for name, others in left.items() if not others & set(left)]:
        for name in ready:
            del left[name]
    return sorted(left)


def outside(name: str) -> set[str]:
    return {full.split(".")[0] for full in imports(name, MODULES[name])}


def test_every_module_has_a_room():
    assert {room_of(name) for name in MODULES} == set(ROOMS)
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__"}


def test_rooms_import_only_rooms_before_them():
    assert not violations(MODULES)


def test_no_modules_import_each_other():
    assert not cycles(MODULES)


def test_a_violation_and_a_cycle_are_seen(tmp_path):
    for room, text in {
        "cache": "from ..model.gpt import GPT",
        "model": "from ..cache import base",
    }.items():
        (tmp_path / room).mkdir()
        (tmp_path / room / {"cache": "base.py", "model": "gpt.py"}[room]).write_text(text)
    known = modules(tmp_path)
    assert violations(known) == ["cache.base imports model.gpt"]
    assert cycles(known) == ["cache.base", "model.gpt"]


def test_imports_are_found_where_they_are_known_to_be():
    assert {"cache.attach", "config.shapes", "model.attention"} <= neighbours("model.gpt", MODULES)
    assert "torch" in outside("model.gpt")


def test_publishing_and_the_corpus_know_no_torch():
    names = [name for name in MODULES if room_of(name) == "publishing"] + ["data.corpus"]
    assert len(names) > 8
    assert not [name for name in names if "torch" in outside(name)]


def test_figures_know_no_torch_and_only_the_notebook_room_knows_ipython():
    code = "import sys, nanogpt.notebook.plots; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert done.stdout.strip() == "False", done.stderr
    assert {room_of(name) for name in MODULES if "IPython" in outside(name)} <= {"notebook"}


def test_config_knows_neither_tensors_nor_files():
    for name in MODULES:
        if room_of(name) == "config":
            assert not outside(name) & {"torch", "os", "pathlib", "numpy"}, name


def test_only_the_command_line_parses_arguments():
    assert {room_of(name) for name in MODULES if "argparse" in outside(name)} == {"cli"}


def excesses(name: str) -> list[str]:
    """What keeps a module from saying what it is and fitting a sitting, in words."""
    text = MODULES[name].read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = [] if ast.get_docstring(tree) else [f"{name} has no docstring"]
    if (lines := len(text.splitlines())) > LIMITS["module"]:
        found.append(f"{name} has {lines} lines")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            docstring = len((ast.get_docstring(node) or "").splitlines())
            length = node.end_lineno - node.lineno + 1 - docstring
            if length > LIMITS["function"]:
                found.append(f"{name}.{node.name} has {length} lines")
    return found


def test_every_module_says_what_it_is_and_fits_a_sitting():
    assert [fault for name in sorted(MODULES) for fault in excesses(name)] == []


def test_the_public_door_opens_on_every_name_and_loads_nothing_before():
    code = "import sys, nanogpt; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert done.stdout.strip() == "False", done.stderr
    for name in nanogpt.__all__:
        thing = getattr(nanogpt, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert getattr(importlib.import_module(thing.__module__), thing.__name__) is thing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nanogpt.nothing  # noqa: B018
