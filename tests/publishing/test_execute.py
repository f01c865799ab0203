"""One executed notebook: why it failed, in one line; what is kept of it; what everyone can see."""

from types import SimpleNamespace

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from notebook_fixtures import code, output, png, write
from papermill.clientwrap import PapermillNotebookClient

from nanogpt.publishing import execute as module
from nanogpt.publishing.execute import (
    Cells,
    NotebookError,
    check_outputs,
    execute,
    normalise,
)

FAILURES = {
    "fails": (CellExecutionError("", "ValueError", "\n too much \nmore"), "ValueError: too much$"),
    "without words": (CellExecutionError("", "KeyError", ""), r"KeyError: \(no message\)$"),
    "takes long": (CellTimeoutError("x"), "ran longer than 7 s: give it more with --timeout$"),
    "a dead kernel": (DeadKernelError("x"), "killed its kernel: often the memory"),
}


@pytest.mark.parametrize(("error", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line_that_names_its_cell(error, message, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(PapermillNotebookClient, "execute_cell", fail)
    cells = Cells(SimpleNamespace(nb=nbformat.v4.new_notebook()), timeout=7)
    cells.before_cell = lambda index, cell: None
    with pytest.raises(NotebookError, match=f"^cell 'one'.*{message}"):
        cells.execute_cell(code("1", "one"), 2)


def test_parameters_are_written_as_python_reads_them(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "run_cells", lambda *_: None)
    values = {"a": 7, "b": float("-inf"), "c": 'a "quote"\n\\ Ω', "d": None, "e": [1, [2]]}
    execute(write(tmp_path / "00_x.ipynb"), tmp_path / "ran.ipynb", values)
    nb = nbformat.read(tmp_path / "ran.ipynb", 4)
    ids, found = [cell.id for cell in nb.cells], {}
    assert ids[ids.index("parameters") + 1] == "injected-parameters"
    source = nb.cells[ids.index("injected-parameters")].source
    assert source.startswith("# Parameters\na = 7\nb = float")
    exec(source, found)
    assert values.items() <= found.items()


def test_streams_become_what_a_terminal_would_show():
    def stream(text, name="stdout"):
        return nbformat.v4.new_output("stream", name=name, text=text)

    pieces = [stream("a\r"), stream("b\nc"), stream("d\r\n"), stream("e", "stderr"), stream("f")]
    nb = normalise(nbformat.v4.new_notebook(cells=[code("f()", "one", pieces)]))
    merged = [(o.name, o.text) for o in nb.cells[0].outputs]
    assert merged == [("stdout", "b\ncd\r\n"), ("stderr", "e"), ("stdout", "f")]


def test_normalising_keeps_what_means_something(tmp_path):
    picture = output(picture=png(), alt="a red field")
    ours = {"tags": ["timing"], "nanogpt": {"mirror": ["x"]}}
    cell = code("1", "one", [picture], papermill={"duration": 3}, collapsed=True, **ours)
    nb = normalise(nbformat.read(write(tmp_path / "00_x.ipynb", cell), 4))
    assert nb.cells[-1].metadata == ours
    assert nb.cells[-1].outputs[0].metadata["image/png"]["alt"] == "a red field"


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
