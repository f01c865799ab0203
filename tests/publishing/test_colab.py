"""A notebook on its own: an empty folder, no package installed, the repository behind an address."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from notebook_fixtures import NOTEBOOKS, code, write

from nanogpt.config import REPO
from nanogpt.publishing import mirror, nbfile
from nanogpt.publishing.execute import QUIET, kernel_environment
from nanogpt.system.files import ROOT

NAME = REPO.split("/")[1]


def git(*words, cwd=None):
    done = subprocess.run(["git", *map(str, words)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """This work tree, as it is now, behind a file:// address."""
    folder = tmp_path_factory.mktemp("address")
    if not (ROOT / ".git").exists():
        pytest.skip("this copy is no git repository")
    files = git("ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT).split(
        "\0"
    )
    for file in filter(None, files):
        if (ROOT / file).is_file():
            (folder / "work" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / "work" / file)
    git("init", "--quiet", "--initial-branch", "main", cwd=folder / "work")
    git("add", "--all", cwd=folder / "work")
    git(
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t",
        "commit",
        "--quiet",
        "--message",
        "now",
        cwd=folder / "work",
    )
    git("clone", "--quiet", "--bare", folder / "work", folder / "remote.git")
    return f"file://{folder / 'remote.git'}"


@pytest.fixture
def alone(tmp_path):
    """An empty folder to work in, outside the repository."""
    folder = tmp_path / "content"
    folder.mkdir()
    return folder


def open_alone(notebook, folder, *, parameters=None, **environment):
    """Run a notebook with `folder` as its place, as Colab does, and return it executed, beside its source."""
    names = (
        "PYTHONPATH",
        "NANOGPT_REPO",
        "NANOGPT_REF",
        "NANOGPT_CHECKPOINT",
        "CUBLAS_WORKSPACE_CONFIG",
    )
    with kernel_environment(
        {**dict.fromkeys(names), "NANOGPT_OUT": str(notebook.parent / "out"), **environment}
    ):
        return papermill.execute_notebook(
            str(notebook),
            str(notebook.with_name("executed.ipynb")),
            parameters or {},
            kernel_name="python3",
            cwd=str(folder),
            progress_bar=False,
            execution_timeout=600,
            config=QUIET,
        )


def printed(nb) -> str:
    return "".join(
        o.text for cell in nb.cells for o in cell.get("outputs", []) if o.output_type == "stream"
    )


def set_up(path, *more, repo=REPO):
    """A notebook of the set-up cell, and the cells given."""
    return write(
        path / "lone.ipynb", code(mirror.setup_cell(repo, "main"), "setup"), *more, parameters=None
    )


ASK = """import nanogpt, os, pathlib
print("from", pathlib.Path(nanogpt.__file__).parents[1].relative_to(pathlib.Path.cwd()))
print("paths", sum(p == str(root) for p in sys.path), os.environ["CUBLAS_WORKSPACE_CONFIG"])"""


@pytest.mark.skipif(not NOTEBOOKS, reason="there are no notebooks yet")
def test_a_lone_notebook_runs_and_runs_again(address, alone, tmp_path):
    lone = Path(shutil.copy(NOTEBOOKS[0], tmp_path / "lone.ipynb"))
    known = nbfile.read(lone).cells[3].source
    parameters = {"profile": "smoke"} | (
        {"n_new": 8} if re.search(r"^n_new: int", known, re.M) else {}
    )
    for _ in range(2):
        nb = open_alone(lone, alone, parameters=parameters, NANOGPT_REPO=address)
        assert "profile smoke" in printed(nb)
        assert [path.name for path in alone.iterdir()] == [NAME]


def test_set_up_twice_in_one_kernel(address, alone, tmp_path):
    again = code(mirror.setup_cell(REPO, "main"), "again")
    nb = open_alone(set_up(tmp_path, again, ASK), alone, NANOGPT_REPO=address)
    assert f"from {NAME}\n" in printed(nb)
    assert "paths 1 :4096:8\n" in printed(nb)
    assert [path.name for path in alone.iterdir()] == [NAME]


def test_set_up_inside_the_repository_fetches_nothing(tmp_path):
    ask = "print('root', root)"
    nb = open_alone(set_up(tmp_path, ask), ROOT / "notebooks", NANOGPT_REPO="file:///nowhere")
    assert f"root {ROOT}\n" in printed(nb)


def test_another_branch(address, alone, tmp_path):
    with pytest.raises(papermill.PapermillExecutionError) as failure:
        open_alone(set_up(tmp_path), alone, NANOGPT_REPO=address, NANOGPT_REF="v0")
    assert failure.value.ename == "RuntimeError"
    assert "Remote branch v0 not found" in failure.value.evalue
    assert list(alone.iterdir()) == []


@pytest.mark.parametrize(
    ("repo", "environment", "messages"),
    [
        (
            REPO,
            {"NANOGPT_REPO": "file:///no/x.git"},
            ["file:///no/x.git", "set NANOGPT_REPO"],
        ),
        ("OWNER_NAME/x", {}, ["make badges REPO=owner/name", "NANOGPT_REPO"]),
    ],
    ids=["an address without a repository", "no address yet"],
)
def test_a_bad_address_fails_at_once_and_leaves_nothing(
    alone, tmp_path, repo, environment, messages
):
    with pytest.raises(papermill.PapermillExecutionError) as failure:
        open_alone(set_up(tmp_path, "print('never')", repo=repo), alone, **environment)
    assert failure.value.ename == "RuntimeError"
    assert all(message in failure.value.evalue for message in messages), failure.value.evalue
    assert list(alone.iterdir()) == []
    executed = nbformat.read(tmp_path / "executed.ipynb", 4)
    assert "never" not in printed(executed)


def test_a_folder_of_that_name_is_not_overwritten(address, alone, tmp_path):
    (alone / NAME).mkdir()
    (alone / NAME / "mine.txt").write_text("mine")
    with pytest.raises(papermill.PapermillExecutionError):
        open_alone(set_up(tmp_path), alone, NANOGPT_REPO=address)
    assert [path.name for path in alone.iterdir()] == [NAME]
    assert (alone / NAME / "mine.txt").read_text() == "mine"


def test_an_interrupted_clone_leaves_nothing(alone, tmp_path):
    """A git that never ends, and a reader who loses patience."""
    slow = tmp_path / "bin"
    slow.mkdir()
    begin = 'for last; do :; done\nmkdir "$last"; echo > "$last/half"\n'
    (slow / "git").write_text(f"#!/bin/sh\n{begin}kill -INT $PPID; exec sleep 60\n")
    (slow / "git").chmod(0o755)
    script = tmp_path / "setup.py"
    script.write_text(mirror.setup_cell(REPO, "main"))
    environment = {
        **os.environ,
        "PATH": f"{slow}:{os.environ['PATH']}",
        "NANOGPT_REPO": "file:///slow",
    }
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=alone, env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
    assert list(alone.iterdir()) == []


def test_the_set_up_cell_is_short_and_never_installs():
    cell = mirror.setup_cell("ada/engine", "main")
    assert len([line for line in cell.splitlines() if line.strip()]) < 25
    assert "pip" not in cell
    assert max(map(len, cell.splitlines())) <= 110
