"""Imports go down only: a module may import from the modules of the levels below its own."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "nanogpt"
SERIES = """
    config < runtime < practice < data < cache < paged < attention < exact model < dictcache convert
    < checkpoint < generate < build flat speculate < drafts engine < compiled graph < native
    < flops parallel < trainer < resume < train < launch verify bench < limits
    < ladder sweep race past_floor < plots < notebook < sync < parameters < folder execute
    < site publish reproduce < run
"""
LEVEL = {name: level for level, names in enumerate(SERIES.split("<")) for name in names.split()}
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def imports(name: str) -> set[str]:
    """The full names of all that a module imports, wherever in it the import stands."""
    found = set()
    tree = ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
    # What runs only as a program stands on top of everything: python -m nanogpt.bench calls the ladder.
    programs = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
    ]
    tree.body = [node for node in tree.body if node not in programs]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "nanogpt." * (node.level > 0) + (node.module or "")
            found |= {f"{module}.{alias.name}".replace("..", ".") for alias in node.names}
    return found


def neighbours(name: str) -> set[str]:
    """The modules of this package among them."""
    inside = {full.split(".")[1] for full in imports(name) if full.startswith("nanogpt.")}
    return {other for other in inside if (PACKAGE / f"{other}.py").is_file()}


def packages(name: str) -> set[str]:
    return {full.split(".")[0] for full in imports(name)}


def test_this_file_can_see_an_import():
    assert {"config", "cache", "attention"} <= neighbours("model")
    assert {"practice", "runtime"} == neighbours("data")
    assert "torch" in packages("model")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_stands_below_it(name):
    assert name in LEVEL, (
        f"nanogpt/{name}.py is new here: give it a level in SERIES, at the top of this file"
    )
    above = sorted(other for other in neighbours(name) if LEVEL.get(other, 99) >= LEVEL[name])
    assert not above, (
        f"{name} (level {LEVEL[name]}) imports {', '.join(above)}, which is not below it"
    )


def test_the_figures_know_no_torch():
    if "plots" not in MODULES:
        pytest.skip("plots is not there yet")
    assert not packages("plots") & {"torch", "IPython"}
    heavy = {other for other in neighbours("plots") if "torch" in packages(other)}
    assert not heavy, f"plots imports torch by way of {heavy}"


def test_only_notebook_imports_ipython():
    assert {name for name in MODULES if "IPython" in packages(name)} <= {"notebook"}


def test_the_lowest_layer_knows_neither_tensors_nor_files():
    for name in ("config", "practice"):
        assert not packages(name) & {"torch", "os", "pathlib", "numpy"}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_begins_by_saying_what_it_is(name):
    doc = ast.get_docstring(ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8")))
    assert doc, f"nanogpt/{name}.py has no docstring"
