"""SUPPORT.md names tests that exist, and the versions that pyproject.toml declares."""

import re

import pytest

from nanogpt.files import ROOT

SUPPORT = (ROOT / "SUPPORT.md").read_text(encoding="utf-8")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_each_promise_names_tests_that_exist():
    rows = [line for line in SUPPORT.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.endswith("shown by |")]
    for row in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        assert all((ROOT / path).is_file() for path in named), row


@pytest.mark.parametrize("extra", ["clients"])
def test_versions_are_those_declared(extra):
    (line,) = re.findall(rf"^{extra} = \[(.*)\]$", PYPROJECT, re.M)
    for requirement in re.findall(r'"(.*?)"', line):
        assert f"`{requirement}`" in SUPPORT


def test_versions_of_python_and_torch_are_those_declared():
    assert 'requires-python = ">=3.10"' in PYPROJECT
    assert "Python 3.10 to 3.13" in SUPPORT
    assert '"torch>=2.9"' in PYPROJECT
    assert "torch 2.9 and later" in SUPPORT
    assert '"torch<2.16"' in PYPROJECT
    assert "torch below 2.16" in SUPPORT


def test_the_readme_links_to_it():
    assert "(SUPPORT.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
