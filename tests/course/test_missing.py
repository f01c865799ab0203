"""After a restart: a missing name says which cell makes it."""

import pytest
from nbclient import NotebookClient
from nbformat import v4
from notebook_fixtures import code, prose, write

from nanogpt.course import missing
from nanogpt.course.missing import Cell
from nanogpt.files import ROOT
from nanogpt.series import mirror

REAL_CORPUS = True

CELLS = [
    Cell("# @title Imports\nimport torch\nfrom math import pi as number", "One"),
    Cell("%%time\nx, (y, *z) = 1, (2, 3)\nfor i in range(3):\n    total = i", "One"),
    Cell("def f():\n    inner = 1\n\nclass C:\n    field = 1", "Two"),
    Cell("with open('/dev/null') as file:\n    x = 2\nif (n := 3) > 2:\n    pass", "Two"),
    Cell("e = = 3", "Two"),
    Cell("!ls\nprint(x)", "Two"),
]
MAKERS = {  # a name, and the number of the first cell that defines it
    "torch": 0,
    "number": 0,
    "x": 1,
    "y": 1,
    "z": 1,
    "total": 1,
    "f": 2,
    "C": 2,
    "file": 3,
    "n": 3,
    "inner": None,
    "field": None,
    "pi": None,
    "e": None,
    "typo": None,
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_cell_that_defines_a_name(name):
    number = MAKERS[name]
    words = "" if number is None else f"{name} is defined in {CELLS[number]}: run that cell first."
    assert missing.explanation(name, CELLS).startswith(words)
    assert bool(words) == bool(missing.explanation(name, CELLS))


def test_a_cell_is_called_by_its_title_or_its_first_line():
    assert str(CELLS[0]) == "the folded cell “Imports”, in the section “One”"
    long = Cell(f"# why\n{'x' * 80} = 1", "Three")
    assert str(long) == f"the cell that begins `{'x' * 60}…`, in the section “Three”"


# ------------------------------------------------------------------ in a kernel

SETUP = mirror.setup_cell("", "main")


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page of a reader's, as JupyterLab names it to its kernel, with one exercise."""
    path = write(
        tmp_path / "page.ipynb",
        code(SETUP, "setup"),
        prose("## Shapes", "shapes"),
        code("width = 4\nprint('seen again')", "width"),
        prose("## Areas", "areas"),
        code("area = width**2", "area"),
        code("print('area', area)", "print"),
    )
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.delenv("NANOGPT_HEADLESS", raising=False)
    return path


def printed(*sources: str) -> list[str]:
    """What each of these cells prints in a new kernel, errors included."""
    nb = v4.new_notebook(cells=[v4.new_code_cell(source) for source in (SETUP, *sources)])
    where = {"metadata": {"path": str(ROOT / "notebooks")}}
    options = {"allow_errors": True, "shutdown_kernel": "immediate"}
    NotebookClient(nb, resources=where, **options).execute()
    texts = []
    for cell in nb.cells[1:]:
        parts = [o.get("text", "") + "\n".join(o.get("traceback", [])) for o in cell.outputs]
        texts.append("".join(parts))
    return texts


@pytest.mark.release
def test_a_cell_that_is_run_too_early_says_which_one_to_run(page):
    early, typo, inner = printed(
        "print('area', area)", "print(widht)", "def g():\n    return width\n\n\ng()"
    )
    assert "NameError" in early
    where = "the cell that begins `area = width**2`, in the section “Areas”"
    assert f"area is defined in {where}" in early
    assert "run all cells above this one" in early
    assert "is defined in" not in typo
    assert "width is defined in the cell that begins `width = 4`, in the section “Shapes”" in inner
