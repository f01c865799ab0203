"""What tests of running and of showing notebooks share: a little corpus, and a browser."""

import pytest
from chromium import Chromium

from nanogpt.site import build


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
        monkeypatch.setattr(build, "KEEPER", tmp_path / "no keeper")


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
