"""Every blank of the series: solved, left empty, and filled with two plausible wrong answers.

The wrong answers are in wrong_answers/NN.py, by the id of the blank: WRONG = {id: [(source, what
the judge must say of it), …]}.
"""

import ast
import contextlib
import functools
import io
import runpy
from pathlib import Path

import nbformat
import pytest
from notebook_fixtures import NOTEBOOKS, code, prose

from nanogpt.publishing.nbfile import FIRST_LINE, SyncError, filled, is_blank, solution

HERE = Path(__file__).parent
DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
BLANKS = [
    (path, cell.id) for path in NOTEBOOKS for cell in nbformat.read(path, 4).cells if is_blank(cell)
]
each_blank = pytest.mark.parametrize(
    ("path", "blank"), BLANKS, ids=[f"{path.stem[:2]}-{blank}" for path, blank in BLANKS]
)


@functools.cache
def wrong_answers(path) -> dict:
    file = HERE / "wrong_answers" / f"{path.stem[:2]}.py"
    return runpy.run_path(str(file))["WRONG"] if file.is_file() else {}


@functools.cache
def cells_of(path):
    return nbformat.read(path, 4)


@functools.cache
def definitions(source: str) -> ast.Module:
    """What a cell imports and defines, without what it computes."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if isinstance(node, DEFINES)]
    return tree


@functools.cache
def answers(path, blank):
    """Runs the check of a blank on an answer: a function from its source to what is printed.

    What the cells above define is executed once; each answer finds it untouched.
    """
    nb = cells_of(path)
    index = next(i for i, cell in enumerate(nb.cells) if cell.id == blank)
    cells = [cell for cell in nb.cells[4 : index + 1] if cell.cell_type == "code"]
    check = next(cell for cell in nb.cells[index + 1 :] if cell.cell_type == "code")
    scope = {"__name__": "__main__"}
    for cell in cells[:-1]:
        if not is_blank(cell):
            exec(compile(definitions(cell.source), cell.id, "exec"), scope)
    before = dict(scope)

    def said(source):
        for name in scope.keys() - before:
            if not name.startswith("__"):  # those are torch.compile's
                del scope[name]
        scope.update(before)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "answer", "exec"), scope)
            exec(check.source, scope)
        return printed.getvalue()

    return said, cells[-1].source, solution(nb, index)


def test_no_blank_has_a_decorator():
    """The judge looks for an empty body, and a decorator would hide it."""
    blanks = [cell for path in NOTEBOOKS for cell in nbformat.read(path, 4).cells if is_blank(cell)]
    nodes = [(cell.id, node) for cell in blanks for node in ast.walk(ast.parse(cell.source))]
    assert not [id for id, node in nodes if getattr(node, "decorator_list", None)]


@each_blank
def test_the_solution_is_right(path, blank):
    said, _, right = answers(path, blank)
    printed = said(right)
    assert "Right" in printed
    assert "Not yet" not in printed


@each_blank
def test_an_empty_blank_is_called_empty(path, blank):
    said, source, _ = answers(path, blank)
    assert "still empty" in said(source)


@each_blank
def test_two_wrong_answers_are_refused_each_with_its_reason(path, blank):
    said, wrong = answers(path, blank)[0], wrong_answers(path).get(blank, [])
    assert len(wrong) >= 2, f"wrong_answers/{path.stem[:2]}.py has too few for {blank}"
    reasons = [said(source) for source, _ in wrong]
    for printed, (_, reason) in zip(reasons, wrong, strict=True):
        assert "Not yet" in printed
        assert reason in printed
    assert len(set(reasons)) == len(reasons)


# ------------------------------------------------------------------ filled in


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


BLANK = code('def f(x):\n    """Twice x."""', "f", tags=["blank"])
HINT = "<details><summary>Hint</summary>\n\nAdd.\n\n</details>\n"
SOLVED = f"{HINT}<details><summary>Solution</summary>\n\n```python\nreturn 2 * x\n```\n\n</details>"


def test_a_run_without_a_reader_is_given_the_solution_folded():
    nb = notebook(BLANK, code("f(1)", "check"), prose(SOLVED, "solved"))
    blank, check, _ = filled(nb).cells
    assert blank.source == f"{FIRST_LINE}\nreturn 2 * x"
    assert blank.metadata["jupyter"] == {"source_hidden": True}
    assert check.source == "f(1)"
    assert nb.cells[0].source == BLANK.source, "the notebook itself is left alone"


@pytest.mark.parametrize(
    "below", [[], [prose(HINT, "hint")], [code("", "g", tags=["blank"]), prose(SOLVED, "solved")]]
)
def test_a_blank_without_a_solution_of_its_own_is_an_error(below):
    with pytest.raises(SyncError, match="the blank 'f' has no solution: put <details>"):
        filled(notebook(BLANK, *below))
