"""What notebook cells call: opening a run, keeping figures and numbers, showing tables and source."""

import json

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from nanogpt.data import synthetic
from nanogpt.model.gpt import Head
from nanogpt.notebook import display, session
from nanogpt.notebook.plots import training as plots_training


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    InteractiveShell.instance()
    text = tmp_path / "mine.txt"
    text.write_text("to be or not to be, " * 200)
    monkeypatch.setenv("NANOGPT_DATA", str(text))
    monkeypatch.setenv("NANOGPT_OUT", str(tmp_path / "out"))
    return tmp_path


def a_figure():
    return plots_training.characters({"a": 3, "b": 1})


def test_opening_a_run_says_what_it_found(capsys):
    run = session.open_run("07", profile="smoke", seed=3)
    said = capsys.readouterr().out
    assert "profile smoke" in said
    assert "mine.txt: 4,000 characters" in said
    assert run.parameters == {"seed": 3}


@pytest.mark.parametrize(
    "wrong", [{"profile": "fast"}, {"seed": -1}, {"seed": "7"}, {"seed": True}]
)
def test_a_wrong_parameter_is_named(wrong):
    with pytest.raises(ValueError, match="choose"):
        session.open_run("07", **{"profile": "smoke", "seed": 1, **wrong})


def test_without_corpus_and_network_the_banner_is_seen(capsys, monkeypatch):
    corpus = session.load_corpus.__globals__["practice_corpus"]("no network.")
    monkeypatch.setattr(session, "load_corpus", lambda: corpus)
    run = session.open_run("07", profile="smoke")
    assert "PRACTICE CORPUS, not Shakespeare: no network." in capsys.readouterr().out
    assert synthetic.NAME in run._footer("")


def test_a_figure_is_kept_as_a_file_and_shown_with_alt_text(own_folder):
    run = session.open_run("07", profile="smoke")
    with capture_output() as shown:
        run.figure(a_figure(), "counts", "two bars")
    png = (own_folder / "out" / "figures" / "07_counts.png").read_bytes()
    (output,) = shown.outputs
    assert output.data["image/png"] is not None
    assert output.metadata["image/png"]["alt"] == "two bars"
    assert png.startswith(b"\x89PNG")


def test_a_figure_that_was_not_measured_here_says_so_and_has_no_conditions_of_this_run(
    own_folder, monkeypatch
):
    footers = []
    monkeypatch.setattr(
        session.plots, "to_png", lambda figure, footer: footers.append(footer) or b"png"
    )
    run = session.open_run("07", profile="smoke")
    with capture_output():
        run.figure(a_figure(), "counts", "two bars", published="a machine, torch 2")
        run.figure(a_figure(), "counts", "two bars", note="batch 1")
    assert footers[0] == "published, not of this run: a machine, torch 2"
    assert footers[1].startswith("batch 1")
    assert "profile smoke" in footers[1]


def test_a_figure_s_name_cannot_lead_elsewhere():
    run = session.open_run("07", profile="smoke")
    with pytest.raises(ValueError, match="lower-case"):
        run.figure(a_figure(), "../../escaped", "alt")


def test_saved_results_carry_all_they_depend_on(own_folder):
    run = session.open_run("07", profile="smoke", seed=3)
    run.save(answer=42)
    saved = json.loads((own_folder / "out" / "json" / "07.json").read_text())
    assert saved["results"] == {"answer": 42}
    assert saved["parameters"] == {"seed": 3}
    assert saved["corpus"]["name"] == "mine.txt"
    assert {"python", "torch", "device", "threads", "commit", "dirty"} <= set(saved["environment"])


def test_a_table_reads_as_markdown_and_as_plain_text():
    with capture_output() as shown:
        display.table([{"what": "a|b", "n": 1}, {"what": "c", "n": 20}])
    (output,) = shown.outputs
    assert output.data["text/markdown"].splitlines() == [
        "| what | n |",
        "|---|---|",
        "| a\\|b | 1 |",
        "| c | 20 |",
    ]
    assert output.data["text/plain"].splitlines() == ["what  n", "a|b   1", "c     20"]


def test_shown_source_is_the_package_s_own_text():
    with capture_output() as shown:
        display.show(Head)
    assert "if self.cache is not None and not self.training:" in shown.outputs[0].data["text/plain"]
