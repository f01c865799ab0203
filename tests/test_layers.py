"""The files are the lesson and import no folder; a folder imports files, and folders before it."""

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import nanogpt

PACKAGE = Path(nanogpt.__file__).parent
LESSON = [
    "config",
    "console",
    "files",
    "device",
    "data",
    "attention",
    "cache",
    "model",
    "replica",
    "sampling",
    "generation",
    "fitting",
    "comparison",
    "timing",
    "minimal",
]
FOLDERS = "kv_referee decoder pretrained training caches engines serving".split()
FOLDERS += "verify bench course site series cli".split()


PATHS = [
    path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE
]
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
        # A public name of the package, as in `from .. import Decoder`, is that of its own module.
        inside = nanogpt._MODULE.get(inside, inside)
        part = inside if inside in MODULES else inside.rpartition(".")[0]
        found |= {part, f"{part}.__init__"} if inside != full else set()
    return found & set(MODULES) - {name}


def room_of(name: str) -> str:
    return name.partition(".")[0]


def outside(name: str) -> set[str]:
    return {full.split(".")[0] for full in imports(name)}


def test_the_package_is_the_lesson_and_its_folders():
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__", *LESSON}
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()} == {
        *FOLDERS
    }


def test_a_file_imports_only_files_before_it_and_a_folder_only_folders_before_it():
    assert {"cache", "config", "attention"} <= neighbours("model")
    assert {"cache", "config", "model"} <= neighbours("course.frame")  # by their public names
    order = [*LESSON, *FOLDERS, "__main__"]
    place = {name: order.index(room_of(name)) for name in MODULES}
    pairs = [(name, other) for name in MODULES for other in neighbours(name)]
    assert not [f"{name} imports {other}" for name, other in pairs if place[other] > place[name]]


def test_no_modules_import_each_other():
    TopologicalSorter({name: neighbours(name) for name in MODULES}).prepare()


def test_running_and_rendering_notebooks_imports_no_torch():
    names = [f"series.{name}" for name in "execute mirror plan publish runner".split()]
    names += [f"site.{name}" for name in "address build html nbfile".split()]
    assert not [name for name in names if "torch" in outside(name)]


@pytest.mark.parametrize("first", ["nanogpt", "nanogpt.site.plots"])
def test_the_public_door_and_figures_load_no_torch(first):
    code = f"import sys, {first}; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=PACKAGE.parent)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(("package", "room"), [("IPython", "series"), ("argparse", "cli")])
def test_one_room_alone_knows(package, room):
    rooms = {room_of(name) for name in MODULES if package in outside(name)}
    assert rooms - {"minimal"} == {room}


def test_the_whole_lesson_in_one_file_needs_torch_alone():
    assert outside("minimal") - set(sys.stdlib_module_names) == {"torch"}


def test_the_referee_s_room_imports_nothing_of_the_package():
    rooms = {
        other
        for name in MODULES
        if room_of(name) == "kv_referee"
        for other in neighbours(name)
        if room_of(other) != "kv_referee"
    }
    assert not rooms


def test_config_knows_neither_tensors_nor_files():
    for name in MODULES:
        if name == "config":
            assert not outside(name) & {"torch", "os", "pathlib", "numpy"}, name


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_says_what_it_is(name):
    assert ast.get_docstring(ast.parse(MODULES[name].read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "room", ["bench", "caches", "decoder", "engines", "series", "site", "training", "verify"]
)
def test_the_map_of_a_room_names_its_modules(room):
    text = MODULES[f"{room}.__init__"].read_text(encoding="utf-8")
    words = re.findall(r"\w+", ast.get_docstring(ast.parse(text)))
    modules = {name.split(".")[1] for name in MODULES if room_of(name) == room} - {"__init__"}
    assert not modules - {*words}


def test_the_public_door_opens_on_every_name():
    for name in nanogpt.__all__:
        thing = getattr(nanogpt, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert getattr(importlib.import_module(thing.__module__), thing.__name__) is thing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nanogpt.nothing  # noqa: B018
