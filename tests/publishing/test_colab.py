"""A notebook on its own: an empty folder, no package installed, the repository at an address."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
import yaml
from notebook_fixtures import NOTEBOOKS, code

from nanogpt.config import REPO
from nanogpt.publishing import mirror
from nanogpt.publishing.execute import kernel_environment
from nanogpt.publishing.kernel import QUIET
from nanogpt.system.files import ROOT

REAL_CORPUS = True
NAME = REPO.split("/")[1]


def git(*words, cwd=None):
    done = subprocess.run(["git", *map(str, words)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def serve(work: Path) -> str:
    """The folder `work` as a repository behind a file:// address."""
    git("init", "--quiet", "--initial-branch", "main", cwd=work)
    git("add", "--all", cwd=work)
    somebody = ("-c", "user.name=t", "-c", "user.email=t@t")
    git(*somebody, "commit", "--quiet", "--message", "now", cwd=work)
    return f"file://{work}"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A repository with nothing in it but the file that the set-up cell looks for."""
    door = tmp_path_factory.mktemp("address") / "work" / "nanogpt" / "notebook" / "session.py"
    door.parent.mkdir(parents=True)
    door.touch()
    return serve(door.parents[2])


@pytest.fixture
def work_tree(tmp_path):
    """This work tree, as it is now, behind a file:// address."""
    if not (ROOT / ".git").exists():
        pytest.skip("this copy is not a git repository")
    kinds = ("--cached", "--others", "--exclude-standard", "-z")
    for file in filter(None, git("ls-files", *kinds, cwd=ROOT).split("\0")):
        if (ROOT / file).is_file():
            (tmp_path / "work" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / "work" / file)
    return serve(tmp_path / "work")


@pytest.fixture
def alone(tmp_path):
    """An empty folder to work in, outside the repository."""
    folder = tmp_path / "content"
    folder.mkdir()
    return folder


def set_up(folder, repo=REPO, path=None, **environment):
    """Run the set-up cell as a script, without its last lines: they load the package."""
    cell = mirror.setup_cell(repo, "main").partition("from nanogpt")[0]
    here = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    script = [sys.executable, "-c", f"{cell}\nprint('root', root, sys.path.count(str(root)))"]
    environment = {**here, **environment, "PATH": f"{path or ''}:{os.environ['PATH']}"}
    return subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True)


ASK = """print("from", Path(nanogpt.__file__).parents[1].relative_to(Path.cwd()))
print("paths", sum(p == str(root) for p in sys.path), os.environ["CUBLAS_WORKSPACE_CONFIG"])"""


@pytest.mark.slow
@pytest.mark.skipif(not NOTEBOOKS, reason="there are no notebooks yet")
def test_a_lone_notebook_runs_as_on_colab_and_its_set_up_runs_twice(work_tree, alone, tmp_path):
    nb = nbformat.read(NOTEBOOKS[0], 4)
    nb.cells += [code(mirror.setup_cell(REPO, "main"), "again"), code("import nanogpt", "door")]
    nb.cells.append(code(ASK, "ask"))
    nbformat.write(nb, tmp_path / "lone.ipynb")
    small = {"n_new": 8} if re.search(r"^n_new: int", nb.cells[3].source, re.M) else {}
    own = ("PYTHONPATH", "NANOGPT_REF", "NANOGPT_CHECKPOINT", "CUBLAS_WORKSPACE_CONFIG")
    places = {"NANOGPT_REPO": work_tree, "NANOGPT_OUT": str(tmp_path / "out")}
    with kernel_environment({**dict.fromkeys(own), **places}):
        done = papermill.execute_notebook(
            str(tmp_path / "lone.ipynb"),
            str(tmp_path / "executed.ipynb"),
            {"profile": "smoke", **small},
            kernel_name="python3",
            cwd=str(alone),
            progress_bar=False,
            execution_timeout=600,
            config=QUIET,
        )
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "profile smoke" in printed
    assert f"from {NAME}\n" in printed
    assert "paths 1 :4096:8\n" in printed
    assert [path.name for path in alone.iterdir()] == [NAME]


def test_a_second_run_takes_the_copy_that_is_there(address, alone):
    first = set_up(alone, NANOGPT_REPO=address)
    assert first.stdout == f"root {alone / NAME} 1\n", first.stderr
    assert set_up(alone, NANOGPT_REPO="file:///nowhere").stdout == first.stdout
    assert [path.name for path in alone.iterdir()] == [NAME]


def test_inside_the_repository_nothing_is_fetched():
    done = set_up(ROOT / "notebooks", NANOGPT_REPO="file:///nowhere")
    assert done.stdout == f"root {ROOT} 1\n", done.stderr


def test_a_copy_that_python_knows_serves_from_any_folder(alone):
    """As with papermill started elsewhere."""
    done = set_up(alone, NANOGPT_REPO="file:///nowhere", PYTHONPATH=str(ROOT))
    assert done.stdout == f"root {ROOT} 1\n", done.stderr


def test_another_projects_package_of_that_name_is_not_taken(address, alone):
    (alone / "nanogpt").mkdir()
    (alone / "nanogpt" / "__init__.py").write_text("raise SystemExit('not ours')")
    (alone / "work").mkdir()
    done = set_up(alone / "work", NANOGPT_REPO=address)
    assert done.stdout == f"root {alone / 'work' / NAME} 1\n", done.stderr


def test_an_address_is_no_option_of_git(alone, tmp_path):
    done = set_up(alone, NANOGPT_REPO=f"--upload-pack=touch {tmp_path}/run")
    assert "RuntimeError: cannot fetch main of --upload-pack" in done.stderr
    assert not (tmp_path / "run").exists()
    assert list(alone.iterdir()) == []


REFUSED = {
    "another branch": ({"NANOGPT_REF": "v0"}, ["Remote branch v0 not found"]),
    "an address without a repository": (
        {"NANOGPT_REPO": "file:///no/x.git"},
        ["file:///no/x.git", "set NANOGPT_REPO"],
    ),
    "no address yet": (
        {"repo": "OWNER_NAME/x", "NANOGPT_REPO": "https://github.com/OWNER_NAME/x"},
        ["no address", "%env NANOGPT_REPO=https://github.com/owner/name", "papermill --cwd"],
    ),
}


@pytest.mark.parametrize(("change", "messages"), REFUSED.values(), ids=REFUSED)
def test_a_bad_address_fails_at_once_and_leaves_nothing(address, alone, change, messages):
    done = set_up(alone, **({"NANOGPT_REPO": address} | change))
    assert "RuntimeError: " in done.stderr
    assert all(message in done.stderr for message in messages), done.stderr
    assert done.stdout == ""
    assert list(alone.iterdir()) == []


def test_a_folder_of_that_name_is_not_overwritten(address, alone):
    (alone / NAME).mkdir()
    (alone / NAME / "mine.txt").write_text("mine")
    assert set_up(alone, NANOGPT_REPO=address).returncode != 0
    assert [path.name for path in alone.iterdir()] == [NAME]
    assert (alone / NAME / "mine.txt").read_text() == "mine"


def test_an_interrupted_clone_leaves_nothing(alone, tmp_path):
    """A git that never ends, and a reader who loses patience."""
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    begin = 'for last; do :; done\nmkdir "$last"; echo > "$last/half"\n'
    slow.write_text(f"#!/bin/sh\n{begin}kill -INT $PPID; exec sleep 60\n")
    slow.chmod(0o755)
    done = set_up(alone, path=slow.parent, NANOGPT_REPO="file:///slow")
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr
    assert list(alone.iterdir()) == []


def test_the_set_up_cell_is_short_and_never_installs():
    cell = mirror.setup_cell("ada/engine", "main")
    assert len([line for line in cell.splitlines() if line.strip()]) < 28
    assert "pip" not in cell
    assert max(map(len, cell.splitlines())) <= 100


# ------------------------------------------------------------------ the address of a fork


@pytest.fixture
def fork(tmp_path):
    """A clone of a small part of this work tree, and the origin that it pushes to."""
    work, clone = tmp_path / "work", tmp_path / "clone"
    no_pyc = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "nanogpt", work / "nanogpt", ignore=no_pyc)
    for file in ("Makefile", "README.md", ".ci/address", *NOTEBOOKS[:2]):
        to = work / (ROOT / file).relative_to(ROOT)
        to.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, to)
    (work / "requirements.txt").touch()
    (work / "constraints.txt").touch()
    mirror.set_address("OWNER_NAME/nanogpt-notebooks", "main", work)
    serve(work)
    git("clone", "--quiet", "--bare", work, tmp_path / "origin")
    git("clone", "--quiet", tmp_path / "origin", clone)
    return clone


@pytest.mark.slow
def test_the_first_push_sets_the_address_and_the_next_ones_do_nothing(fork, tmp_path):
    """The script that the workflow runs, with the interpreter of these tests in place of .venv."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/address.yml").read_text())
    (script,) = [step["run"] for step in workflow["jobs"]["address"]["steps"] if "run" in step]
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "venv" / ".ready-ranges").touch()
    on_github = {"GITHUB_REPOSITORY": "ada/engine", "GITHUB_REF_NAME": "main"}
    environment = {**os.environ, **on_github, "VENV": str(tmp_path / "venv")}
    for _ in range(2):
        done = subprocess.run(
            ["bash", "-ec", script], cwd=fork, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert "the address is ada/engine already" in done.stdout
    pushed = git("log", "--format=%s", "main", cwd=tmp_path / "origin").splitlines()
    assert pushed == ["Badges and links: the address is ada/engine", "now"]
    assert git("status", "--porcelain", "--untracked-files=no", cwd=fork) == ""
    badge = f"{mirror.COLAB}/ada/engine/blob/main/notebooks/{NOTEBOOKS[0].name}"
    assert f"[00]: {badge}\n" in (fork / "README.md").read_text()
    for path in NOTEBOOKS[:2]:
        text = (fork / "notebooks" / path.name).read_text()
        assert "OWNER_NAME" not in text.replace('if \\"OWNER_NAME\\" in URL', "")
        assert text.count("https://github.com/ada/engine") == 2
