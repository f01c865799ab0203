"""What `pip install .` gives: the package, its C++ and templates, the weights that ship."""

import re
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest

from nanogpt import complete, load_checkpoint
from nanogpt.files import PACKAGE, ROOT

pytest.importorskip("hatchling", reason="the build backend comes with .[test]")
PROGRAM = """
from nanogpt import complete, load_checkpoint
saved = load_checkpoint()
print(complete(saved.model, saved.tokenizer.encode("ROMEO:")[None], 20).tolist())
"""
WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {"nbformat", "jinja2", "matplotlib", "prometheus_client"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from nanogpt.cli import main
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*build, "-w", folder], cwd=ROOT, check=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.mark.slow
def test_a_wheel_has_every_file_of_the_package_and_asks_for_what_the_lesson_imports(wheel):
    files = {p.relative_to(PACKAGE.parent).as_posix() for p in PACKAGE.rglob("*") if p.is_file()}
    missing = {name for name in files if "__pycache__" not in name} - set(wheel.namelist())
    assert not missing
    name = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    needed = Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist")
    plain = {re.match(r"[\w-]+", line)[0] for line in needed if "extra ==" not in line}
    assert plain == {"torch", "numpy", "safetensors", "tqdm", "filelock", "platformdirs"}


@pytest.mark.slow
def test_an_installed_copy_writes_the_same_text_somewhere_else(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path / "elsewhere",
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        encoding="utf-8",
    )
    saved = load_checkpoint()
    ours = complete(saved.model, saved.tokenizer.encode("ROMEO:")[None], 20).tolist()
    assert done.stdout.strip() == str(ours), done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("words", [["run"], ["sync", "--check"]], ids=" ".join)
def test_what_needs_the_notebooks_says_so_and_how_to_get_them(wheel, tmp_path, words):
    wheel.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-m", "nanogpt", *words]
    env = {"PYTHONPATH": str(tmp_path / "site")}
    options = {"cwd": tmp_path / "elsewhere", "capture_output": True, "text": True}
    done = subprocess.run(command, env=env, **options)
    assert (done.returncode, done.stdout) == (2, "")
    assert "git clone the repository" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("words", ["run --plan", "serve"])
def test_a_command_that_needs_an_extra_names_it(words, tmp_path):
    """As in an environment with the wheel's own dependencies alone."""
    command = [sys.executable, "-c", f"{WITHOUT_EXTRAS}\nsys.exit(main({words.split()}))"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, encoding="utf-8"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r'error: .* not installed: pip install "nanogpt-notebooks\[notebooks\]"\n', done.stderr
    )
