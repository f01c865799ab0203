"""A folder for notebooks, and the runner without kernels."""

import pytest
from notebook_fixtures import run_cells_here
from site_fixtures import browser, chromium, little_corpus, no_live_page, phone  # noqa: F401

from nanogpt.cli import main
from nanogpt.series import execute


@pytest.fixture
def sources(tmp_path):
    return tmp_path / "notebooks"


@pytest.fixture
def no_kernels(monkeypatch):
    """Cells run in this process: a kernel costs seconds."""
    monkeypatch.setattr(execute.Strict, "execute_managed_notebook", run_cells_here)


@pytest.fixture
def go(tmp_path, sources, no_kernels):
    """Runs the command on the notebooks in `sources`, into `out`; returns its exit code."""

    def command(*words, out=tmp_path / "out", html=False):
        options = ["--source", str(sources), "--out", str(out), "--profile", "smoke"]
        return main(["run", *words, *options, *([] if html else ["--no-html"])])

    return command
