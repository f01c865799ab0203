"""A notebook on its own: an empty folder, no package installed, the repository at an address."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from notebook_fixtures import NOTEBOOKS, code

from nanogpt.files import ROOT
from nanogpt.series import execute, mirror

REAL_CORPUS = True
NAME = "nanogpt-notebooks"  # of the folder, before an address is set
# An editable installation names this copy to every Python of its environment.
FORGET = f"import sys; sys.path = [path for path in sys.path if path != {str(ROOT)!r}]"


def git(*words, cwd=None):
    done = subprocess.run(["git", *map(str, words)], cwd=cwd, capture_output=True, encoding="utf-8")
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
    door = tmp_path_factory.mktemp("address") / "work" / "nanogpt" / "course" / "__init__.py"
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


def cell_for(url: str, ref: str = "main") -> str:
    """The set-up cell of a repository at that address."""
    return mirror.setup_cell("", ref).replace('URL = ""', f"URL = {url!r}")


def set_up(folder, url, ref="main", **environment):
    """Run the set-up cell as a script, without its last line: it loads the package."""
    cell = cell_for(url, ref).partition("from nanogpt")[0]
    here = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    before = "" if environment.get("PYTHONPATH") else FORGET
    script = f"{before}\n{cell}\nprint('root', sys.path[0])"
    environment = {**here, **environment}
    words = [sys.executable, "-c", script]
    pipes = {"capture_output": True, "text": True}
    return subprocess.run(words, cwd=folder, env=environment, **pipes)


ASK = """import os
print("from", Path(nanogpt.__file__).parents[1].relative_to(Path.cwd()))
print("for a GPU", os.environ["CUBLAS_WORKSPACE_CONFIG"])"""


@pytest.mark.release
def test_a_lone_notebook_runs_as_on_colab_and_its_set_up_runs_twice(
    work_tree, alone, tmp_path, monkeypatch
):
    nb = nbformat.read(NOTEBOOKS[0], 4)
    nb.cells = [cell for cell in nb.cells if cell.metadata.get("nanogpt") != {"generated": "setup"}]
    nb.cells[1:1] = [code(cell_for(work_tree), name) for name in ("first", "again")]
    nb.cells.insert(1, code(FORGET, "forget"))
    nb.cells += [code("import nanogpt", "door"), code(ASK, "ask")]
    own = ("PYTHONPATH", "NANOGPT_CHECKPOINT", "CUBLAS_WORKSPACE_CONFIG")
    places = {"NANOGPT_OUT": str(tmp_path / "out")}
    monkeypatch.setattr(execute, "ROOT", alone)
    nbformat.write(nb, tmp_path / "lone.ipynb")
    less = {"profile": "smoke", "n_new": 8}
    variables = {**dict.fromkeys(own), **places}
    execute.execute(tmp_path / "lone.ipynb", tmp_path / "ran.ipynb", less, variables=variables)
    nb = nbformat.read(tmp_path / "ran.ipynb", 4)
    outputs = [output for cell in nb.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "profile smoke" in printed
    assert f"from {NAME}\n" in printed
    assert "for a GPU :4096:8\n" in printed
    assert [path.name for path in alone.iterdir()] == [NAME]


def test_the_setup_cell_fetches_nothing_if_a_copy_is_there(address, alone):
    """In the repository; where Python knows one (papermill, started elsewhere); again on Colab."""
    for folder, known in ((ROOT / "notebooks", ""), (alone, str(ROOT))):
        done = set_up(folder, "file:///nowhere", PYTHONPATH=known)
        assert done.stdout == f"root {ROOT}\n", done.stderr
    for url in (address, "file:///nowhere"):
        done = set_up(alone, url)
        assert done.stdout == f"root {alone / NAME}\n", done.stderr
    assert [path.name for path in alone.iterdir()] == [NAME]


REFUSED = {  # an address, a branch, and a word of what git says
    "another branch": (None, "v0", "Remote branch v0 not found"),
    "no repository there": ("file:///no/x.git", "main", "/no/x.git"),
    "no address yet": ("", "main", "repository ''"),
    "an option of git": ("--upload-pack=touch run", "main", "--upload-pack"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_bad_address_fails_at_once_and_leaves_nothing(address, alone, how):
    url, ref, message = REFUSED[how]
    done = set_up(alone, address if url is None else url, ref)
    assert "CalledProcessError: " in done.stderr
    assert message in done.stderr
    assert list(alone.iterdir()) == []


def test_the_setup_cell_neither_overwrites_a_folder_nor_imports_a_foreign_one(address, alone):
    """A folder of the repository's name, and another project's package of ours."""
    for mine in (alone / NAME / "mine.txt", alone / "nanogpt" / "__init__.py"):
        mine.parent.mkdir()
        mine.write_text("raise SystemExit('not ours')", encoding="utf-8")
    assert set_up(alone, address).returncode != 0
    assert [path.name for path in (alone / NAME).iterdir()] == ["mine.txt"]


def test_the_set_up_is_ten_lines():
    lines = [line for line in mirror.SETUP.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 10
