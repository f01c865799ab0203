"""Two runs side by side: what is the same counts, what is not is named, with its size."""

import json
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from nanogpt.publishing.reproduce import (
    Difference,
    compare_runs,
    difference,
    print_comparison,
    text_difference,
)


def cell(*outputs, source="f()", cell_id="a", tags=()):
    made = new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})
    made.id = cell_id
    return made


def text(words):
    return new_output("stream", name="stdout", text=words)


def picture(data):
    return new_output("display_data", data={"image/png": data, "text/plain": "<Image>"})


@pytest.fixture
def folders(tmp_path):
    """Writes the cells of one notebook into two folders, with weights and a manifest."""

    def make(old, new, weights=(b"w", b"w"), torch=("2.9", "2.9")):
        paths = []
        for name, cells, data, version in zip(
            ("old", "new"), (old, new), weights, torch, strict=True
        ):
            folder = tmp_path / name
            (folder / "checkpoints").mkdir(parents=True)
            (folder / "checkpoints" / "small.safetensors").write_bytes(data)
            (folder / "manifest.json").write_text(
                json.dumps({"environment": {"torch": version, "threads": 1}})
            )
            if cells is not None:
                nbformat.write(new_notebook(cells=cells), folder / "00_one.ipynb")
            paths.append(folder)
        return paths

    return make


def test_equal_runs_are_reproduced(folders, capsys):
    cells = [
        cell(text("1.5\n"), picture("AAAA")),
        cell(text("in 3 s\n"), cell_id="b", tags=["timing"]),
    ]
    again = [
        cell(text("1.5\n"), picture("AAAA")),
        cell(text("in 4 s\n"), cell_id="b", tags=["timing"]),
    ]
    old, new = folders(cells, again)
    assert compare_runs(old, new) == (1, 1, [])
    assert print_comparison(old, new)
    assert (
        "the outputs of 1 cells (1 more measure time) are those of old, to the byte"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (
            cell(text("loss 1.7500\n")),
            "numbers differ, by 1.1e-04 of their size at most: 'loss 1.7502' was",
        ),
        (cell(text("other words\n")), "another text: 'loss 1.7502' was 'other words' here"),
        (cell(), "0 outputs instead of 1"),
        (cell(picture("AAAA")), "2 outputs instead of 1"),
        (
            cell(new_output("stream", name="stderr", text="loss 1.7502\n")),
            "stderr instead of stdout",
        ),
        (cell(text("loss 1.7502\n"), source="g()"), "its source has changed"),
        (cell(text("loss 1.7502\n"), cell_id="z"), "it is not there any more"),
    ],
)
def test_what_differs_is_named(folders, capsys, mine, words):
    old, new = folders([cell(text("loss 1.7502\n"))], [mine])
    assert not print_comparison(old, new)
    said = capsys.readouterr().out
    assert f"00_one, cell 'a': {words}" in said
    assert re.search("[12] differences? in 1 cells", said)


def test_numbers_written_differently_are_said_to_be():
    assert text_difference("loss 1.50", "loss 1.5").startswith(
        "written differently: 'loss 1.50' was"
    )


def test_a_timing_cell_with_another_source_and_a_new_cell_are_differences(folders):
    old = [cell(text("3 s"), tags=["timing"])]
    new = [cell(text("4 s"), tags=["timing"], source="g()"), cell(cell_id="b")]
    found = compare_runs(*folders(old, new))[2]
    assert [d.what for d in found] == ["its source has changed", "a new cell"]


def test_where_nothing_is_compared_nothing_is_reproduced(folders):
    assert not print_comparison(*folders([], []))


def test_another_picture_is_another_picture():
    assert difference(cell(picture("AAAA")), cell(picture("BBBB"))) == "another picture"


def test_a_notebook_that_was_not_run_is_named(folders):
    old, new = folders([cell()], None)
    assert compare_runs(old, new)[2] == [Difference("00_one", "(all)", "it was not run")]


def test_other_weights_are_a_difference(folders, capsys):
    assert not print_comparison(*folders([cell()], [cell()], weights=(b"w", b"v")))
    assert "trained weights: not the same bytes" in capsys.readouterr().out


def test_another_version_is_named_as_the_likely_reason(folders, capsys):
    assert not print_comparison(
        *folders([cell(text("1"))], [cell(text("2"))], torch=("2.9", "2.13"))
    )
    assert "it was torch 2.9, here 2.13" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("a", "b", "size"),
    [
        ("1,000 tokens", "1,010 tokens", "9.9e-03"),
        ("−0.5", "0.5", "2.0e+00"),
        ("1e-7 and 3", "2e-7 and 3", "5.0e-01"),
    ],
)
def test_numbers_are_compared_by_size(a, b, size):
    assert f"by {size} of" in text_difference(a, b)
