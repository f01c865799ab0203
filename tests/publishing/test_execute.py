"""What of an executed notebook everyone can see."""

import pytest
from notebook_fixtures import code, output, png, write

from nanogpt.publishing.execute import NotebookError, check_outputs

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
