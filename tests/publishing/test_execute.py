"""One executed notebook: why it failed, in one line; what is kept of it; what everyone can see."""

from types import SimpleNamespace

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from notebook_fixtures import code, output, png, write

from nanogpt.publishing.execute import (
    NotebookError,
    _run_cell,
    check_outputs,
    execute,
    merge_streams,
    normalise,
    with_parameters,
)

FAILURES = {
    "fails": (CellExecutionError("", "ValueError", "\n too much \nmore"), "ValueError: too much$"),
    "without words": (CellExecutionError("", "KeyError", ""), r"KeyError: \(no message\)$"),
    "takes long": (CellTimeoutError("x"), "ran longer than 7 s: give it more with --timeout$"),
    "a dead kernel": (DeadKernelError("x"), "killed its kernel: often the memory"),
}


@pytest.mark.parametrize(("error", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line_that_names_its_cell(error, message):
    def fail(*_):
        raise error

    with pytest.raises(NotebookError, match=f"^cell 'one'.*{message}"):
        _run_cell(SimpleNamespace(execute_cell=fail), 2, code("1", "one"), 7)


def test_parameters_are_written_as_python_reads_them(tmp_path):
    values = {"a": 7, "b": float("-inf"), "c": 'a "quote"\n\\ Ω \udcff', "d": None, "e": [1, (2,)]}
    nb = with_parameters(nbformat.read(write(tmp_path / "00_x.ipynb"), 4), values)
    ids, found = [cell.id for cell in nb.cells], {}
    assert ids[ids.index("parameters") + 1] == "injected-parameters"
    source = nb.cells[ids.index("injected-parameters")].source
    assert source.encode("ascii").startswith(b"# Parameters\na = 7\nb = float")
    exec(source, found)
    assert values.items() <= found.items()


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
def test_outputs_that_not_everyone_can_see_fail(tmp_path, no_kernels, shown, message):
    path = write(tmp_path / "00_x.ipynb", code("1", "one", [shown]))
    with pytest.raises(NotebookError, match=message):
        execute(path, tmp_path / "executed.ipynb", {})


def test_outputs_that_everyone_can_see_pass(tmp_path):
    markdown = output(**{"text/markdown": "*x*", "text/plain": "x"})
    fine = [output("text"), output(picture=png(), alt="red"), markdown]
    check_outputs(write(tmp_path / "00_x.ipynb", code("1", "one", fine)))
