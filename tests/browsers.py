"""A real browser for the tests: Playwright, with the Chromium that is installed."""

import os
import shutil
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

_NAMES = ("chromium", "google-chrome", "chromium-browser")
_NAMED = os.environ.get("CHROMIUM")
BINARY = next(filter(None, map(shutil.which, [_NAMED] if _NAMED else _NAMES)), "")
MISSING = "no browser: apt-get install chromium (or set CHROMIUM), pip install playwright"
# A test in a browser is skipped without one; most of them belong to the release run.
in_a_browser = pytest.mark.skipif(not (BINARY and find_spec("playwright")), reason=MISSING)
BROWSED = [pytest.mark.release, in_a_browser]
WIDE = {"width": 1400, "height": 900}
PHONE = {"width": 420, "height": 900}


def browsed(test):
    """A test in a browser, of the release run."""
    for mark in BROWSED:
        test = mark(test)
    return test


@contextmanager
def launched():
    """The browser. While it runs, this thread has an event loop: other tests must not need one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        switches = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = driver.chromium.launch(executable_path=BINARY, args=switches)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def blank_page(chromium, **options):
    """A page in a context of its own, which asks for files alone and has nothing to complain of."""
    faults = []
    context = chromium.new_context(**{"viewport": WIDE, **options})
    context.set_default_timeout(180_000)  # of a machine that has more to do
    page = context.new_page()
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: faults.append(request.url) if not local(request) else None)
    try:
        yield page
    finally:
        context.close()
    assert faults == []


def local(request) -> bool:
    """Whether what a page asks for is on the disk, or in the page itself."""
    return request.url.startswith(("file:", "data:", "blob:"))


def open_file(page, path: Path, fragment: str = "") -> None:
    """Load a page from the disk."""
    page.goto(f"{path.as_uri()}{fragment}")


def texts(page, selector: str) -> list[str]:
    """The text of each element of a selector."""
    return page.locator(selector).all_text_contents()


def middle(page, selector: str) -> tuple[float, float]:
    """Where the middle of an element is in the window, after scrolling there."""
    element = page.locator(selector).first
    element.scroll_into_view_if_needed()
    box = element.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
