"""The runner refuses before it runs, keeps what is whole, sets aside what failed. No kernels."""

import json

import pytest
import torch
from fault_fixtures import contents
from notebook_fixtures import page_faults, write

from nanogpt.cli import main
from nanogpt.files import ROOT
from nanogpt.series import plan, publish, runner
from nanogpt.site import reading

GOOD = """
import json, os, pathlib, sys
out = pathlib.Path(os.environ["NANOGPT_OUT"])
for name in ("figures/00_a.png", "json/00.json", "checkpoints/medium.safetensors"):
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text(f"{n}")
if n == 2:
    for name in ("figures/00_b.png", "checkpoints/own.safetensors"):
        (out / name).write_text("only when n is 2")
print(profile, n, word)
"""


def manifest(out):
    return json.loads((out / "manifest.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------ refused before anything runs

REFUSED = {
    "07": "there is no notebook '07': choose from 00_good",
    "-p sord=3": "a parameter of a chosen notebook: word",
    "-p profile=full": "a parameter of a chosen notebook: n, word",
    "--profile tpu": "--profile 'tpu' is unknown: choose auto, smoke, laptop, full, gpu",
    "--profile cpu/4": "--profile 'cpu/4' is unknown",
    "--out {published}": "part of the project itself",
    "--out {published}/figures": "part of the project itself",
    "--out {root}": "part of the project itself",
    "--out {root}/notebooks": "part of the project itself",
    "--out {root}/notebooks/new": "part of the project itself",
    "--out {root}/outputs": "part of the project itself",
    "--out {file}/out": "choose another folder",
    "--all 00": "--all runs all notebooks: leave it out, or the names",
    "--publish --profile smoke": "This is profile smoke",
    "--publish 00": "--publish runs all notebooks as they are",
    "--reproduce 00": "--reproduce runs all notebooks as they are",
    "../00": "there is no notebook '../00'",
    "-p checkpoint=/no/such": "no checkpoint at /no/such.safetensors",
    "-p word=\udcff": "not UTF-8 text",
}


@pytest.mark.parametrize(("words", "message"), REFUSED.items())
def test_wrong_usage_is_refused_before_anything_is_written(
    tmp_path, sources, capsys, words, message
):
    write(sources / "00_good.ipynb", GOOD)
    (tmp_path / "file").write_text("a file, where a folder should be made", encoding="utf-8")
    places = {"published": runner.PUBLISHED, "root": ROOT, "file": tmp_path / "file"}
    words = [word.format(**places) for word in words.split()]
    whole = "--publish" in words or "--reproduce" in words
    own = [] if whole else ["--source", str(sources), "--out", str(tmp_path / "out")]
    own += [] if "--profile" in words else ["--profile", "full" if whole else "smoke"]
    before = contents(ROOT / "notebooks"), sorted((ROOT / "outputs").rglob("*"))
    assert main(["run", *own, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert (contents(ROOT / "notebooks"), sorted((ROOT / "outputs").rglob("*"))) == before


# ------------------------------------------------------------------ what is kept


def test_a_failure_replaces_nothing(go, sources, tmp_path):
    out = tmp_path / "out"
    write(sources / "00_good.ipynb", GOOD, "assert n < 3, 'too many'")
    assert go("-p", "n=2") == 0
    before = (out / "00_good.ipynb").read_bytes()
    assert go("-p", "n=3") == 1
    assert (out / "00_good.ipynb").read_bytes() == before
    assert (out / "json" / "00.json").read_text(encoding="utf-8") == "2"
    assert (out / "failed" / "00_good" / "json" / "00.json").read_text(encoding="utf-8") == "3"
    assert "too many" in manifest(out)["notebooks"][0]["error"]
    assert go("-p", "n=1") == 0
    assert (out / "json" / "00.json").read_text(encoding="utf-8") == "1"
    assert (out / "checkpoints" / "own.safetensors").exists(), "weights are for others too"


@pytest.mark.parametrize(
    "card", ["null", "[]", "{", "{}", '{"notebooks": []}', '{"notebooks": [{}]}']
)
def test_a_manifest_that_no_run_wrote_is_named_and_left_alone(go, sources, tmp_path, card, capsys):
    write(sources / "00_good.ipynb", GOOD)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text(card, encoding="utf-8")
    assert go() == 2
    assert "contains manifest.json, and this command did not create" in capsys.readouterr().err
    assert contents(tmp_path / "out") == {"manifest.json": card.encode()}


# ------------------------------------------------------------------ publishing


@pytest.fixture
def press(tmp_path, sources, monkeypatch, no_kernels):
    """A small repository in which --publish works; its corpus counts as the real one."""
    published = tmp_path / "outputs" / "published"
    monkeypatch.setattr(plan, "ROOT", tmp_path)
    monkeypatch.setattr(plan, "PUBLISHED", published)
    monkeypatch.setattr(runner, "PUBLISHED", published)
    monkeypatch.setattr(publish, "BUILD", tmp_path / "outputs" / "run")
    monkeypatch.setattr(plan, "SHA256", plan.load_corpus().sha256)
    monkeypatch.setattr(plan, "seconds_of_work", lambda: 0.1)
    monkeypatch.setenv("NANOGPT_CHECKPOINT", "/of/the/reader")
    alone = "import os; assert 'NANOGPT_CHECKPOINT' not in os.environ\n"
    train = alone + GOOD + "(out / 'checkpoints/medium-last.safetensors').write_text('x')"
    write(sources / "00_first.ipynb", alone)
    write(sources / "01_train.ipynb", train)
    published.mkdir(parents=True)
    (published / "old.txt").write_text("the run before", encoding="utf-8")
    return published


def test_publishing_replaces_the_files_of_a_run_and_names_all_others(press, monkeypatch, capsys):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert main(["run", "--publish", "--no-html"]) == 0
    assert f"not from this run, so kept: {press / 'old.txt'}" in capsys.readouterr().out
    files = {str(path.relative_to(press)) for path in press.rglob("*") if path.is_file()}
    files.remove("old.txt")
    made = "figures/00_a.png json/00.json checkpoints/medium.safetensors manifest.json".split()
    names = ("api", "index", "museum", "your_cache", "00_first", "01_train", *reading.PAGES)
    pages = [f"html/{name}.html" for name in names]
    assert files == {"00_first.ipynb", "01_train.ipynb", *made, *pages}
    card = manifest(press)
    assert (card["profile"], card["work_seconds"]) == ("full", 0.1)
    assert card["environment"]["threads"] == 1, "the kernels', whatever this process has"
    assert list((press.parent / "run").iterdir()) == [], "its own folder is gone"
    assert page_faults(press / "html" / "index.html") == []


def test_a_run_that_fails_publishes_nothing(press, sources):
    write(sources / "02_bad.ipynb", "1 / 0")
    assert main(["run", "--publish"]) == 1
    assert [path.name for path in press.iterdir()] == ["old.txt"]
    assert list(publish.BUILD.glob("publish-*/failed/02_bad/02_bad.ipynb"))


def test_only_shakespeare_is_published_and_not_while_it_is_compared(press, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        main(["run", "--publish", "--reproduce"])
    assert "not allowed with argument --publish" in capsys.readouterr().err
    monkeypatch.setattr(plan, "SHA256", "0" * 64)
    assert main(["run", "--publish"]) == 2
    assert "profile full, on Tiny Shakespeare (data/README.md)" in capsys.readouterr().err
    assert [path.name for path in press.iterdir()] == ["old.txt"]


def test_reproducing_compares_with_what_is_published(press, sources, capsys):
    write(sources / "00_first.ipynb", "print('the same')")
    assert main(["run", "--publish"]) == 0
    before = contents(press)
    assert main(["run", "--reproduce"]) == 0
    assert "byte-identical" in capsys.readouterr().out
    first = "import os; assert 'reproduce' in os.environ['NANOGPT_RUN']"
    write(sources / "00_first.ipynb", first)
    assert main(["run", "--reproduce"]) == 1
    said = capsys.readouterr().out
    assert "00_first, cell 'cell-1': its source has changed" in said
    assert "safetensors" not in said
    assert "has the code changed since?" in said
    assert contents(press) == before
    assert sorted(path.name for path in press.parent.iterdir()) == ["published", "run"]
