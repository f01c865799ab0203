"""The files that the package writes: whole or not at all, and never over a file of the user's.

`~` is the home folder, and a name is a name. Foreign files: tests/decoder/test_identify.py.
"""

import argparse
import json
import os
import stat
from pathlib import Path

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from fault_fixtures import contents
from notebook_fixtures import run_cells_here
from notebook_fixtures import write as write_notebook
from training_fixtures import CPU, fresh, stop_at

from nanogpt import TrainConfig, load_checkpoint, save_checkpoint, train
from nanogpt.cli import main
from nanogpt.cli.common import named
from nanogpt.files import user_path, write_whole
from nanogpt.series import execute

RECIPE = TrainConfig(steps=12, batch_size=4, eval_every=4, eval_batches=1, warmup=3)
TEXT = "the quick brown fox jumps over the lazy dog.\n" * 120


def save(path):
    model = tiny_model()
    save_checkpoint(path, model, meta_of(model))


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
    monkeypatch.setenv("NANOGPT_DATA", str(home / "text.txt"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setattr(execute.Strict, "execute_managed_notebook", run_cells_here)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


# ------------------------------------------------------------------ a full disk
# That a write is whole or has not happened, whatever stops it: lesson/test_files.py. A killed run:
# training/test_state.py, a killed job: serving/test_jobs.py.


def outcome(folder) -> dict:
    """The files of a run; of each line of its log only what does not depend on the clock."""
    keys = ("step", "train", "val")
    return {
        name: [[json.loads(line)[key] for key in keys] for line in data.splitlines()]
        if name.endswith(".jsonl")
        else data
        for name, data in contents(folder).items()
    }


def test_a_training_stopped_by_a_full_disk_resumes_to_the_same_bits(
    disk, corpus, monkeypatch, tmp_path
):
    """Half of a checkpoint still fits."""
    whole = tmp_path / "whole"
    whole.mkdir()
    train(fresh(corpus), corpus, RECIPE, out=whole / "fox", device=CPU)
    size = (whole / "fox.safetensors").stat().st_size
    out = disk.mine / "fox"
    before = {}

    def fill():
        before.update(contents(disk.mine))
        disk.fill(size // 2)

    with monkeypatch.context() as patch:
        stop_at(patch, 6, fill)
        with pytest.raises(OSError, match="make room"):
            train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    assert contents(disk.mine) == {k: v for k, v in before.items() if not k.endswith(".lock")}
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


# What is there, as the message says it. The changelog promises the first two and a file that was
# made read-only.
OBSTACLES = {
    "a link to": link,
    "a pipe or a device": lambda path: os.mkfifo(path),
    "read-only": read_only,
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_an_obstacle_at_the_path_stays(here, obstacle):
    OBSTACLES[obstacle](here / "x")
    before = os.lstat(here / "x")
    with pytest.raises(FileExistsError, match=f"x is {obstacle}"):
        write_whole(Path("x"), b"new")
    assert os.lstat(here / "x") == before
    assert os.listdir(here) == ["x"]
    if obstacle == "a link to":
        assert (here.parent / "thesis.tex").read_text(encoding="utf-8") == "mine"


def test_a_replaced_file_keeps_its_permissions(here):
    save("x")
    (here / "x.safetensors").chmod(0o640)
    save("x")
    assert stat.S_IMODE((here / "x.safetensors").stat().st_mode) == 0o640


# ------------------------------------------------------------------ names of files


def test_a_tilde_is_the_home_folder(here):
    assert main("export ~/fox --out ~/new".split()) == 0
    assert (here.parent / "home" / "new" / "config.json").exists()
    assert not list(here.iterdir())


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


def test_any_name_is_a_name(here):
    name = "-r ü…"
    save(here / name / name)
    assert load_checkpoint(here / name / name).meta["step"] == 1200
    assert main(["export", f"./{name}/{name}", f"--out=./{name}/out"]) == 0
    assert [path.name for path in here.iterdir()] == [name]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("x" * 300, r"a file in \. is too long: choose a shorter one"),
        ("x" * 300 + "/y", "a file in x{80}… is too long: choose a shorter one"),
        ("a\0b", "no path can be called that"),
        ("\ud800", "no path can be called that"),
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
