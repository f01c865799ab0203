"""Two runs side by side: what is the same counts, what is not is named, with its size."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from nanogpt.publishing.publish import Difference, compare_runs, print_comparison, text_difference


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
            (folder / "checkpoints" / "small.safetensors").write_bytes(data)
            card = {"environment": {"torch": version, "threads": 1}}
            (folder / "manifest.json").write_text(json.dumps(card))
            if cells is not None:
                nbformat.write(new_notebook(cells=cells), folder / "00_one.ipynb")
        return tmp_path / "old", tmp_path / "new"

    return make


def test_runs_that_differ_in_timings_alone_are_reproduced(folders, capsys):
    def made(seconds):
        timing = cell(text(f"in {seconds} s\n"), cell_id="b", tags=["timing"])
        return [cell(text("1.5\n"), picture("AAAA")), timing]

    old, new = folders(made(3), made(4))
    assert compare_runs(old, new) == (1, 1, [])
    assert print_comparison(old, new)
    assert "the outputs of 1 cells (1 more measure time)" in capsys.readouterr().out


CHANGES = {
    "another number": (cell(text("loss 1.7500\n")), "numbers differ, by 1.1e-04 of their size"),
    "other words": (cell(text("more\n")), "another text: 'loss 1.7502' was 'more' here"),
    "nothing": (cell(), "0 outputs instead of 1"),
    "another stream": (cell(text("loss 1.7502\n", "stderr")), "stderr instead of stdout"),
    "another source": (cell(text("loss 1.7502\n"), source="g()"), "its source has changed"),
    "another cell": (cell(text("loss 1.7502\n"), cell_id="z"), "it is not there any more"),
}


@pytest.mark.parametrize(("mine", "words"), CHANGES.values(), ids=CHANGES)
def test_what_differs_is_named(folders, capsys, mine, words):
    assert not print_comparison(*folders([cell(text("loss 1.7502\n"))], [mine]))
    assert f"00_one, cell 'a': {words}" in capsys.readouterr().out


def test_pictures_sources_of_timings_and_new_cells_are_compared(folders):
    old = [cell(picture("AAAA"), cell_id="p"), cell(text("3 s"), tags=["timing"])]
    new = [cell(picture("BBBB"), cell_id="p"), cell(source="g()", tags=["timing"])]
    found = compare_runs(*folders(old, [*new, cell(cell_id="b")]))[2]
    assert [d.what for d in found] == ["another picture", "its source has changed", "a new cell"]


def test_a_notebook_that_was_not_run_is_named_and_nothing_reproduces_nothing(folders):
    old, new = folders([cell()], None)
    assert compare_runs(old, new)[2] == [Difference("00_one", "(all)", "it was not run")]
    (old / "00_one.ipynb").unlink()
    assert not print_comparison(old, new)


def test_other_weights_are_a_difference_and_another_version_its_likely_reason(folders, capsys):
    assert not print_comparison(*folders([cell()], [cell()], weights=b"v", torch="2.13"))
    said = capsys.readouterr().out
    assert "trained weights: not the same bytes" in said
    assert "it was torch 2.9, here 2.13" in said


SIZES = {
    ("1,000 tokens", "1,010 tokens"): "9.9e-03",
    ("−0.5", "0.5"): "2.0e+00",
    ("1e-7 and 3", "2e-7 and 3"): "5.0e-01",
    ("1.50", "1.5"): "0.0e+00",
}


@pytest.mark.parametrize(("pair", "size"), SIZES.items())
def test_numbers_are_compared_by_size(pair, size):
    assert f"by {size} of" in text_difference(*pair)
