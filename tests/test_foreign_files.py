"""No command replaces or deletes a file that it did not write, whatever lies in its way.

Each case is an arrangement of somebody's files, links and half-written folders under a command.
Afterwards all of them have the bytes they had; where they are in the way the exit code is 2, the
message names one or counts it, and nothing at all has changed.
"""

import shutil
from pathlib import Path

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from fault_fixtures import contents
from notebook_fixtures import run_cells_here
from notebook_fixtures import write as write_notebook
from training_fixtures import TINY

from nanogpt import GPTConfig, save_checkpoint
from nanogpt.cli import bench_ladder, main
from nanogpt.config import SIZES
from nanogpt.files import sha256
from nanogpt.series import execute, plan, publish, runner

CELL = """
import os, pathlib
out = pathlib.Path(os.environ["NANOGPT_OUT"])
for name in ("figures/NN_a.png", "json/NN.json"):
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("made")
assert n != 9
"""
TEXT = "To be, or not to be.\n"
MINE = "mine"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a corpus, two notebooks and a checkpoint; the expensive work is left out."""
    here, repo = tmp_path / "here", tmp_path / "here" / "repo"
    here.mkdir()
    (here / "text.txt").write_text(TEXT * 100)
    monkeypatch.setenv("NANOGPT_DATA", str(here / "text.txt"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setattr(execute, "run_cells", run_cells_here)
    monkeypatch.setattr(bench_ladder, "ladder", lambda model, **_: {"rungs": [], "n_new": 1})
    monkeypatch.setattr(bench_ladder, "report", lambda result: "")
    monkeypatch.setitem(SIZES, "small", GPTConfig(**TINY))
    model = tiny_model()
    save_checkpoint(here / "fox", model, meta_of(model))
    for number in ("00", "01"):
        write_notebook(repo / "notebooks" / f"{number}_one.ipynb", CELL.replace("NN", number))
        monkeypatch.setattr(runner, "ROOT", repo)
    monkeypatch.setattr(runner, "PUBLISHED", repo / "outputs" / "published")
    monkeypatch.setattr(publish, "ROOT", repo)
    monkeypatch.setattr(publish, "BUILD", repo / "outputs" / "run" / "publish")
    monkeypatch.setattr(publish, "SHA256", sha256(here / "text.txt"))
    monkeypatch.setattr(plan, "seconds_of_work", lambda: 0.1)
    return here


STEPS = "--steps 2 --eval-every 1 --eval-batches 1 --recipe lecture --batch-size 1"
COMMANDS = {
    "export": "export {h}/fox --out {h}/out",
    "lecture": "export {h}/fox --form lecture --out {h}/out.safetensors",
    "run": "run --source {h}/repo/notebooks --out {h}/out --profile smoke",
    "failing": "run --source {h}/repo/notebooks --out {h}/out --profile smoke -p n=9",
    "publish": "run --publish",
    "site": "site {h}/out",
    "bench": "bench ladder --size small --json {h}/out.json",
    "train": f"train --data {{h}}/text.txt --out {{h}}/out --replace {STEPS}",
    "resume": f"train --data {{h}}/text.txt --out {{h}}/out --resume {STEPS}",
    "generate": "generate --checkpoint {h}/fox --prompts {h}/p.txt --out {h}/out --backend modules"
    " --max-new-tokens 2",
}


def go(here: Path, command: str) -> int:
    (here / "p.txt").write_text("\n".join("ab"))
    return main(COMMANDS[command].format(h=here).split())


def put(path: str, text: str = MINE):
    """Somebody's file at a path below the folder, new or in the place of another."""

    def arrange(here):
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_text(text)
        return [path]

    return arrange


def note(path: str):
    """Somebody adds a line to a file that was written."""

    def arrange(here):
        with open(here / path, "a") as file:
            file.write("\nmy note\n")
        return [path]

    return arrange


def link(path: str, folder: bool = True):
    """A link in the place of a file or folder, to somebody's file or folder elsewhere."""

    def arrange(here):
        outside = here.parent / "outside"
        outside.mkdir(exist_ok=True)
        (outside / "thesis.tex").write_text(MINE)
        there, path_ = here / path, outside if folder else outside / "thesis.tex"
        if there.is_dir() and not there.is_symlink():
            shutil.copytree(there, outside, dirs_exist_ok=True)
            shutil.rmtree(there)
        there.unlink(missing_ok=True)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.symlink_to(path_)
        return []

    return arrange


def lose(path: str):
    def arrange(here):
        (here / path).unlink()
        return []

    return arrange


def both(*parts):
    return lambda here: [path for part in parts for path in part(here)]


OURS = "repo/outputs/published"
CASES = [  # the command, whether it has run before, the arrangement, its exit code
    ("export", True, put("out/notes.txt"), 2),
    ("export", True, put("out/deep/notes.txt"), 2),
    ("export", True, note("out/README.md"), 2),
    ("export", True, note("out/nanogpt.json"), 2),
    ("export", True, put(".out-old/notes.txt"), 2),
    ("export", False, put(".out-old/notes.txt"), 2),
    ("export", False, put("out/nanogpt.json", "{}"), 2),
    ("export", False, both(put("out/nanogpt.json", "[]"), put("out/config.json")), 2),
    ("export", False, put("out"), 2),
    ("export", False, put(".out.lock"), 2),
    ("export", True, link("out/README.md", folder=False), 2),
    ("export", True, put("out-earlier-1/notes.txt"), 0),
    ("lecture", False, put("out.safetensors"), 2),
    ("lecture", True, note("out.safetensors"), 2),
    ("lecture", False, link("out.safetensors", folder=False), 2),
    ("run", False, put("out/00_one.ipynb"), 2),
    ("run", True, note("out/00_one.ipynb"), 2),
    ("run", True, note("out/figures/01_a.png"), 2),
    ("run", False, put("out/figures/01_a.png"), 1),
    ("run", True, put("out/figures/00_mine.png"), 0),
    ("run", False, put("out/manifest.json", '{"notebooks": []}'), 2),
    ("run", False, put("out/.running-old/notes.txt"), 0),
    ("run", False, put("out/.lock"), 2),
    ("run", False, link("out/.lock", folder=False), 2),
    *[("run", before, link(f"out/{x}"), 2) for x in ("figures", "json") for before in (0, 1)],
    *[("run", False, link(f"out/{x}"), 2) for x in ("checkpoints", "failed/00_one", "html")],
    ("failing", True, note("out/failed/00_one/00_one.ipynb"), 2),
    ("failing", False, put("out/failed/00_one/notes.txt"), 2),
    ("failing", False, link("out/failed"), 2),
    ("run", True, note("out/html/00_one.html"), 2),
    ("run", False, put("out/html/index.html"), 2),
    ("failing", False, put("out/html/01_one.html"), 2),  # noticed before the work
    ("site", True, note("out/html/index.html"), 2),
    ("site", True, put("out/html/07_mine.html", '<a class="brand" href="index.html"'), 0),
    ("site", True, link("out/html"), 2),
    ("publish", False, put(f"{OURS}/notes.txt"), 2),
    ("publish", True, put(f"{OURS}/notes.txt"), 2),
    ("publish", True, note(f"{OURS}/figures/00_a.png"), 2),
    ("publish", True, note(f"{OURS}/html/01_one.html"), 2),
    ("publish", True, put("repo/outputs/.published-old/notes.txt"), 2),
    ("publish", False, put("repo/outputs/run/publish/notes.txt"), 2),
    ("bench", False, put("out.json"), 2),
    ("bench", False, put("out.json", '{"environment": {}, "what": "ladder"}'), 2),
    ("bench", True, note("out.json"), 2),
    ("bench", False, link("out.json", folder=False), 2),
    ("train", False, put("out.safetensors"), 2),
    ("train", False, put("out.json", '{"my": "notes"}'), 2),
    ("train", False, put("out.jsonl"), 2),
    ("train", False, put("out-last.state.safetensors"), 2),
    ("train", True, note("out.json"), 2),
    ("train", True, lose("out-last.state.safetensors"), 2),
    ("train", False, link("out.safetensors", folder=False), 2),
    ("train", False, put(".out.lock"), 2),
    ("resume", True, lose("out-last.state.safetensors"), 2),
    ("resume", True, note("out-last.state.safetensors"), 2),
    ("resume", True, note("out-last.safetensors"), 2),
    ("generate", False, put("out/notes.txt"), 2),
    ("generate", True, note("out/shards/00000.jsonl"), 2),
    ("generate", True, note("out/job.json"), 2),
    ("generate", True, link("out/shards"), 2),
    ("generate", False, link("out/.lock", folder=False), 2),
]


@pytest.mark.parametrize(
    ("command", "before", "arrange", "code"),
    CASES,
    ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)],
)
def test_what_somebody_put_there_stays(here, capsys, command, before, arrange, code):
    if command == "site":
        assert go(here, "run") == 0
    if before:
        assert go(here, command) == (1 if command == "failing" else 0)
    named = arrange(here)
    capsys.readouterr()
    (here / "p.txt").write_text("\n".join("ab"))
    was = contents(here.parent)
    assert go(here, command) == code
    now, said = contents(here.parent), capsys.readouterr().err
    assert {f"here/{name}": now.get(f"here/{name}") for name in named}.items() <= was.items()
    assert now.get("outside/thesis.tex") == was.get("outside/thesis.tex")
    if code == 2:
        assert now == was
        assert not named or any(x in said for x in (*(Path(y).name for y in named), " more: "))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_repeated_and_leaves_nothing_beside(here, command):
    code = 1 if command == "failing" else 0
    assert command != "site" or go(here, "run") == 0
    assert go(here, command) == code
    names = contents(here).keys()
    assert go(here, command) == code
    assert contents(here).keys() == names


def test_an_export_into_empty_folders_leaves_nothing_beside(here):
    (here / "out" / "deep").mkdir(parents=True)
    names = {path.name for path in here.iterdir()} | {"p.txt"}
    assert go(here, "export") == 0
    (here / "out" / "deep").mkdir()
    assert go(here, "export") == 0
    assert {path.name for path in here.iterdir()} == names


def test_of_many_files_in_the_way_three_are_named(here, capsys):
    for i in range(1200):
        put(f"out/{i:04}.txt")(here)
    assert go(here, "export") == 2
    said = capsys.readouterr().err
    assert "0000.txt" in said
    assert "0002.txt and 1,197 more: this command did not" in said
    assert "0003.txt" not in said


@pytest.mark.parametrize("command", ["export", "run", "generate"])
@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_is_a_link_is_followed(here, capsys, command, there):
    real = here / "real"
    if there:
        real.mkdir()
    (here / "out").symlink_to(real)
    assert go(here, command) == 0
    assert (here / "out").readlink() == real
    name = next(path for path in real.iterdir() if path.suffix in (".json", ".ipynb"))
    name.write_text("{}")
    assert go(here, command) == 2
    assert "real" in capsys.readouterr().err
    assert name.read_text() == "{}"
