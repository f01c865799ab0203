"""A little corpus, a folder for notebooks, the runner without kernels, and a browser."""

import pytest
from chromium import Chromium
from notebook_fixtures import run_cells_here

from nanogpt.cli import main
from nanogpt.series import execute, site


@pytest.fixture(autouse=True)
def little_corpus(tmp_path_factory, monkeypatch, request):
    """Most tests need no long text, and none may ask the network for one.

    A module that says REAL_CORPUS = True keeps the corpus of the machine.
    """
    if not getattr(request.module, "REAL_CORPUS", False):
        path = tmp_path_factory.getbasetemp() / "little.txt"
        path.write_text("To be, or not to be.\n" * 250, encoding="utf-8")
        monkeypatch.setenv("NANOGPT_DATA", str(path))


@pytest.fixture(autouse=True)
def no_live_page(tmp_path, monkeypatch, request):
    """A site has no live.html, which takes a second, except in the module that tests it."""
    if not getattr(request.module, "LIVE_PAGE", False):
        monkeypatch.setattr(site, "KEEPER", tmp_path / "no keeper")


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


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium):
    """Whatever a test does, only files are asked for, and the console stays empty."""
    chromium.events.clear()
    yield chromium
    assert chromium.faults() == []
