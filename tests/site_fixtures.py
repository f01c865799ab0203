"""What tests of running and of showing notebooks share: a little corpus, and a browser."""

import pytest
from browsers import PHONE, blank_page, launched

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


@pytest.fixture(scope="module")
def chromium():
    with launched() as browser:
        yield browser


@pytest.fixture
def browser(chromium):
    """An empty page in a wide window."""
    with blank_page(chromium) as page:
        yield page


@pytest.fixture
def phone(chromium):
    """An empty page on a phone, in the dark."""
    shape = {"viewport": PHONE, "is_mobile": True, "has_touch": True, "color_scheme": "dark"}
    with blank_page(chromium, **shape) as page:
        yield page
