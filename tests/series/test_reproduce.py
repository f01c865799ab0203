"""Two runs side by side: what is the same counts, what is not is named."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from nanogpt.series.publish import compare_runs, print_comparison


def cell(*outputs, source="f()", cell_id="a", tags=()):
    made = new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})
    made.id = cell_id
    return made


def text(words, name="stdout"):
    return new_output("stream", name=name, text=words)


def picture(data):
    return new_output("display_data", data={"image/png": data, "text/plain": "<Image>"})


@pytest.fixture
def folders(tmp_path):
    """Writes the cells of one notebook into two folders, with weights and a manifest."""

    def make(old, new, weights=b"w", torch="2.9"):
        for name, cells, data, version in (("old", old, b"w", "2.9"), ("new", new, weights, torch)):
            folder = tmp_path / name
            (folder / "checkpoints").mkdir(parents=True)
            (folder / "checkpoints" / "medium.safetensors").write_bytes(data)
            card = {"environment": {"torch": version, "threads": 1}}
            (folder / "manifest.json").write_text(json.dumps(card), encoding="utf-8")
            if cells is not None:
                nbformat.write(new_notebook(cells=cells), folder / "00_one.ipynb")
        return tmp_path / "old", tmp_path / "new"

    return make


def test_runs_that_differ_in_timings_alone_are_reproduced(folders, capsys):
    def made(seconds):
        timing = cell(text(f"in {seconds} s\n"), cell_id="b", tags=["timing"])
        return [cell(text("1.5\n"), picture("AAAA")), timing]

    old, new = folders(made(3), made(4))
    assert compare_runs(old, new) == (1, [])
    assert print_comparison(old, new)
    assert "1 cells and the weights are" in capsys.readouterr().out
    for folder in (old, new):
        (folder / "checkpoints" / "medium.safetensors").unlink()
    assert not print_comparison(old, new), "no weights were compared"


CHANGES = {
    "another number": (cell(text("loss 1.7500\n")), "'stdout: loss 1.7502' was 'stdout: loss 1.75"),
    "nothing": (cell(), "'stdout: loss 1.7502' was '' here"),
    "another stream": (cell(text("loss 1.7502\n", "stderr")), "was 'stderr: loss"),
    "another picture": (cell(picture("BBBB")), "was 'image/png: "),
    "another source": (cell(text("loss 1.7502\n"), source="g()"), "its source has changed"),
    "another timing": (cell(source="g()", tags=["timing"]), "its source has changed"),
    "another cell": (cell(text("loss 1.7502\n"), cell_id="z"), "it no longer exists"),
}


@pytest.mark.parametrize(("mine", "words"), CHANGES.values(), ids=CHANGES)
def test_differences_from_the_published_run_are_named(folders, capsys, mine, words):
    assert not print_comparison(*folders([cell(text("loss 1.7502\n"))], [mine]))
    said = capsys.readouterr().out
    assert said.startswith("00_one, cell 'a': ")
    assert words in said


def test_all_that_differs_is_shown_first_the_first_of_each_cell_then_a_likely_reason(
    folders, capsys
):
    old, new = (cell(text(f"the same\n{n}"), picture(n)) for n in ("AAAA", "BBBB"))
    changed = {"weights": b"v", "torch": "2.13"}
    assert not print_comparison(*folders([old], [new, cell(cell_id="b")], **changed))
    first, second, third, *_, last = capsys.readouterr().out.splitlines()
    assert first == "00_one, cell 'a': 'AAAA' was 'BBBB' here"
    assert second == "00_one, cell 'b': a new cell"
    assert third == "checkpoints/medium.safetensors: different bytes, or missing"
    assert "torch 2.9, here 2.13" in last


def test_a_notebook_that_was_not_run_is_named_and_nothing_reproduces_nothing(folders):
    old, new = folders([cell()], None)
    assert compare_runs(old, new)[1] == ["00_one: it was not run"]
    (old / "00_one.ipynb").unlink()
    assert not print_comparison(old, new)
