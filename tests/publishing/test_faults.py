"""Faults that are really caused.

After each one: an error that names the thing, what was there before still there to the byte,
nothing half-written beside it, and a next plain attempt that works.
"""

import json
import os
import re
from pathlib import Path

import pytest
from fault_fixtures import backwards, contents, read_only
from notebook_fixtures import code, output, write

from nanogpt.cli import run
from nanogpt.data.corpus import load_corpus
from nanogpt.publishing import publish, runner
from nanogpt.system.files import write_json

WORK = """
import os, pathlib
out = pathlib.Path(os.environ["NANOGPT_OUT"])
for name in ("figures/00_a.png", "checkpoints/small.safetensors"):
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text(f"new {n}")
"""
FAULT = """
if word == "much":
    print("x" * 300_000)
print("done", n)
"""


@pytest.fixture
def sources(tmp_path):
    write(tmp_path / "notebooks" / "00_good.ipynb", WORK, FAULT)
    return tmp_path / "notebooks"


def earlier(out: Path) -> dict[str, bytes]:
    """Write what an earlier run left, and return it: it stays until a run has passed."""
    files = ["00_good.ipynb", "figures/00_a.png", "checkpoints/small.safetensors"]
    write(out / files[0], code("1", "cell-1", [output("earlier")]))
    for file in files[1:]:
        (out / file).parent.mkdir(parents=True)
        (out / file).write_text(f"earlier {file}")
    before = {file: (out / file).read_bytes() for file in files}
    entry = {"notebook": "00_good", "ok": True, "error": None, "files": files}
    write_json(out / "manifest.json", {"profile": "smoke", "notebooks": [entry]})
    (out / ".lock").write_text("1")
    return before


def still(out: Path) -> dict[str, bytes]:
    """What a user finds now; fails for anything half-written, and for a broken manifest."""
    files = contents(out)
    assert not [name for name in files if ".running-" in name or name.endswith(".tmp")]
    assert json.loads(files["manifest.json"])["notebooks"][0]["notebook"] == "00_good"
    ours = ("failed/", "manifest.json", ".lock")
    return {name: content for name, content in files.items() if not name.startswith(ours)}


def passes(go, out) -> None:
    """A plain run does what it should, and clears what the failed one left."""
    assert go(out=out) == 0
    found = still(out)
    assert sorted(found) == ["00_good.ipynb", "checkpoints/small.safetensors", "figures/00_a.png"]
    assert found["figures/00_a.png"] == b"new 1"
    assert b"done 1" in found["00_good.ipynb"]
    assert not (out / "failed" / "00_good").exists()


def test_a_disk_that_fills_up_during_a_notebook_replaces_nothing(go, sources, disk, capsys):
    out = disk.mine / "out"
    before = earlier(out)
    disk.fill(131_072)
    exit_code = go("-p", "word=much", out=out)
    disk.clear()
    assert exit_code in (1, 2)
    said = capsys.readouterr()
    half = r"00_good.ipynb could not be written whole .*MB are free in .*make room"
    none = r"error: .*No space left on device.*: what had passed before is kept"
    assert re.search(half, said.out) or re.search(none, said.err)
    assert still(out) == before
    passes(go, out)


def test_a_closed_output_folder_is_named_before_anything_is_replaced(go, sources, tmp_path, capsys):
    out = tmp_path / "out"
    before = earlier(out)
    with read_only(out):
        assert go(out=out) in (1, 2)
        assert str(out) in capsys.readouterr().err
    assert still(out) == before
    passes(go, out)


def test_a_clock_that_goes_backwards_stops_no_notebook(go, sources, tmp_path, monkeypatch):
    earlier(tmp_path / "out")
    for path in (tmp_path / "out").rglob("*"):
        os.utime(path, (4e9, 4e9))
    backwards(monkeypatch)
    passes(go, tmp_path / "out")
    (entry,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["notebooks"]
    assert entry["seconds"] >= 0


# ------------------------------------------------------------------ publishing


def published(outputs: Path) -> Path:
    """An outputs/ with a published run and a new one, complete: returns the published folder."""
    for name, text in (("published", "old"), ("run/publish", "new")):
        (outputs / name).mkdir(parents=True)
        (outputs / name / "which.txt").write_text(text)
    return outputs / "published"


def test_an_exchange_needs_no_room(disk):
    target = published(disk.mine / "outputs")
    disk.fill(0 if disk.limit is None else 4096)
    publish.exchange(disk.mine / "outputs" / "run" / "publish", target)
    assert contents(target.parent) == {"published/which.txt": b"new"}


def test_an_exchange_in_a_closed_folder_changes_nothing(tmp_path):
    target = published(tmp_path / "outputs")
    before = contents(tmp_path)
    with read_only(target.parent), pytest.raises(OSError, match="published"):
        publish.exchange(target.parent / "run" / "publish", target)
    assert contents(tmp_path) == before
    publish.exchange(target.parent / "run" / "publish", target)
    assert contents(target.parent) == {"published/which.txt": b"new"}


def test_an_exchange_that_cannot_fetch_the_new_run_puts_the_old_one_back(tmp_path):
    """As with outputs/run on a disk of its own, where no rename leads out of it."""
    target = published(tmp_path / "outputs")
    before = contents(tmp_path)
    with read_only(target.parent / "run"), pytest.raises(OSError, match="publish"):
        publish.exchange(target.parent / "run" / "publish", target)
    assert contents(tmp_path) == before


def test_an_exchange_that_failed_half_way_is_mended_by_the_next(tmp_path):
    target = published(tmp_path / "outputs")
    with read_only(target.parent / "run"), pytest.raises(OSError, match="publish"):
        publish.exchange(target.parent / "run" / "publish", target)
    publish.recover(target)
    assert (target / "which.txt").read_text() == "old"
    publish.exchange(target.parent / "run" / "publish", target)
    assert contents(target.parent) == {"published/which.txt": b"new"}


@pytest.mark.slow
def test_a_disk_that_fills_up_while_publishing_leaves_what_is_published(
    disk, no_kernels, monkeypatch, capsys
):
    root = disk.mine
    target = published(root / "outputs")
    before = contents(target)
    notebook = root / "notebooks" / "01_train.ipynb"
    parameters = 'profile: str = "auto"\nn: int = 1\nword: str | None = '
    monkeypatch.setattr(runner, "ROOT", root)
    monkeypatch.setattr(runner, "PUBLISHED", target)
    monkeypatch.setattr(publish, "BUILD", root / "outputs" / "run" / "publish")
    monkeypatch.setattr(publish, "SHA256", load_corpus().sha256)
    write(notebook, WORK, FAULT, parameters=parameters + "'much'")
    disk.fill(131_072)
    exit_code = run.main(["--publish"])
    disk.clear()
    assert exit_code in (1, 2)
    assert re.search("could not be written whole|No space left", "".join(capsys.readouterr()))
    assert contents(target) == before
    assert sorted(path.name for path in target.parent.iterdir()) == ["published", "run"]
    write(notebook, WORK, FAULT, parameters=parameters + "None")
    assert run.main(["--publish"]) == 0
    assert (target / "html" / "01_train.html").is_file()
    assert not (target / "which.txt").exists()
