"""Progress bars: in a terminal and a notebook, and plain lines elsewhere."""

import io
import json
import sys

import pytest

from nanogpt.console import Progress, first_line


@pytest.mark.parametrize("value", ["1", "0", ""])
@pytest.mark.parametrize("watched", ["terminal", "notebook", "no"])
def test_a_bar_is_shown_in_a_terminal_and_a_notebook_only(monkeypatch, watched, value):
    monkeypatch.setenv("TQDM_DISABLE", value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: watched == "terminal", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if watched == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", json)
    with Progress(1, "steps") as progress:
        assert progress.disable == (value == "1" or watched == "no")


def test_lines_are_printed_at_once_where_no_bar_is_shown(monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    with Progress(2, "steps") as bar:
        bar.set_postfix_str("loss 1.00", refresh=False)
        bar.update(2)
        bar.print("step 2 of 2")
        assert shown.getvalue() == b"step 2 of 2\n"
    assert shown.getvalue() == b"step 2 of 2\n"


def test_first_line_of_an_error():
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
    assert len(first_line(ValueError("x" * 999))) == 200
