"""What notebook cells call: opening a run, keeping figures and results, showing tables and code."""

import base64
import json
import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from nanogpt.config import SIZES
from nanogpt.data import practice_corpus
from nanogpt.files import write_json
from nanogpt.model import GPT, Head
from nanogpt.series import display, session
from nanogpt.site import plots
from nanogpt.training.loop import Stopped

REAL_CORPUS = True


@pytest.fixture(autouse=True)
def out(tmp_path, monkeypatch):
    InteractiveShell.instance()
    text = tmp_path / "mine.txt"
    text.write_text("to be or not to be, " * 200, encoding="utf-8")
    monkeypatch.setenv("NANOGPT_DATA", str(text))
    monkeypatch.setenv("NANOGPT_OUT", str(tmp_path / "out"))
    return tmp_path / "out"


@pytest.fixture
def run():
    return session.open_run("07", profile="smoke", seed=3)


def a_figure(score=1.0):
    return plots.attention_step("a", "scores", [[score]], "one score")


def shown(show, *args, **kwargs):
    with capture_output() as captured:
        show(*args, **kwargs)
    (output,) = captured.outputs
    return output


def test_opening_a_run_says_what_it_found(capsys, out):
    run = session.open_run("07", profile="smoke", seed=3)
    said = capsys.readouterr().out
    assert "profile smoke" in said
    assert "mine.txt: 4,000 characters" in said
    assert run.parameters == {"seed": 3}
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"profile": "fast"}, "choose"), *(({"seed": s}, "seed=") for s in (-1, 2**63, "7", True))],
)
def test_a_wrong_parameter_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        session.open_run("07", **{"profile": "smoke", "seed": 1, **wrong})


def test_a_folder_that_cannot_be_written_is_found_out_at_once(out):
    out.write_text("a file stands here", encoding="utf-8")
    with pytest.raises(OSError, match="choose another folder"):
        session.open_run("07", profile="smoke")


def test_the_practice_corpus_is_named_at_once_and_below_figures(capsys, monkeypatch):
    text = session.load_corpus().text
    corpus = replace(practice_corpus("no network."), text=text)  # which the model knows
    monkeypatch.setattr(session, "load_corpus", lambda: corpus)
    run = session.open_run("07", profile="smoke")
    assert "\n\nPRACTICE CORPUS, not Shakespeare: no network." in capsys.readouterr().out
    assert corpus.name in run._footer("")


def test_a_picture_is_kept_as_a_file_and_shown_with_alt_text(run, out):
    frames = [a_figure(), a_figure(-1.0)]
    animate = partial(run.animation, note="", milliseconds=120)
    for show, drawn in ((run.figure, frames[0]), (animate, frames)):
        output = shown(show, drawn, "counts", "two bars")
        about = output.metadata["image/png"]
        assert (about["alt"], about["name"]) == ("two bars", "counts")
        assert base64.b64decode(about["phone"]).startswith(b"\x89PNG")
        kept = (out / "figures" / "07_counts.png").read_bytes()
        assert kept.startswith(b"\x89PNG")
        assert (b"acTL" in kept) == (drawn is frames)


def test_a_figure_that_was_not_measured_here_states_its_own_conditions(run, monkeypatch):
    footers = []
    monkeypatch.setattr(plots.style, "to_png", lambda _, footer: footers.append(footer) or b"png")
    with capture_output():
        run.figure(a_figure(), "counts", "two bars", published="a machine, torch 2")
        run.figure(a_figure(), "counts", "two bars", note="batch 1")
    stated = "published, not from this run: a machine, torch 2"
    assert set(footers[:2]) == {stated}, "on a phone too"
    assert footers[2].startswith("batch 1")
    assert footers[2].endswith("mine.txt  ·  profile smoke")


def test_saved_results_carry_all_they_depend_on(run, out):
    run.save(answer=42)
    saved = json.loads((out / "json" / "07.json").read_text(encoding="utf-8"))
    assert (saved["notebook"], saved["profile"]) == ("07", "smoke")
    assert saved["results"] == {"answer": 42}
    session.open_run("07", profile="smoke")  # a reader begins again
    assert saved["parameters"] == {"seed": 3}
    assert saved["corpus"]["name"] == "mine.txt"
    assert {"python", "torch", "device", "threads", "commit", "dirty"} <= set(saved["environment"])


def test_a_notebook_about_a_model_from_elsewhere_names_it_instead_of_the_corpus(run, out):
    run.about = "random weights"
    run.save()
    saved = json.loads((out / "json" / "07.json").read_text(encoding="utf-8"))
    assert saved["corpus"] is None
    assert "random weights" in run._footer("")
    assert "mine.txt" not in run._footer("")


def test_a_model_is_looked_for_in_this_run_and_then_in_the_series_of_runs(run, out, monkeypatch):
    asked = []
    monkeypatch.setattr(session, "load_or_train", lambda *_, **options: asked.append(options))
    run.load_model()
    monkeypatch.setenv("NANOGPT_RUN", "series")
    run.load_model("mine")
    size = run.profile.size
    here = out / "checkpoints" / size
    series = session.Path("series", "checkpoints", size)
    assert [options["keep"] for options in asked] == [[here], [here, series]]
    assert [options["checkpoint"] for options in asked] == ["auto", "mine"]


@pytest.mark.parametrize(
    ("wanted", "cpus", "said", "got"),
    [
        (2, 8, None, 2),
        (2, 8, "", 2),
        (2, 8, "1", 1),
        (2, 8, "4,2", 2),
        (2, 8, "0", 2),
        (2, 8, "all", 2),
        (2, 1, None, 1),
        (4, 2, "3", 2),
        (None, 2, "1", None),
    ],
)
def test_no_more_threads_than_this_process_may_have(wanted, cpus, said, got, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert session.allowed_threads(wanted) == got


@pytest.mark.parametrize("headless", [True, False])
def test_a_training_that_was_stopped_goes_on_only_for_a_reader(headless, run, capsys, monkeypatch):
    shape = SIZES["article"]
    model = GPT(replace(shape, vocab_size=len(set(run.corpus.text)), n_layer=1))
    stopped = Stopped("stopped after 2 steps", {"batch_loss": [3.0, 2.0], "full_val": None})
    monkeypatch.delenv("NANOGPT_HEADLESS", raising=False)
    if headless:
        monkeypatch.setenv("NANOGPT_HEADLESS", "1")
        with pytest.raises(Stopped, match="after 2 steps"):
            run.history_until(stopped, model)
        return
    history = run.history_until(stopped, model)
    assert history["full_val"] > 0
    assert "The rest of this notebook uses these 2 steps." in capsys.readouterr().out


def test_training_has_the_threads_of_the_profile_and_nothing_else_has(run, monkeypatch):
    monkeypatch.setattr(session, "allowed_threads", lambda wanted: wanted)
    before = torch.get_num_threads()
    monkeypatch.setattr(run, "profile", replace(run.profile, train_threads=before + 1))
    with run.training():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    monkeypatch.setattr(run, "profile", replace(run.profile, train_threads=None))
    with run.training():
        assert torch.get_num_threads() == before


def test_a_table_reads_as_markdown_and_as_plain_text():
    data = shown(display.show_table, [{"what": "a|b", "n": 1}, {"n": 20, "what": "c"}]).data
    markdown = ["| what | n |", "|---|---|", "| a\\|b | 1 |", "| c | 20 |"]
    assert data["text/markdown"].splitlines() == markdown
    assert data["text/plain"].splitlines() == ["what   n", "a|b    1", "c     20"]


def test_shown_source_is_the_package_s_own_text_and_code_names_its_language():
    data = shown(display.show_source, Head.forward).data
    assert data["text/plain"].startswith("    def forward")
    assert data["text/markdown"] == f"```python\n{data['text/plain']}\n```"
    data = shown(display.show_code, "\nint x;\n", "cpp").data
    assert data == {"text/markdown": "```cpp\nint x;\n```", "text/plain": "int x;"}


def test_the_gain_of_the_cache_is_quoted_from_this_run_or_marked_as_published(
    run, out, monkeypatch, tmp_path
):
    def keep(folder, median, checkpoint):
        gain = median and {"median": median, "low": 2.0, "high": 4.0, "n": 5}
        results = {"gain_255": gain, "checkpoint": checkpoint}
        write_json(folder / "json" / "05.json", {"results": results})

    monkeypatch.setattr(session, "PUBLISHED", tmp_path / "published")
    assert run.gain("abc") == "what it prints"
    keep(tmp_path / "published", 3.5, "xyz")
    published = "3.50× (2.00–4.00, n = 5), published, not from this run,"
    assert run.gain("abc") == published
    keep(out, None, "abc")
    assert run.gain("abc") == published, "this run was too short to tell"
    monkeypatch.setenv("NANOGPT_RUN", str(tmp_path / "run"))
    keep(tmp_path / "run", 3.0, "abc")
    assert run.gain("abc") == "3.00× (2.00–4.00, n = 5)"
    assert run.gain("def") == published, "measured with other weights"
