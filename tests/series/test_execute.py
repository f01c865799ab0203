"""A notebook in a kernel of its own, and the outputs that every viewer can show."""

import os
import sys
from contextlib import suppress

import nbformat
import pytest
from notebook_fixtures import code, output, png, write

from nanogpt.series.execute import NotebookError, check_outputs, execute, normalise

SHOWN = {
    "a widget": (
        output(**{"application/vnd.jupyter.widget-view+json": {}}),
        "shows application/vnd.jupyter",
    ),
    "HTML": (output(**{"text/html": "<b>x</b>", "text/plain": "x"}), "shows text/html"),
    "SVG": (output(**{"image/svg+xml": "<svg/>"}), "shows image/svg"),
    "a picture without alt text": (output(picture=png()), "without alt text"),
    "too much": (output(text="x" * 1_000_001), "over 1,000,000"),
}


@pytest.mark.parametrize(("shown", "message"), SHOWN.values(), ids=SHOWN)
def test_outputs_that_not_everyone_can_see_fail(tmp_path, shown, message):
    path = write(tmp_path / "00_x.ipynb", code("1", "one", [shown]))
    with pytest.raises(NotebookError, match=message):
        check_outputs(path)


def test_outputs_that_everyone_can_see_pass(tmp_path):
    markdown = output(**{"text/markdown": "*x*", "text/plain": "x"})
    fine = [output("text"), output(picture=png(), alt="red"), markdown]
    check_outputs(write(tmp_path / "00_x.ipynb", code("1", "one", fine)))


def test_a_warning_names_no_folder_of_this_machine():
    cell = nbformat.v4.new_code_cell("warn()", id="warn")
    where = f"{sys.prefix}{os.sep}lib/torch/x.py:1: Warning\n"
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text=where)]
    (done,) = normalise(nbformat.v4.new_notebook(cells=[cell])).cells
    assert done.outputs[0].text == "lib/torch/x.py:1: Warning\n"


ENDINGS = {
    "passes": "pass",
    "fails": "1 / 0",
    "runs out of time": pytest.param("import time; time.sleep(600)", marks=pytest.mark.release),
}


@pytest.mark.parametrize("last", ENDINGS.values(), ids=ENDINGS)
def test_the_kernel_of_a_notebook_ends_with_it(tmp_path, last):
    cells = ("import os; print(os.getpid(), flush=True)", last)
    source = write(tmp_path / "00_x.ipynb", *cells, parameters='profile: str = "auto"')
    target = tmp_path / "done.ipynb"
    with suppress(NotebookError):
        execute(source, target, {}, timeout=2)
    printed = {cell.id: cell for cell in nbformat.read(target, 4).cells}["cell-1"].outputs[0]
    with pytest.raises(ProcessLookupError):
        os.kill(int(printed.text), 0)  # only asks whether it is alive
