"""The fixture `assert_sound` in another project's tests, as its CI runs them."""

import os
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as xml

import pytest

from nanogpt.files import ROOT

TESTS = """
import pytest
from other_library import Adapter, Net, Store, Session

class Forgets(Store):
    def put(self, layer, k, v):
        self.keys.pop(layer, None)
        return super().put(layer, k, v)

class Broken(Adapter):
    class session_type(Session):
        store = Forgets

class Hidden(Net):
    def finish(self, x):
        return 0 * super().finish(x)

class Undecided(Adapter):
    net_type = Hidden

QUICK = {"tokens": 0}

def test_sound(assert_sound):
    assert assert_sound(Adapter(), **QUICK).verdict.sound

def test_broken(assert_sound):
    assert_sound(Broken(), **QUICK)

def test_undecided(assert_sound):
    assert_sound(Undecided(), **QUICK)

def test_undecided_is_known(assert_sound):
    assert_sound(Undecided(), undecided="skip", **QUICK)

def test_an_option_is_wrong(assert_sound):
    with pytest.raises(ValueError, match="undecided='no': must be one of fail, skip"):
        assert_sound(Adapter(), undecided="no")
"""
RUNS = {
    "as it is": ([], "2 failed, 2 passed, 1 skipped"),
    "undecided is skipped": (["--undecided=skip"], "1 failed, 2 passed, 2 skipped"),
    "warnings are errors, JUnit's usual family": (
        ["-W", "error", "-o", "junit_family=xunit2"],
        "2 failed, 2 passed, 1 skipped",
    ),
}


@pytest.mark.release
@pytest.mark.parametrize("how", RUNS)
def test_another_project_s_tests(how, tmp_path):
    options, ended = RUNS[how]
    (tmp_path / "test_caches.py").write_text(textwrap.dedent(TESTS), encoding="utf-8")
    plugin = "nanogpt.kv_referee.plugin"
    command = [sys.executable, "-m", "pytest", "-p", plugin, "--junitxml=x.xml"]
    # Where the package is installed, pytest would load its plugin a second time by the entry point.
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [*command, *options], cwd=tmp_path, env=env, capture_output=True, encoding="utf-8"
    )
    assert ended in run.stdout, run.stdout + run.stderr
    assert "faults that the referee planted" in run.stdout or "skipped" in how
    cases = xml.parse(tmp_path / "x.xml").iter("testcase")
    verdicts = {
        case.get("name"): [p.get("value") for p in case.iter("property")][:1] for case in cases
    }
    assert verdicts["test_broken"] == ["bug"]
    assert verdicts["test_undecided"] == ["undecided"]
    assert verdicts["test_sound"][0] in ("equal", "rounding")
