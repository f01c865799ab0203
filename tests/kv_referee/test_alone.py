"""The folder works alone: with torch and pytest, and without the rest of this project."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from nanogpt.files import ROOT

ROOM = ROOT / "nanogpt" / "kv_referee"
# Only what `pip install kv-referee[pytest]` brings can be imported, besides the tests' own library.
ALONE = """
import sys

for absent in ("nanogpt", "transformers", "safetensors", "tqdm", "matplotlib"):
    sys.modules[absent] = None  # its import fails
"""
JUDGE = """
import kv_referee
from other_library import Adapter

print(kv_referee.assert_sound(Adapter(), tokens=0))
"""
TESTS = """
from other_library import Adapter

def test_sound(assert_sound):
    assert assert_sound(Adapter(), tokens=0).verdict.sound
"""


def run(folder, *command):
    """The output of a Python process that finds the folder and the tests' own library."""
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "tests")]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    """A folder in which a copy of the room is the package kv_referee."""
    shutil.copytree(ROOM, tmp_path / "kv_referee", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_folder_judges_a_model_without_this_project(folder):
    (folder / "judge.py").write_text(ALONE + JUDGE, encoding="utf-8")
    said = run(folder, "judge.py")
    assert said.startswith("Net: "), said


@pytest.mark.release
def test_its_fixture_judges_a_model_without_this_project(folder):
    (folder / "conftest.py").write_text(ALONE, encoding="utf-8")
    (folder / "test_caches.py").write_text(TESTS, encoding="utf-8")
    said = run(folder, "-m", "pytest", "-q", "-p", "kv_referee.plugin", "test_caches.py")
    assert "1 passed" in said


@pytest.mark.release
def test_its_wheel_holds_the_package_and_names_the_plugin(tmp_path):
    builder = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", builder, str(tmp_path)],
        cwd=ROOM,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        (points,) = (n for n in names if n.endswith("entry_points.txt"))
        assert "kv_referee = kv_referee.plugin" in wheel.read(points).decode()
        modules = {n for n in names if n.endswith(".py")}
        wheel.extractall(tmp_path)
    assert modules == {f"kv_referee/{path.name}" for path in ROOM.glob("*.py")}
    assert path.stat().st_size < 200_000
    (tmp_path / "judge.py").write_text(ALONE + JUDGE, encoding="utf-8")
    assert run(tmp_path, "judge.py").startswith("Net: ")
