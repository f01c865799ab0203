"""One executed notebook: why it failed, in one line; what is kept of it; what everyone can see."""

import nbformat
import papermill
import pytest
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from notebook_fixtures import code, output, png, write

from nanogpt.publishing.execute import (
    NotebookError,
    check_outputs,
    execute,
    merge_streams,
    normalise,
)

FAILURES = {
    "a cell that fails": (
        papermill.PapermillExecutionError(2, 2, "", "ValueError", "\n too much \nmore", []),
        "^cell 'cell-1': ValueError: too much$",
    ),
    "a failure without words": (
        papermill.PapermillExecutionError(2, 2, "", "KeyError", "", []),
        r"^cell 'cell-1': KeyError: \(no message\)$",
    ),
    "a cell that takes too long": (
        CellTimeoutError("x"),
        "^cell 'cell-1' ran longer than 7 s: give it more with --timeout$",
    ),
    "a kernel that dies": (DeadKernelError("x"), "^cell 'cell-1' killed its kernel: often"),
    "anything else": (RuntimeError("no kernel\nat all"), "^RuntimeError: no kernel$"),
}


@pytest.mark.parametrize(("error", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line(tmp_path, monkeypatch, error, message):
    def fail(source, target, parameters, *, on_cell_start, execution_timeout, **options):
        assert (parameters, execution_timeout) == ({"n": 1}, 7)
        on_cell_start(cell=code("1", "cell-1"), cell_index=2)
        raise error

    monkeypatch.setattr(papermill, "execute_notebook", fail)
    seen = []
    with pytest.raises(NotebookError, match=message):
        execute(
            write(tmp_path / "a.ipynb"),
            tmp_path / "b",
            {"n": 1},
            timeout=7,
            on_cell=lambda *given: seen.append(given),
        )
    assert [index for index, _ in seen] == [2]


def test_half_a_notebook_is_blamed_on_the_disk(tmp_path, monkeypatch):
    """A full disk keeps a part of the file: this notebook is not to be restored from git."""
    half = tmp_path / "00_half.ipynb"
    write_half = lambda *_, **options: half.write_text('{"cells": [')  # noqa: E731
    monkeypatch.setattr(papermill, "execute_notebook", write_half)
    with pytest.raises(NotebookError, match="could not be written whole .* MB are free"):
        execute(write(tmp_path / "a.ipynb"), half, {})


def test_streams_become_what_a_terminal_would_show():
    def stream(text, name="stdout"):
        return nbformat.v4.new_output("stream", name=name, text=text)

    pieces = [stream("a\r"), stream("b\nc"), stream("d\r\n"), stream("e", "stderr"), stream("f")]
    merged = [(o.name, o.text) for o in merge_streams(pieces)]
    assert merged == [("stdout", "b\ncd\n"), ("stderr", "e"), ("stdout", "f")]


def test_normalising_keeps_what_means_something(tmp_path):
    picture = output(picture=png(), alt="a red field")
    ours = {"tags": ["timing"], "nanogpt": {"mirror": ["x"]}}
    cell = code("1", "one", [picture], papermill={"duration": 3}, collapsed=True, **ours)
    error = code("", "random", tags=["papermill-error-cell-tag"])
    nb = normalise(nbformat.read(write(tmp_path / "00_x.ipynb", error, cell), 4))
    assert nb.cells[-1].metadata == ours
    assert nb.cells[-1].outputs[0].metadata["image/png"]["alt"] == "a red field"
    assert nb.cells[-2].id == "error-2"


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
def test_outputs_that_not_everyone_can_see_fail(tmp_path, no_kernels, shown, message):
    path = write(tmp_path / "00_x.ipynb", code("1", "one", [shown]))
    with pytest.raises(NotebookError, match=message):
        execute(path, tmp_path / "executed.ipynb", {})


def test_outputs_that_everyone_can_see_pass(tmp_path):
    markdown = output(**{"text/markdown": "*x*", "text/plain": "x"})
    fine = [output("text"), output(picture=png(), alt="red"), markdown]
    check_outputs(write(tmp_path / "00_x.ipynb", code("1", "one", fine)))
