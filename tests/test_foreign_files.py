"""No file of the reader's is lost, wherever a command writes.

Each case is a file of theirs below a command. Afterwards it has the bytes it had; where it is in
the way the exit code is 2, the message names it, and nothing at all has changed.
"""

from pathlib import Path

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from fault_fixtures import contents
from notebook_fixtures import run_cells_here
from notebook_fixtures import write as write_notebook
from training_fixtures import TINY

from nanogpt import GPTConfig, save_checkpoint
from nanogpt.cli import bench, main
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
    here = tmp_path / "here"
    repo = tmp_path / "here" / "repo"
    here.mkdir()
    (here / "text.txt").write_text(TEXT * 250, encoding="utf-8")
    monkeypatch.setenv("NANOGPT_DATA", str(here / "text.txt"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setattr(execute.Strict, "execute_managed_notebook", run_cells_here)
    monkeypatch.setattr(bench, "ladder", lambda model, **_: {"rungs": [], "n_new": 1})
    monkeypatch.setattr(bench.reports, "ladder_text", lambda result: "")
    monkeypatch.setitem(SIZES, "small", GPTConfig(**TINY))
    model = tiny_model()
    save_checkpoint(here / "fox", model, meta_of(model))
    for number in ("00", "01"):
        write_notebook(repo / "notebooks" / f"{number}_one.ipynb", CELL.replace("NN", number))
        monkeypatch.setattr(runner, "ROOT", repo)
    monkeypatch.setattr(runner, "PUBLISHED", repo / "outputs" / "published")
    monkeypatch.setattr(publish, "ROOT", repo)
    monkeypatch.setattr(publish, "BUILD", repo / "outputs" / "run")
    monkeypatch.setattr(publish, "SHA256", sha256(here / "text.txt"))
    monkeypatch.setattr(plan, "seconds_of_work", lambda: 0.1)
    return here


STEPS = "--steps 2 --eval-every 1 --eval-batches 1 --recipe lecture --batch-size 1"
COMMANDS = {
    "export": "export {h}/fox --out {h}/out",
    "export --overwrite": "export {h}/fox --out {h}/out --overwrite",
    "lecture": "export {h}/fox --form lecture --out {h}/out.safetensors",
    "run": "run --source {h}/repo/notebooks --out {h}/out --profile smoke",
    "failing": "run --source {h}/repo/notebooks --out {h}/out --profile smoke -p n=9",
    "publish": "run --publish",
    "site": "site {h}/out",
    "bench": "bench ladder --size small --json {h}/out.json",
    "train": f"train --data {{h}}/text.txt --out {{h}}/out {STEPS}",
    "train --overwrite": f"train --data {{h}}/text.txt --out {{h}}/out --overwrite {STEPS}",
    "resume": f"train --data {{h}}/text.txt --out {{h}}/out --resume {STEPS}",
    "generate": "generate --checkpoint {h}/fox --prompts {h}/p.txt --out {h}/out --backend modules"
    " --max-new-tokens 2",
}


def go(here: Path, command: str) -> int:
    (here / "p.txt").write_text("\n".join("ab"), encoding="utf-8")
    return main([word.format(h=here) for word in COMMANDS[command].split()])


def put(path: str, text: str = MINE):
    """Somebody's file at a path below the folder, new or in the place of another."""

    def arrange(here):
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_text(text, encoding="utf-8")
        return [path]

    return arrange


def link(path: str):
    """A link in the place of a file, to somebody's file elsewhere."""

    def arrange(here):
        outside = here.parent / "thesis.tex"
        outside.write_text(MINE, encoding="utf-8")
        (here / path).symlink_to(outside)
        return []

    return arrange


CASES = [  # the command, whether it has run before, the arrangement, its exit code
    ("export", False, put("out/notes.txt"), 2),
    ("export", True, put("out/notes.txt"), 0),
    ("export --overwrite", False, put("out/notes.txt"), 0),
    ("export", False, put("out/nanogpt.json", "{}"), 2),
    ("lecture", False, put("out.safetensors"), 2),
    ("lecture", False, link("out.safetensors"), 2),
    ("run", False, put("out/manifest.json", '{"notebooks": []}'), 2),
    ("run", True, put("out/.running-ab12cd34/notes.txt"), 0),
    ("run", True, put("out/figures/00_mine.png"), 0),
    ("failing", True, put("out/failed/00_one/notes.txt"), 0),
    ("site", True, put("out/html/07_mine.html"), 0),
    ("publish", True, put("repo/outputs/published/notes.txt"), 0),
    ("bench", False, put("out.json", '{"environment": {}}'), 2),
    ("train", False, put("out.json", '{"my": "notes"}'), 2),
    ("train", False, put("out.jsonl"), 2),
    ("train", False, put("out.jsonl", '{"step": 0, "my": "log"}'), 2),
    ("train", True, put("out.jsonl"), 2),
    ("train --overwrite", True, put("out-notes.jsonl"), 0),
    ("generate", False, put("out/notes.txt"), 2),
    ("generate", True, put("out/shards/00000.jsonl"), 2),
]


@pytest.mark.parametrize(
    ("command", "before", "arrange", "code"),
    CASES,
    ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)],
)
def test_a_file_of_the_reader_stays(here, capsys, command, before, arrange, code):
    if command == "site":
        assert go(here, "run") == 0
    if before:
        assert go(here, command) == (1 if command == "failing" else 0)
    named = arrange(here)
    capsys.readouterr()
    (here / "p.txt").write_text("\n".join("ab"), encoding="utf-8")
    was = contents(here.parent)
    assert go(here, command) == (1 if command == "failing" else code)
    now = contents(here.parent)
    said = capsys.readouterr().err
    assert {f"here/{name}": now.get(f"here/{name}") for name in named}.items() <= was.items()
    assert now.get("thesis.tex") == was.get("thesis.tex")
    if code == 2:
        assert now == was
        assert all(Path(name).name.partition(".")[0] in said for name in named)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "train"])
def test_a_command_can_be_repeated_and_leaves_nothing_beside(here, command):
    code = 1 if command == "failing" else 0
    assert command != "site" or go(here, "run") == 0
    assert go(here, command) == code
    names = contents(here).keys()
    assert go(here, command) == code
    assert contents(here).keys() == names


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_is_a_link_is_followed(here, there):
    real = here / "real"
    if there:
        real.mkdir()
    (here / "out").symlink_to(real)
    assert go(here, "run") == 0
    assert (here / "out").readlink() == real
    assert (real / "00_one.ipynb").is_file()
