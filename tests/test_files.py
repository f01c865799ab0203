"""The files that the package writes, and files that somebody else made.

A write is whole or has not happened, whatever stops it. A file of the user's is not overwritten.
`~` is the home folder. A file that is no checkpoint of ours is named, with what to do, and nothing
in it is executed.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import re
import signal
import stat
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from fault_fixtures import contents
from notebook_fixtures import run_cells_here
from notebook_fixtures import write as write_notebook
from training_fixtures import CPU, fresh, stop_at

from nanogpt import TrainConfig, load_checkpoint, load_corpus, save_checkpoint, train
from nanogpt.cli import main
from nanogpt.cli.common import named
from nanogpt.decoder.checkpoint import CheckpointError
from nanogpt.files import PACKAGE, user_path, write_whole
from nanogpt.pretrained.write import write_folder
from nanogpt.series import execute
from nanogpt.serving.jobs import Job

RECIPE = TrainConfig(steps=12, batch_size=4, eval_every=4, eval_batches=1, warmup=3)
SHORT = TrainConfig(steps=2, batch_size=4, eval_every=2, eval_batches=1, warmup=1)
TEXT = "the quick brown fox jumps over the lazy dog.\n" * 120


def save(path, step=1200):
    model = tiny_model()
    save_checkpoint(path, model, meta_of(model, step=step))


def trained(path, **more):
    corpus = load_corpus()
    return train(fresh(corpus), corpus, SHORT, out=path, device=CPU, **more)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, beside a home folder with a text, prompts and a checkpoint."""
    home = tmp_path / "home"
    for folder in (home, tmp_path / "here"):
        folder.mkdir()
    (home / "text.txt").write_text(TEXT, encoding="utf-8")
    (home / "p.txt").write_text("a\nb", encoding="utf-8")
    save(home / "fox")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("NANOGPT_DATA", str(home / "text.txt"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setattr(execute.Strict, "execute_managed_notebook", run_cells_here)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


# ------------------------------------------------------------------ a write that is stopped


def a_job(folder):
    """A job of two shards."""
    return Job(folder, ["a", "b"], "anywhere", "0" * 64, samples=2, shard_size=2)


def write_job(folder, version):
    """As many shards as the version says."""
    job = a_job(folder)
    job.begin()
    for number in range(2 - len(job.todo), version):
        job.write(number, ["b" * 10_000] * 2)


def read_job(folder):
    job = a_job(folder)
    job.begin()
    return 2 - len(job.todo)


def run_notebook(folder, version):
    source = folder.parent / "notebooks"
    write_notebook(source / "00_good.ipynb", 'print(n, "y" * 40_000)')
    words = ["--source", source, "--out", folder, "-p", f"n={version}", "--profile", "smoke"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(["run", *map(str, words), "--no-html"])
    if code:
        raise OSError(printed.getvalue())


def read_notebook(folder):
    text = (folder / "00_good.ipynb").read_text(encoding="utf-8")
    return int(re.search(r'"(\d) y{40000}', text)[1])


def export(folder, version):
    kept = folder.parent / "to_export"
    save(kept, version)
    write_folder(load_checkpoint(kept), folder / "out")


def read_export(folder):
    return json.loads((folder / "out" / "nanogpt.json").read_text(encoding="utf-8"))["step"]


class Writer(NamedTuple):
    write: object  # (folder, version)
    read: object  # folder -> version


WRITERS = {
    "checkpoint": Writer(
        lambda f, version: save(f / "fox", version),
        lambda f: load_checkpoint(f / "fox").meta["step"],
    ),
    "job": Writer(write_job, read_job),
    "notebook": Writer(run_notebook, read_notebook),
    "export": Writer(export, read_export),
}


def files(folder: Path) -> dict[str, bytes]:
    """All but locks, and a run's own copy of what failed."""
    found = contents(folder).items()
    return {k: v for k, v in found if not k.endswith(".lock") and not k.startswith("failed/")}


def check_whole(writer: Writer, folder: Path) -> None:
    """One of both versions is there; then the new one can be written."""
    assert writer.read(folder) in (1, 2)
    writer.write(folder, 2)
    assert writer.read(folder) == 2


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_version_or_the_new_one(here, disk, name):
    """Half of the largest file still fits."""
    writer = WRITERS[name]
    writer.write(disk.mine, 1)
    before = files(disk.mine)
    disk.fill(max(map(len, before.values())) // 2)
    try:
        with pytest.raises(OSError, match="make room|cannot write|No space left|too large"):
            writer.write(disk.mine, 2)
    finally:
        disk.clear()
    assert files(disk.mine).keys() <= before.keys() | {"shards/00001.jsonl"}
    check_whole(writer, disk.mine)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("name", WRITERS)
def test_a_process_killed_at_a_rename_leaves_the_old_version_or_the_new_one(here, name):
    """SIGKILL at the second rename, when one file is new and the next one is old."""
    writer = WRITERS[name]
    folder = here / "killed"
    folder.mkdir()
    writer.write(folder, 1)
    child = os.fork()
    if not child:
        calls = []

        def killing(rename):
            def call(*arguments, **how):
                calls.append(arguments)
                if len(calls) == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                return rename(*arguments, **how)

            return call

        os.replace = killing(os.replace)
        os.rename = killing(os.rename)
        writer.write(folder, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, -signal.SIGKILL)
    check_whole(writer, folder)


def outcome(folder) -> dict:
    """The files of a run; of each line of its log only what does not depend on the clock."""
    keys = ("step", "train", "val")
    return {
        name: [[json.loads(line)[key] for key in keys] for line in data.splitlines()]
        if name.endswith(".jsonl")
        else data
        for name, data in files(folder).items()
    }


def test_a_training_stopped_by_a_full_disk_resumes_to_the_same_bits(
    disk, corpus, monkeypatch, tmp_path
):
    whole = tmp_path / "whole"
    whole.mkdir()
    train(fresh(corpus), corpus, RECIPE, out=whole / "fox", device=CPU)
    size = (whole / "fox.safetensors").stat().st_size
    out = disk.mine / "fox"
    before = {}

    def fill():
        before.update(files(disk.mine))
        disk.fill(size // 2)

    with monkeypatch.context() as patch:
        stop_at(patch, 6, fill)
        with pytest.raises(OSError, match="make room"):
            train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    assert files(disk.mine) == before
    disk.clear()
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, resume=True)
    assert outcome(disk.mine) == outcome(whole)


# ------------------------------------------------------------------ files of the user's


STEPS = "--steps 2 --eval-every 1 --eval-batches 1 --recipe lecture --batch-size 1"
COMMANDS = {
    "export": "export ~/fox --out out",
    "lecture": "export ~/fox --form lecture --out out.safetensors",
    "run": "run --source notebooks --out out --profile smoke --no-html",
    "train": f"train --data ~/text.txt --out out --size article {STEPS}",
    "generate": "generate --checkpoint ~/fox --prompts ~/p.txt --out out --backend modules"
    " --max-new-tokens 2",
}


def go(command: str) -> int:
    write_notebook(Path("notebooks/00_one.ipynb"), "print(n)")
    return main(COMMANDS[command].split())


# The command, whether it has run before, a file of the user's, what is in it, the exit code.
IN_THE_WAY = [
    ("export", False, "out/notes.txt", "mine", 2),
    ("export", True, "out/notes.txt", "mine", 0),
    ("lecture", False, "out.safetensors", "mine", 2),
    ("run", False, "out/manifest.json", '{"notebooks": []}', 2),
    ("run", True, "out/figures/00_mine.png", "mine", 0),
    ("train", False, "out.json", '{"my": "notes"}', 2),
    ("train", False, "out.jsonl", '{"step": 0, "my": "log"}', 2),
    ("generate", False, "out/notes.txt", "mine", 2),
]


@pytest.mark.parametrize(("command", "before", "path", "text", "code"), IN_THE_WAY)
def test_a_file_of_the_user_s_is_not_overwritten(here, capsys, command, before, path, text, code):
    if before:
        assert go(command) == 0
    write_notebook(Path("notebooks/00_one.ipynb"), "print(n)")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
    was = contents(here)
    capsys.readouterr()
    assert go(command) == code
    assert Path(path).read_text(encoding="utf-8") == text
    if code == 2:
        assert contents(here) == was
        assert Path(path).stem in capsys.readouterr().err


@pytest.mark.parametrize("command", ["export", "lecture", "run", "generate"])
def test_a_command_can_be_repeated_and_leaves_no_other_files(here, command):
    assert go(command) == 0
    names = contents(here).keys()
    assert go(command) == 0
    assert contents(here).keys() == names


def link(path):
    outside = path.parents[1] / "thesis.tex"
    outside.write_text("mine", encoding="utf-8")
    path.symlink_to(outside)


def read_only(path):
    path.write_text("mine", encoding="utf-8")
    path.chmod(0o444)


# The changelog promises the first two and a file that was made read-only.
OBSTACLES = {
    "a link": link,
    "a pipe": lambda path: os.mkfifo(path),
    "a read-only file": read_only,
    "a folder": lambda path: path.mkdir(),
}
# A call that writes, and the file that is in its way.
WRITES = {
    "write_whole": (lambda: write_whole(Path("x"), b"new"), "x"),
    "save_checkpoint": (lambda: save("x"), "x.safetensors"),
    "the log of train": (lambda: trained("x"), "x.jsonl"),
}


@pytest.mark.skipif(os.name == "nt", reason="links and pipes of POSIX")
@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("writer", WRITES)
def test_an_obstacle_at_the_path_stays(here, writer, obstacle):
    call, name = WRITES[writer]
    OBSTACLES[obstacle](here / name)
    before = os.lstat(here / name)
    with pytest.raises((OSError, ValueError)):
        call()
    assert os.lstat(here / name) == before
    assert os.listdir(here) == [name]
    outside = here.parent / "thesis.tex"
    assert not outside.exists() or outside.read_text(encoding="utf-8") == "mine"


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_replaced_file_keeps_its_permissions(here):
    save("x")
    (here / "x.safetensors").chmod(0o640)
    save("x")
    assert stat.S_IMODE((here / "x.safetensors").stat().st_mode) == 0o640


# ------------------------------------------------------------------ names of files

# A call with a path that begins with ~, and a file that is in the home folder afterwards.
TILDES = {
    "load_checkpoint": (lambda: load_checkpoint(Path("~/fox.safetensors")), "fox.json"),
    "save_checkpoint": (lambda: save("~/new"), "new.safetensors"),
    "train": (lambda: trained("~/new"), "new.jsonl"),
    "a command": (lambda: main("export ~/fox --out ~/new".split()), "new/config.json"),
}


@pytest.mark.parametrize("door", TILDES)
def test_a_tilde_is_the_home_folder(here, door):
    call, expected = TILDES[door]
    call()
    assert (here.parent / "home" / expected).exists()
    assert not list(here.iterdir())


def test_a_tilde_in_a_variable_is_the_home_folder(here, monkeypatch):
    monkeypatch.setenv("NANOGPT_DATA", "~/text.txt")
    assert load_corpus().text == TEXT


@pytest.mark.parametrize(
    ("text", "meant"),
    [("~/x", "{home}/x"), ("x~", "x~"), ("./~/x", "{here}/~/x"), ("~nobody-of-this-name/x", None)],
)
def test_only_a_leading_tilde_is_a_home_folder(here, text, meant):
    if meant is None:
        with pytest.raises(ValueError, match="no such home folder; write the full path"):
            user_path(text)
        return
    expected = Path(meant.format(home=here.parent / "home", here=here))
    assert user_path(text) == expected


@pytest.mark.parametrize("name", ["a b", "-rf", "ü…"], ids=ascii)
def test_any_name_is_a_name(here, name):
    folder = here / name
    save(folder / name)
    assert load_checkpoint(folder / name).meta["step"] == 1200
    assert main(["export", f"./{name}/{name}", f"--out=./{name}/out"]) == 0
    assert [p.name for p in here.iterdir()] == [name]


# ------------------------------------------------------------------ files of other people's


def torch_file(path):
    torch.save({"model": torch.ones(3)}, path)


def cut_checkpoint(path):
    save(path.with_suffix(""))
    path.write_bytes(path.read_bytes()[:900])


def state(path):
    trained("run")
    Path("run-last.state.safetensors").rename(path)


# A file's name, what makes it, and two parts of the message. Each kind of foreign file is a row of
# tests/decoder/test_identify.py: here it is one, and what can become of our own files.
FOREIGN = {
    "nanoGPT's ckpt.pt": ("ckpt.pt", torch_file, "a PyTorch file", "torch.load"),
    "a cut checkpoint": ("x.safetensors", cut_checkpoint, "damaged", "fetch it"),
    "a state": ("x.safetensors", state, "the state of a training run", "resume"),
    "nothing": ("x.safetensors", lambda path: None, "no checkpoint at", "correct the path"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_that_is_no_checkpoint_is_named_in_one_line(here, capsys, case):
    name, make, *expected = FOREIGN[case]
    make(here / name)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(name)
    message = str(error.value)
    assert name in message
    assert len(message.splitlines()) == 1
    assert all(part in message for part in expected), message
    capsys.readouterr()
    assert main(["export", name, "--out", "o"]) == 2
    assert message in capsys.readouterr().err
    assert not (here / "o").exists()


@pytest.mark.parametrize("content", ["", '{"config": {"n_layer": 99}}'], ids=repr)
def test_the_json_beside_a_checkpoint_decides_nothing(here, content):
    save("fox")
    expected = load_checkpoint("fox")
    Path("fox.json").write_text(content, encoding="utf-8")
    found = load_checkpoint("fox")
    assert (found.meta, found.sha256) == (expected.meta, expected.sha256)


# What turns bytes into code, or into objects of any class.
MODULES = set("pickle dill cloudpickle marshal shelve joblib yaml runpy".split())
CALLS = {"eval", "exec", "compile", "__import__", "torch.jit.load", "torch.hub.load", "np.load"}


def dangers(path: Path) -> list[str]:
    """Where a module could turn bytes into code or into objects of any class."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found = [f"imports {name}" for name in imported if name.split(".")[0] in MODULES]
    for node in nodes:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            # With weights_only=True torch.load reads tensors and plain data: nanoGPT's ckpt.pt.
            safe = "weights_only=True" in ast.unparse(node)
            if called in CALLS or (called == "torch.load" and not safe):
                found.append(f"line {node.lineno}: {ast.unparse(node)[:60]}")
    return [f"{path.relative_to(PACKAGE)} {fault}" for fault in found]


def test_nothing_in_the_package_can_unpickle_or_run_what_it_reads():
    """Except the user's own code, outputs/mine/lesson.py."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.name != "editing.py"]
    assert [fault for path in paths for fault in dangers(path)] == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("x" * 300, r"a file in \. is too long: choose a shorter one"),
        ("x" * 300 + "/y", "a file in x{80}… is too long: choose a shorter one"),
        ("a\0b", "a path has no null byte"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused_before_anything_looks_there(path, message):
    for call in (
        lambda: user_path(path),
        lambda: load_checkpoint(path),
        lambda: save_checkpoint(path, tiny_model(), {}),
    ):
        with pytest.raises((OSError, ValueError), match=message):
            call()
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        named(path)
