"""A room imports only from the rooms before it, and no two modules of a room import each other."""

import ast
import functools
import importlib
import inspect
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import nanogpt

PACKAGE = Path(nanogpt.__file__).parent
ROOMS = "config system cache data model decoding engines training serving".split()
ROOMS += "verify benchmarks notebook publishing export server cli".split()
LIMITS = {"module": 420, "function": 40}  # lines; about 400, and a screen of 25, are the aim


PATHS = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE]
# By the dotted name inside the package, as in `cache.base`.
MODULES = {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in PATHS}


@functools.cache
def imports(name: str) -> set[str]:
    """The full names of all that a module imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = ["nanogpt", *name.split(".")][: -node.level] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def neighbours(name: str) -> set[str]:
    """The modules of the package that a module imports."""
    found = set()
    for full in imports(name):
        inside = full.removeprefix("nanogpt.")
        part = inside if inside in MODULES else inside.rpartition(".")[0]
        found |= {part, f"{part}.__init__"} if inside != full else set()
    return found & set(MODULES) - {name}


def room_of(name: str) -> str:
    return name.partition(".")[0]


def outside(name: str) -> set[str]:
    return {full.split(".")[0] for full in imports(name)}


def test_every_module_has_a_room():
    assert {room_of(name) for name in MODULES} == set(ROOMS)
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__"}


def test_rooms_import_only_rooms_before_them():
    assert {"cache.attach", "config.shapes", "model.attention"} <= neighbours("model.gpt")
    pairs = [(name, other) for name in MODULES for other in neighbours(name)]
    place = {name: ROOMS.index(room_of(name)) for name in MODULES}
    assert not [f"{name} imports {other}" for name, other in pairs if place[other] > place[name]]


def test_no_modules_import_each_other():
    TopologicalSorter({name: neighbours(name) for name in MODULES}).prepare()


def test_publishing_and_the_corpus_know_no_torch():
    names = [name for name in MODULES if room_of(name) == "publishing"] + ["data.corpus"]
    assert len(names) > 8
    assert not [name for name in names if "torch" in outside(name)]


@pytest.mark.parametrize("first", ["nanogpt", "nanogpt.notebook.plots"])
def test_the_public_door_and_figures_load_no_torch(first):
    code = f"import sys, {first}; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(("package", "room"), [("IPython", "notebook"), ("argparse", "cli")])
def test_one_room_alone_knows(package, room):
    assert {room_of(name) for name in MODULES if package in outside(name)} == {room}


def test_config_knows_neither_tensors_nor_files():
    for name in MODULES:
        if room_of(name) == "config":
            assert not outside(name) & {"torch", "os", "pathlib", "numpy"}, name


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


def test_the_public_door_opens_on_every_name():
    for name in nanogpt.__all__:
        thing = getattr(nanogpt, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert getattr(importlib.import_module(thing.__module__), thing.__name__) is thing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nanogpt.nothing  # noqa: B018
