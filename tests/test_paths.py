"""Paths as people write them, and what they already have there.

`~` is the home folder at every door. What is in the way, be it a link, a pipe or a file that was
made read-only, stays as it is. What is no checkpoint of ours is named, with what to do.
"""

import os
import stat
from pathlib import Path

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from training_fixtures import CPU, fresh

from nanogpt import TrainConfig, load_checkpoint, load_corpus, save_checkpoint, train
from nanogpt.cli import main
from nanogpt.cluster.job import Job, Task, read_prompts
from nanogpt.decoder.checkpoint import CheckpointError
from nanogpt.engines.toolchain import cache_folder
from nanogpt.export.huggingface import write_folder
from nanogpt.files import path_in, user_path, write_whole
from nanogpt.series.mine import lesson_path
from nanogpt.series.session import open_run

RECIPE = TrainConfig(steps=2, batch_size=4, eval_every=2, eval_batches=1, warmup=1)
TEXT = "the quick brown fox jumps over the lazy dog.\n" * 40


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder, beside a home folder with a text, prompts and a checkpoint."""
    home = tmp_path / "home"
    for folder in (home, tmp_path / "here"):
        folder.mkdir()
    (home / "text.txt").write_text(TEXT, encoding="utf-8")
    (home / "p.txt").write_text("a\nb", encoding="utf-8")
    model = tiny_model()
    save_checkpoint(home / "fox", model, meta_of(model))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("NANOGPT_DATA", str(home / "text.txt"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def command(words: str, expected: int = 0):
    return lambda: main(words.split()) == expected or pytest.fail(f"{words}: exit code")


def with_variable(name: str, value: str, call):
    def called():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, value)
            return call()

    return called


def saved(path):
    model = tiny_model()
    save_checkpoint(path, model, meta_of(model))


def trained(path, **more):
    corpus = load_corpus()
    return train(fresh(corpus), corpus, RECIPE, out=path, device=CPU, **more)


FAST = "--size article --steps 1 --eval-every 1 --eval-batches 1 --batch-size 1"
DOORS = {  # a call with a path that begins with ~, and a file that is in the home folder after it
    "load_checkpoint": (lambda: load_checkpoint("~/fox"), "fox.json"),
    "load_checkpoint, a Path": (lambda: load_checkpoint(Path("~/fox.safetensors")), "fox.json"),
    "save_checkpoint": (lambda: saved("~/new"), "new.safetensors"),
    "train": (lambda: trained("~/new"), "new.safetensors"),
    "load_corpus": (lambda: load_corpus("~/text.txt"), "text.txt"),
    "NANOGPT_DATA": (with_variable("NANOGPT_DATA", "~/text.txt", load_corpus), "text.txt"),
    "NANOGPT_OUT": (with_variable("NANOGPT_OUT", "~/o", lambda: open_run("00")), "o"),
    "NANOGPT_MINE": (
        with_variable("NANOGPT_MINE", "~/m", lambda: lesson_path().parent.mkdir()),
        "m",
    ),
    "NANOGPT_CACHE": (with_variable("NANOGPT_CACHE", "~/c", lambda: cache_folder().mkdir()), "c"),
    "write_folder": (lambda: write_folder(load_checkpoint("~/fox"), "~/new"), "new/config.json"),
    "read_prompts": (lambda: read_prompts("~/p.txt"), "p.txt"),
    "Job": (lambda: Job("~/job", [("a", 1)], Task("x", "0")).opened().__enter__(), "job/job.json"),
    "train --out --data": (command(f"train --data ~/text.txt --out ~/new {FAST}"), "new.json"),
    "export": (command("export ~/fox --out ~/new"), "new/config.json"),
    "lecture": (command("export ~/fox --form lecture --out ~/new.safetensors"), "new.safetensors"),
    "generate": (
        command(
            "generate --checkpoint ~/fox --prompts ~/p.txt --out ~/new --max-new-tokens 2"
            " --backend modules"
        ),
        "new/shards/00000.jsonl",
    ),
    "verify model": (command("verify model ~/fox --seconds 1 --json ~/new.json"), "new.json"),
    "verify certificate": (
        command("verify certificate ~/none.html --checkpoint ~/fox", 2),
        "fox.json",
    ),
    "verify sweep": (command("verify sweep --sequences 1 --json ~/new.json"), "new.json"),
    "site": (command("site ~/none", 2), "fox.json"),
    "bench": (command("bench ladder --checkpoint ~/none --json ~/new.json", 2), "fox.json"),
}


SLOW = ("verify model", "verify sweep")


@pytest.mark.parametrize(
    "door", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in DOORS]
)
def test_a_tilde_is_the_home_folder_at_every_door(here, door, capsys):
    call, expected = DOORS[door]
    call()
    assert (here.parent / "home" / expected).exists()
    assert not list(here.iterdir()), "the current directory"
    assert "~" not in capsys.readouterr().err


HOMES = [  # what is written, and what is meant; None: refused
    ("~", "{home}"),
    ("~/x", "{home}/x"),
    ("x~", "x~"),
    ("x/~/y", "x/~/y"),
    ("./~/x", "{here}/~/x"),
    ("./~x.txt", "{here}/~x.txt"),
    ("~nobody-of-this-name/x", None),
    ("~nobody-of-this-name", None),
    ("$HOME/x", "$HOME/x"),
]


@pytest.mark.parametrize(("text", "meant"), HOMES)
def test_what_a_tilde_means(here, text, meant):
    if meant is None:
        with pytest.raises(ValueError, match="no such home folder; write the full path"):
            user_path(text)
        return
    expected = Path(meant.format(home=here.parent / "home", here=here))
    assert user_path(text) == expected
    assert user_path(user_path(text)) == expected, "once more changes nothing"


def test_a_user_without_a_home_folder_has_builds_elsewhere_and_no_folder_named_tilde(
    here, monkeypatch
):
    for name in ("HOME", "USERPROFILE", "NANOGPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where no user is known
    assert cache_folder().is_absolute()
    assert not str(cache_folder()).startswith(str(here))
    with pytest.raises(ValueError, match="no such home folder"):
        load_checkpoint("~/fox")


def test_a_variable_with_a_relative_path_names_one_file_wherever_one_goes(here, monkeypatch):
    monkeypatch.setenv("NANOGPT_DATA", "text.txt")
    assert path_in("NANOGPT_DATA") == here / "text.txt"
    monkeypatch.delenv("NANOGPT_DATA")
    assert path_in("NANOGPT_DATA") is None


NAMES = ["a b", "a$HOME", "-rf", "a\nb", "a'\"b", "ü…", "a;b", "*", "%s", "{x}", "n" * 200]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_name_is_a_name(here, name):
    folder = here / name
    saved(folder / name)
    assert load_checkpoint(folder / name).meta["step"] == 1200
    assert main(["export", f"./{name}/{name}", f"--out=./{name}/out"]) == 0
    assert main(["export", f"./{name}/{name}", f"--out=./{name}/out"]) == 0, "and again"
    trained(folder / "run")
    trained(folder / "run", resume=True)
    assert sorted(p.name for p in here.iterdir()) == [name]


def test_a_name_that_is_too_long_says_so(here, capsys):
    with pytest.raises(OSError, match="is too long: choose a shorter one"):
        write_whole(here / ("n" * 250), b"")
    assert main(["export", "~/fox", "--out", "n" * 300]) == 2
    assert "too long" in capsys.readouterr().err


# ------------------------------------------------------------------ what is in the way


def link(path):
    outside = path.parents[1] / "outside"
    outside.write_text("mine", encoding="utf-8")
    path.symlink_to(outside)


def read_only(path):
    path.write_text("mine", encoding="utf-8")
    path.chmod(0o444)


OBSTACLES = {
    "a link": link,
    "a dangling link": lambda path: path.symlink_to("/nowhere/at/all"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a read-only file": read_only,
}
WRITERS = {  # a call that writes below the folder one is in, and the file that is in the way
    "write_whole": (lambda: write_whole(Path("x"), b"new"), "x"),
    "save_checkpoint": (lambda: saved("x"), "x.safetensors"),
    "its metadata": (lambda: saved("x"), "x.json"),
    "train": (lambda: trained("x"), "x.safetensors"),
    "its log": (lambda: trained("x"), "x.jsonl"),
    "its newest": (lambda: trained("x"), "x-last.json"),
    "its state": (lambda: trained("x"), "x-last.state.safetensors"),
    "export, a new folder": (lambda: write_folder(load_checkpoint("~/fox"), "."), "README.md"),
    "export, weights": (lambda: write_folder(load_checkpoint("~/fox"), "."), "model.safetensors"),
    "lecture": (command("export ~/fox --form lecture --out x.safetensors"), "x.safetensors"),
    "lecture --overwrite": (
        command("export ~/fox --form lecture --overwrite --out x.safetensors"),
        "x.safetensors",
    ),
    "verify --json": (command("verify model ~/fox --seconds 1 --json x.json"), "x.json"),
    "verify kinds": (command("verify kinds gpt2 --folder ."), "README.md"),
    "bench --json": (command("bench ladder --json x.json"), "x.json"),
    "generate": (
        command("generate --checkpoint ~/fox --prompts ~/p.txt --out . --backend modules"),
        "job.json",
    ),
}


def shape_of(folder: Path) -> dict:
    """What is at each path: its kind, its target or its bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = os.lstat(path).st_mode
        content = os.readlink(path) if path.is_symlink() else ""
        content = path.read_bytes() if stat.S_ISREG(mode) else content
        found[str(path.relative_to(folder))] = (stat.S_IFMT(mode), content)
    return found


@pytest.mark.skipif(os.name == "nt", reason="links and pipes of POSIX")
@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_in_the_way_stays(here, writer, obstacle):
    call, name = WRITERS[writer]
    OBSTACLES[obstacle](here / name)
    before = shape_of(here.parent)
    with pytest.raises((OSError, ValueError, pytest.fail.Exception)):
        call()
    assert shape_of(here.parent) == before


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_file_keeps_its_permissions(here):
    saved("x")
    (here / "x.safetensors").chmod(0o640)
    saved("x")
    assert stat.S_IMODE((here / "x.safetensors").stat().st_mode) == 0o640
    before = os.umask(0o277)
    try:
        write_whole(here / "y", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((here / "y").stat().st_mode) == 0o400


# ------------------------------------------------------------------ what is no checkpoint of ours


def write(data: bytes):
    return lambda path: path.write_bytes(data)


def torch_file(path, **how):
    torch.save({"model": torch.ones(3)}, path, **how)


def cut(maker, n=300):
    def make(path):
        maker(path)
        path.write_bytes(path.read_bytes()[:n])

    return make


def folder_of(*names):
    def make(path):
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text("{}", encoding="utf-8")

    return make


def unreadable(path):
    path.write_text("x", encoding="utf-8")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user reads every file")


def of_training(path):
    trained("run")
    (Path("run-last.state.safetensors")).rename(path)


FOREIGN = {  # a file's name, what makes it, and two parts of what is said
    "nanoGPT's ckpt.pt": ("ckpt.pt", torch_file, "a PyTorch file", "torch.load"),
    "an old torch.save": (
        "ckpt.pt",
        lambda p: torch_file(p, _use_new_zipfile_serialization=False),
        "a pickle",
        "torch.load",
    ),
    "torch.save under our suffix": ("x.safetensors", torch_file, "a PyTorch file", "torch.load"),
    "a cut torch.save": ("ckpt.pt", cut(torch_file), "truncated or damaged zip", "again"),
    "pytorch_model.bin": ("pytorch_model.bin", torch_file, "a PyTorch file", "torch.load"),
    "GGUF": ("m.gguf", write(b"GGUF\x03\0\0\0"), "a GGUF file", "train"),
    "a web page": ("x.safetensors", write(b"\n<!DOCTYPE html>"), "a web page", "download"),
    "Git LFS": (
        "x.safetensors",
        write(b"version https://git-lfs.github.com/spec/v1\n"),
        "a Git LFS pointer",
        "git lfs pull",
    ),
    "an empty file": ("x.safetensors", write(b""), "an empty file", "again"),
    "a text": ("notes.txt", write(b"To be"), "another file", "train"),
    "JSON alone": ("x.json", write(b'{"a": 1}'), "JSON", ".safetensors"),
    "a folder of transformers": ("llama", folder_of("config.json"), "transformers", "verify model"),
    "a folder of checkpoints": ("runs", folder_of("a.safetensors"), "a folder", "a.safetensors"),
    "another folder": ("stuff", folder_of("a/b.txt"), "a folder without checkpoints", "train"),
    "a dangling link": (
        "x.safetensors",
        lambda p: p.symlink_to("/nowhere/x"),
        "a link to /nowhere/x, which does not exist",
        "fix",
    ),
    "a link to itself": (
        "x.safetensors",
        lambda p: p.symlink_to("x.safetensors"),
        "a link",
        "fix",
    ),
    "a pipe": ("x.safetensors", os.mkfifo if os.name != "nt" else None, "a pipe", "train"),
    "an unreadable file": ("x.safetensors", unreadable, "cannot be read", "owner"),
    "a cut checkpoint": (
        "x.safetensors",
        lambda p: cut(lambda q: saved(q.with_suffix("")), 900)(p),
        "damaged",
        "fetch it",
    ),
    "a state": ("x.safetensors", of_training, "the state of a training run", "resume"),
    "nothing": ("x.safetensors", lambda p: None, "no checkpoint at", "correct the path"),
}
READERS = {
    "load_checkpoint": load_checkpoint,
    "generate": lambda path: main(["generate", "--checkpoint", str(path), "--out", "o"]),
    "verify model": lambda path: main(["verify", "model", str(path), "--seconds", "1"]),
    "export": lambda path: main(["export", str(path), "--out", "o"]),
}


@pytest.mark.skipif(os.name == "nt", reason="links and pipes of POSIX")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_no_checkpoint_of_ours_is_named_in_a_line(here, capsys, case, reader):
    name, make, *expected = FOREIGN[case]
    if reader == "verify model" and case == "a folder of transformers":
        pytest.skip("it reads those")
    if reader == "verify model" and name.endswith((".gguf", ".pt")):
        expected = []  # it reads such files, and says what is wrong with this one
    make(here / name)
    capsys.readouterr()
    if reader == "load_checkpoint":
        with pytest.raises(CheckpointError) as error:
            load_checkpoint(name)
        said = str(error.value)
    else:
        assert READERS[reader](name) == 2
        said = capsys.readouterr().err.removesuffix("\n")
    assert name in said
    assert len(said.splitlines()) == 1
    assert all(part in said for part in expected), said
    assert not (here / "o").exists()


def test_a_folder_with_a_slash_behind_it_is_the_same_folder(here):
    folder_of("config.json")(here / "llama")
    with pytest.raises(CheckpointError, match="a Hugging Face transformers folder"):
        load_checkpoint("llama/")
