"""The blanks of the notebooks: each names its exercise, and is what its solution begins with."""

import ast

import nbformat
import pytest
from notebook_fixtures import NOTEBOOKS, book, code

from nanogpt.course.blanks import BLANKS as PAGES
from nanogpt.course.finding import is_empty
from nanogpt.course.lesson import FILLED_IN
from nanogpt.course.solutions import lesson_names
from nanogpt.series.execute import normalise
from nanogpt.site.html import minutes
from nanogpt.site.nbfile import (
    FILLED,
    SyncError,
    exercise,
    filled,
    ours,
    solution,
    tagged,
)

BLANKS = {
    exercise(cell): (path, i)
    for path in NOTEBOOKS
    for i, cell in enumerate(book(path).cells)
    if tagged(cell, "blank")
}


def signatures(source: str) -> dict[str, tuple[str, str | None]]:
    """The arguments and docstring of each function in a piece of code that has a docstring."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
            found[node.name] = ast.unparse(node.args), ast.get_docstring(node)
    return found


def test_every_exercise_has_one_blank_in_its_notebook_in_order():
    there = [(name, path.name[:2]) for name, (path, _) in BLANKS.items()]
    assert there == [(name, one.notebook) for name, one in PAGES.items()]


@pytest.mark.parametrize("name", BLANKS)
def test_below_a_blank_stand_its_check_and_its_solution(name):
    path, i = BLANKS[name]
    rest = book(path).cells[i + 1 :]
    check = next(cell for cell in rest if cell.cell_type == "code")
    assert check.source == f"# @title Is it right?\n{name} = check({name})"
    assert tagged(check, "hide-input")
    below = next(cell for cell in rest if ours(cell).get("generated") == "solution")
    assert exercise(below) == name
    assert not any(tagged(cell, "blank") for cell in rest[: rest.index(below)])


@pytest.mark.parametrize("name", BLANKS)
def test_a_blank_is_empty_and_asks_for_what_its_solution_has(name):
    path, i = BLANKS[name]
    source = book(path).cells[i].source
    scope = lesson_names()
    exec(source, scope)
    assert is_empty(PAGES[name], scope[name])
    assert signatures(source) == {
        function: words
        for function, words in signatures(solution(name)).items()
        if function in signatures(source)
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_box_of_a_notebook_adds_the_minutes_of_its_blanks(path):
    read, whole = minutes(book(path))
    assert whole - read == sum(x.minutes for x in PAGES.values() if x.notebook == path.name[:2])


# ------------------------------------------------------------------ filled in


BLANK = code("def margin(logits, noise): ...", "f", tags=["blank"], nanogpt={"exercise": "margin"})


def test_a_run_without_a_reader_is_given_the_solution_and_shows_the_blank():
    nb = nbformat.v4.new_notebook(cells=[BLANK, code("f(1)", "check")])
    blank, check = filled(nb).cells
    assert blank.source == f"{FILLED_IN}\n{solution('margin')}"
    assert check.source == "f(1)"
    (blank, *_) = normalise(filled(nb)).cells
    assert blank.source == FILLED + BLANK.source, "what a reader of the executed notebook sees"
    assert blank.metadata["tags"] == ["blank"]
    assert nb.cells[0].source == BLANK.source, "the notebook itself is left alone"


@pytest.mark.parametrize("notes", [{}, {"exercise": "gone"}, {"exercise": ""}])
def test_a_blank_without_an_exercise_of_its_own_is_an_error(notes):
    cell = code("def f(x): ...", "f", tags=["blank"], nanogpt=notes)
    with pytest.raises(SyncError, match="the cell 'f' names no exercise"):
        filled(nbformat.v4.new_notebook(cells=[cell]))
