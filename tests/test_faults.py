"""Faults that are really caused to everything that writes: full disks, closed folders, kills.

After each one: an error that says what to do, the old file whole or the new one, nothing half
beside it, and a next plain attempt that works.
"""

import contextlib
import io
import json
import os
import re
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from fault_fixtures import contents, read_only
from notebook_fixtures import run_cells_here
from notebook_fixtures import write as write_notebook
from training_fixtures import CPU, fresh, stop_at

from nanogpt import TrainConfig, load_checkpoint, save_checkpoint, train
from nanogpt.cli import main
from nanogpt.cluster.job import Job, Task
from nanogpt.export.huggingface import write_folder
from nanogpt.series import execute

RECIPE = TrainConfig(steps=12, batch_size=4, eval_every=4, eval_batches=1, warmup=3)


def write_checkpoint(folder, version):
    model = tiny_model()
    save_checkpoint(folder / "fox", model, meta_of(model, step=version))


def a_job(folder):
    task = Task(checkpoint="anywhere", weights="0" * 64)
    return Job(folder, [("a", i) for i in range(4)], task, shard_size=2)


def write_job(folder, version):
    """As many shards as the version says."""
    with a_job(folder).opened() as job:
        for number in range(2 - len(job.todo), version):
            job.keep(number, ["b" * 10_000] * 2)


def read_job(folder):
    with a_job(folder).opened() as job:
        return 2 - len(job.todo)


CELL = """
import os, pathlib
path = pathlib.Path(os.environ["NANOGPT_OUT"], "figures", "00_a.png")
path.parent.mkdir(exist_ok=True)
path.write_text("x" * 20_000)
print(n, "y" * 40_000)
"""


def run_notebook(folder, version):
    source = folder.parent / "notebooks"
    said = io.StringIO()
    write_notebook(source / "00_good.ipynb", CELL)
    words = ["--source", source, "--out", folder, "-p", f"n={version}", "--profile", "smoke"]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(["run", *map(str, words), "--no-html"])
    if code:
        raise OSError(said.getvalue())


def read_notebook(folder):
    json.loads((folder / "manifest.json").read_text(encoding="utf-8"))  # it may say what failed
    assert (folder / "figures" / "00_a.png").read_text(encoding="utf-8") == "x" * 20_000
    return int(
        re.search(r'"(\d) y{40000}', (folder / "00_good.ipynb").read_text(encoding="utf-8"))[1]
    )


def export(folder, version):
    model = tiny_model()
    kept = folder.parent / "to_export"
    save_checkpoint(kept, model, meta_of(model, step=version))
    write_folder(load_checkpoint(kept), folder / "out")


def read_export(folder):
    return json.loads((folder / "out" / "nanogpt.json").read_text(encoding="utf-8"))["step"]


class Writer(NamedTuple):
    write: object  # (folder, version)
    read: object  # folder -> version; ValueError, with a file's name, for what is damaged


WRITERS = {
    "checkpoint": Writer(write_checkpoint, lambda f: load_checkpoint(f / "fox").meta["step"]),
    "job": Writer(write_job, read_job),
    "notebook": Writer(run_notebook, read_notebook),
    "export": Writer(export, read_export),
}


@pytest.fixture(params=WRITERS)
def writer(request, monkeypatch, tmp_path):
    little = tmp_path / "little.txt"
    little.write_text("To be, or not to be.\n" * 250, encoding="utf-8")
    monkeypatch.setenv("NANOGPT_DATA", str(little))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setattr(execute.Strict, "execute_managed_notebook", run_cells_here)
    return WRITERS[request.param]


def files(folder: Path) -> dict[str, bytes]:
    """All but locks, and a run's own copy of what failed."""
    found = contents(folder).items()
    return {k: v for k, v in found if not k.endswith(".lock") and not k.startswith("failed/")}


def check_whole(writer, folder, names, leftovers=False) -> None:
    """The old version or the new one is there, and no other file; then the new one is written."""
    assert writer.read(folder) in (1, 2)
    assert leftovers or set(files(folder)) <= names
    writer.write(folder, 2)
    assert writer.read(folder) == 2


@pytest.fixture
def names(writer, tmp_path) -> set[str]:
    """The files of either version."""
    other = tmp_path / "names" / "of"
    other.mkdir(parents=True)
    for version in (1, 2):
        writer.write(other, version)
    return set(files(other))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0], ids=["at once", "half-way", "at the last byte"])
def test_a_disk_that_fills_up(disk, writer, names, share):
    writer.write(disk.mine, 1)
    before = files(disk.mine)
    disk.fill(max(0, int(share * max(map(len, before.values()))) - 1))
    try:
        with pytest.raises(OSError, match="make room|cannot write|No space left|too large"):
            writer.write(disk.mine, 2)
    finally:
        disk.clear()
    assert share or files(disk.mine) == before
    check_whole(writer, disk.mine, names)


def test_a_folder_that_is_closed(tmp_path, writer, names):
    folder = tmp_path / "closed"
    folder.mkdir()
    writer.write(folder, 1)
    before = files(folder)
    with (
        read_only(folder),
        pytest.raises(OSError, match=f"{folder}.*(choose|name) another|Read-only"),
    ):
        writer.write(folder, 2)
    assert files(folder) == before
    check_whole(writer, folder, names)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_process_that_is_killed_at_a_rename(tmp_path, writer, names, at):
    """SIGKILL at the very rename that makes a file whole: the first, the second or the third."""
    folder = tmp_path / "killed"
    folder.mkdir()
    writer.write(folder, 1)
    child = os.fork()
    if not child:
        calls = []

        def killing(rename):
            def call(*arguments, **how):
                calls.append(arguments)
                if len(calls) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return rename(*arguments, **how)

            return call

        os.replace = killing(os.replace)
        os.rename = killing(os.rename)
        writer.write(folder, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, -signal.SIGKILL)
    check_whole(writer, folder, names, leftovers=True)


# ------------------------------------------------------------------ a training


def outcome(folder) -> dict:
    """The files of a run; of each line of its log only what does not depend on the clock."""
    keys = ("step", "train", "val")
    return {
        name: [[json.loads(line)[key] for key in keys] for line in data.splitlines()]
        if name.endswith(".jsonl")
        else data
        for name, data in files(folder).items()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpus):
    """The files of a run that nothing stopped."""
    out = tmp_path_factory.mktemp("whole") / "fox"
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    return outcome(out.parent)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.5], ids=["no room", "room for all but the state"])
def test_a_training_whose_disk_fills_up_resumes_to_the_same_bits(
    disk, corpus, monkeypatch, whole, share
):
    before = {}
    out = disk.mine / "fox"

    def fill():
        before.update(files(disk.mine))
        disk.fill(int(share * len(whole["fox.safetensors"])) // 4096 * 4096)

    with monkeypatch.context() as patch:
        stop_at(patch, 6, fill)
        with pytest.raises(OSError, match="make room"):
            train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    after = files(disk.mine)
    state = "fox-last.state.safetensors"
    assert after[state] == before[state]
    assert share > 1 or after == before
    for name in ("fox", "fox-last"):
        assert load_checkpoint(disk.mine / name).meta["step"] in (4, 8)
    disk.clear()
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, resume=True)
    assert outcome(disk.mine) == whole


def test_a_training_whose_folder_is_closed_leaves_the_whole_run_that_lies_there(
    tmp_path, corpus, whole
):
    out = tmp_path / "run" / "fox"
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    refused = pytest.raises(OSError, match="cannot write into .*run.*choose another folder")
    with read_only(out.parent), refused:
        train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    assert outcome(out.parent) == whole


# ------------------------------------------------------------------ newer files, moved folders
