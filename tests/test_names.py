"""A public class, type or constant of the package is defined in one module: one name, one meaning.

A name that only its own file uses begins with an underscore.
"""

import ast
from collections import defaultdict
from pathlib import Path

import nanogpt

PACKAGE = Path(nanogpt.__file__).parent

# Read, or run, on their own: each has the lesson's names a second time, and means the same.
ALONE = ("minimal.py", "course/frame.py", "course/traps.py")
# A page has its solution and its drivers, and nothing on it is meant for another room.
APART = ("course/blanks/",)
KNOWN = {
    "Block": "the lecture's, and the general decoder's, which has the same place in the model",
    "FeedForward": "as Block",
    "CALLS": "what a module of cli offers, by the words of the command line",
}


def defined(text: str) -> set[str]:
    """The classes and the assigned names at the top level of a module, without private ones."""
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def shared(texts: dict[str, str]) -> dict[str, list[str]]:
    """The names that several of these modules define, with the modules."""
    modules = defaultdict(list)
    for path, text in texts.items():
        for name in defined(text):
            modules[name].append(path)
    return {name: paths for name, paths in modules.items() if len(paths) > 1}


def test_a_public_name_is_defined_in_one_module():
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    texts = {
        name: path.read_text(encoding="utf-8")
        for name, path in paths.items()
        if name not in ALONE and not name.startswith(APART)
    }
    twice = {name: modules for name, modules in shared(texts).items() if name not in KNOWN}
    assert not twice, "rename one, or begin it with an underscore if only its file uses it"


def test_a_name_of_two_modules_is_found():
    texts = {
        "a.py": "class Case: pass\nLIMIT: int = 3\n_OWN = 1\ndef run(): pass",
        "b.py": "Case = dict[str, int]\nLIMIT = 4\n_OWN = 2\ndef run(): pass",
        "c.py": "def inner():\n    LIMIT = 5",
    }
    assert shared(texts) == {"Case": ["a.py", "b.py"], "LIMIT": ["a.py", "b.py"]}
