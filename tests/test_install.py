"""An installed copy, a command without its extra, and environments that people have."""

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest

from nanogpt import complete, load_checkpoint
from nanogpt.files import PACKAGE, ROOT

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
    pytest.importorskip("hatchling", reason="the build backend comes with .[test]")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*build, "-w", folder], cwd=ROOT, check=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.mark.release
def test_a_wheel_has_every_file_of_the_package_and_requires_the_imports_of_the_lesson(wheel):
    files = {p.relative_to(PACKAGE.parent).as_posix() for p in PACKAGE.rglob("*") if p.is_file()}
    missing = {name for name in files if "__pycache__" not in name} - set(wheel.namelist())
    assert not missing
    name = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    needed = Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist")
    plain = {re.match(r"[\w-]+", line)[0] for line in needed if "extra ==" not in line}
    assert plain == {"torch", "numpy", "safetensors", "tqdm", "filelock", "platformdirs"}


@pytest.mark.release
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


@pytest.mark.release
def test_a_command_that_needs_the_notebooks_names_the_repository(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "nanogpt", "run"],
        env={"PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "git clone the repository" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_command_that_needs_an_extra_names_it(tmp_path):
    """As in an environment with the wheel's own dependencies only."""
    done = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT_EXTRAS}\nsys.exit(main(['run', '--plan']))"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r'error: .* not installed: pip install "nanogpt-notebooks\[notebooks\]"\n', done.stderr
    )


# ------------------------------------------------------------------ environments

# The variables of each; None removes one. Both once ended in a traceback: texts were written in the
# encoding of the locale, and a folder named ~ was made.
ENVIRONMENTS = {
    "the POSIX locale": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "no home and no programs": dict.fromkeys(("HOME", "USER", "TERM", "CXX")) | {"PATH": ""},
}
TRAIN = "--data|text.txt|--out|a b/fox|--size|article|--recipe|lecture|--steps|2|--eval-every|1"
TRAIN += "|--eval-batches|1|--batch-size|2"
WRITE = "--prompts|prompts.txt|--out|texts|--backend|modules|--max-new-tokens|3"
# What is run there, one after another: the exit code of each must be 0.
COMMANDS = {
    "help": "--help",
    "help for one": "train|--help",
    "train": f"train|{TRAIN}",
    "resume": f"train|{TRAIN}|--resume",
    "generate": f"generate|--checkpoint|a b/fox|{WRITE}",
    "export": "export|a b/fox|--form|lecture|--out|a b/lecture.safetensors",
}
COMMANDS_PROGRAM = """
import sys
from nanogpt.cli import main

def run(words):
    try:
        return main(words)
    except SystemExit as stop:
        return stop.code

codes = [run(command.split("|")) for command in sys.argv[1:]]

import torch
from nanogpt import complete, load_checkpoint, save_checkpoint
saved = load_checkpoint("a b/fox")
prompt = saved.tokenizer.encode("the ")[None]
texts = [complete(saved.model, prompt, 12, generator=torch.Generator().manual_seed(3))]
texts += [complete(saved.model, prompt, 12, cache=None, generator=torch.Generator().manual_seed(3))]
save_checkpoint("again", saved.model, saved.meta)
again = load_checkpoint("again").model
texts += [complete(again, prompt, 12, generator=torch.Generator().manual_seed(3))]
print()
print(codes, all(text.equal(texts[0]) for text in texts))
"""


@pytest.mark.release
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_commands_work_in_this_environment(name, tmp_path):
    (tmp_path / "a b").mkdir()
    text = "the quick brown fox – “jumps” over\nthe lazy dog.\n" * 40
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("the\n“jump", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for variable, value in ENVIRONMENTS[name].items():
        environment.pop(variable, None)
        if value is not None:
            environment[variable] = value
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS_PROGRAM, *COMMANDS.values()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.splitlines()[-1:] == [f"{[0] * len(COMMANDS)} True"], done.stderr
