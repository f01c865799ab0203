"""The student edition: the same blanks, checks and hints, and no solution in any form."""

import ast
import json
import re

import pytest
from notebook_fixtures import NOTEBOOKS, book

from nanogpt.cli import main
from nanogpt.files import ROOT
from nanogpt.series import student
from nanogpt.site import nbfile
from nanogpt.site.nbfile import SyncError, ours, tagged

HINT = re.compile(r"<details><summary>Hint</summary>.*?</details>", re.S)
SHORT = 30  # characters of a statement that may stand elsewhere by chance


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edition") / "student"
    student.write_edition(folder)
    return {path.name: nbfile.read(path) for path in sorted(folder.glob("*.ipynb"))}


def statements(source: str) -> set[str]:
    """The longer simple statements of a piece of code, in one form; {} of what is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    found = set()
    for node in ast.walk(tree):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and not docstring:
            found.add(ast.unparse(node))
    return {text for text in found if len(text) > SHORT}


def code_in(cell) -> list[str]:
    """The code of a cell; of text, its blocks."""
    if cell.cell_type == "code":
        return [cell.source]
    return re.findall(r"```(?:python)?\n(.*?)```", cell.source, re.S)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_solution_is_left_in_any_form(path, edition):
    """No long statement that a solution alone had is in the edition; given code stays."""
    before = book(path)
    after = edition[path.name]
    text = "\n".join(cell.source for cell in after.cells)
    assert "<summary>Solution" not in text
    elsewhere = set()  # what the notebook shows outside its solutions
    for cell in before.cells:
        if cell.cell_type == "code":
            elsewhere |= statements(cell.source)
    left = set().union(*(statements(code) for cell in after.cells for code in code_in(cell)))
    blanks = [i for i, cell in enumerate(before.cells) if tagged(cell, "blank")]
    for i in blanks:
        solution = nbfile.solution(nbfile.exercise(before.cells[i]))
        assert solution not in text
        body = solution.split('"""')[-1].strip()  # all after the docstring
        assert body not in text, before.cells[i].id
        assert not (statements(solution) - elsewhere) & left


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_all_else_is_as_it_was(path, edition):
    before = book(path)
    after = {cell.id: cell for cell in edition[path.name].cells}
    for cell in before.cells:
        if cell.cell_type == "code":
            assert after[cell.id].source == cell.source
            assert after[cell.id].metadata.get("tags") == cell.metadata.get("tags")
        elif ours(cell).get("generated") != "links":
            hints = HINT.findall(cell.source)
            assert HINT.findall(after[cell.id].source) == hints


def test_without_hints_the_blanks_and_their_checks_stay(tmp_path):
    student.write_edition(tmp_path / "out", hints=False)
    for path in NOTEBOOKS:
        nb = nbfile.read(tmp_path / "out" / path.name)
        text = "\n".join(cell.source for cell in nb.cells)
        assert "<summary>" not in text
        assert all(cell.source for cell in nb.cells)
        code = [cell.source for cell in book(path).cells if cell.cell_type == "code"]
        assert [cell.source for cell in nb.cells if cell.cell_type == "code"] == code


def test_links_lead_where_they_led_from_a_folder_of_the_repository():
    out = ROOT / "outputs" / "published" / "html"  # any that is there and as deep
    nb = book(NOTEBOOKS[0])
    titles = {path.name: nbfile.title(book(path)) for path in NOTEBOOKS}
    made = student.without_solutions(nb, NOTEBOOKS[0].name, titles, out, hints=True)
    text = "\n".join(cell.source for cell in made.cells)
    targets = re.findall(r"\]\((\.\.[^)#]*)", text)
    assert targets
    for target in targets:
        assert (out / target).is_file(), target


def test_no_badge_leads_to_the_solutions(tmp_path):
    nb = nbfile.read(NOTEBOOKS[1])
    for cell in nb.cells:
        if ours(cell).get("generated") == "links":
            cell.source = "[badge](https://colab.research.google.com/github/a/b) · ← there"
    titles = {path.name: nbfile.title(book(path)) for path in NOTEBOOKS}
    made = student.without_solutions(nb, NOTEBOOKS[1].name, titles, tmp_path, hints=True)
    assert "colab.research" not in "\n".join(cell.source for cell in made.cells)


def test_a_solution_that_cannot_be_taken_out_stops_all(tmp_path):
    nb = nbfile.read(NOTEBOOKS[1])
    for cell in nb.cells:
        if ours(cell).get("generated") == "solution":
            del cell.metadata["nanogpt"]
    with pytest.raises(SyncError, match="0 solutions removed"):
        student.without_solutions(
            nb, NOTEBOOKS[1].name, {NOTEBOOKS[1].name: ""}, tmp_path, hints=True
        )


def test_a_headless_run_says_in_a_line_that_it_cannot(tmp_path, capsys):
    out = tmp_path / "student"
    assert main(["student", "--out", str(out)]) == 0
    assert "cannot run this edition" in capsys.readouterr().out
    words = ["run", "--source", str(out), "--out", str(tmp_path / "run"), "--profile", "smoke"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "student edition" in line
    assert not (tmp_path / "run").exists()


def test_the_student_edition_overwrites_no_file_of_the_user(tmp_path, capsys):
    """Not a stranger's, not an edited notebook, not the originals; its own files are replaced."""
    out = tmp_path / "student"
    command = ["student", "--out", str(out)]
    out.mkdir()
    (out / "mine.txt").write_text("mine", encoding="utf-8")
    assert main(command) == 2
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    assert main([*command, "--overwrite"]) == 0
    assert main(command) == 0
    book = out / "01_train_the_model.ipynb"
    text = book.read_text(encoding="utf-8")
    book.write_text(text.replace("Train the model", "My work"), encoding="utf-8")
    capsys.readouterr()
    assert main(command) == 2
    assert "01_train_the_model.ipynb was edited" in capsys.readouterr().err
    assert "My work" in book.read_text(encoding="utf-8")
    assert main([*command, "--overwrite"]) == 0
    assert book.read_text(encoding="utf-8") == text
    assert (out / "mine.txt").read_text(encoding="utf-8") == "mine"
    for inside in ("notebooks", "notebooks/deeper"):
        assert main(["student", "--out", str(ROOT / inside), "--overwrite"]) == 2
    card = json.loads((out / student.MARK).read_text(encoding="utf-8"))
    assert sorted(card["sha256"]) == [path.name for path in NOTEBOOKS]


def test_a_full_disk_leaves_the_edition_as_it_was(tmp_path, monkeypatch):
    out = tmp_path / "student"
    student.write_edition(out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    real = student.atomic_path

    def full(path):
        if path.name.startswith("07"):
            raise OSError(28, "No space left on device")
        return real(path)

    monkeypatch.setattr(student, "atomic_path", full)
    with pytest.raises(OSError, match="No space"):
        student.write_edition(out, hints=False)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
