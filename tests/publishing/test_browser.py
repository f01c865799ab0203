"""The pages in a real browser: nothing is asked for or complained about, keys reach everything."""

import pytest
from chromium import BINARY, Chromium
from notebook_fixtures import code, output, png, prose, write

from nanogpt.publishing import site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BINARY, reason="needs chromium or google-chrome on the PATH"),
]
LONG = "x = " + " + ".join(f"value_{i}" for i in range(40))
TABLE = "|" + "a long heading|" * 12 + "\n|" + "---|" * 12 + "\n|" + "value|" * 12
SOLUTION = "<details><summary>Solution</summary>\n\n```python\nboth = q + k\n```\n\n</details>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    write(
        folder / "00_one.ipynb",
        prose("## Where a mask stands\n\n[Elsewhere](https://example.com/) and more.", "part"),
        code(LONG, "long", [output("word " * 80)]),
        code("# @title A figure\nplot()", "plot", [output(picture=png(), alt="two colours")]),
        prose(f"### Rolling\n\n{TABLE}\n\n{SOLUTION}", "table"),
        prose(f"## {'Averylongword' * 12}", "wide"),
        title="00 · One",
    )
    nb_cells = [prose("## Other\n\nA `RollingCache` has a mask too.", "other"), "class Ring: ..."]
    write(folder / "01_two.ipynb", *nb_cells, title="01 · Two <b>")
    return site.render(folder).parent


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.fixture(autouse=True)
def quiet(browser):
    """Whatever a test does, only files are asked for, and the console stays empty."""
    browser.events.clear()
    yield
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
    assert browser.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1400])
@pytest.mark.parametrize("name", ["index", "00_one"])
def test_a_page_fits_the_window_and_asks_for_nothing(browser, pages, name, width, scheme):
    browser.show(width, scheme=scheme)
    browser.open(f"file://{pages}/{name}.html")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (
        scheme == "dark"
    )


def test_a_figure_fills_a_phone(browser, pages):
    browser.show(420)
    browser.open(f"file://{pages}/00_one.html")
    assert (
        browser.evaluate("document.querySelector('figure img').getBoundingClientRect().width")
        == 420
    )


def test_the_tab_key_reaches_everything_and_shows_where_it_is(browser, pages):
    browser.show(1400)
    browser.open(f"file://{pages}/00_one.html")
    browser.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
    browser.evaluate(
        "window.wanted = new Set([...document.querySelectorAll('a, button, input, summary')]"
        ".filter((element) => element.checkVisibility()))"
    )
    many = browser.evaluate("wanted.size")
    assert many > 20
    for _ in range(many + 20):
        browser.press("Tab")
        bare = browser.evaluate(
            "(() => { const at = document.activeElement; wanted.delete(at);"
            "return getComputedStyle(at).outlineStyle === 'none' && at !== document.body"
            " ? at.outerHTML : '' })()"
        )
        assert bare == "", "no ring around what has the focus"
    assert browser.evaluate("[...wanted].map((element) => element.outerHTML)") == []


def test_copy_copies_the_code(browser, pages):
    browser.show(1400)
    browser.open(f"file://{pages}/00_one.html")
    allowed = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.send("Browser.grantPermissions", permissions=allowed)
    browser.evaluate("document.querySelectorAll('.copy')[1].focus()")
    browser.press("Enter")
    says = "document.querySelectorAll('.copy')[1].textContent"
    browser.rest()
    assert browser.evaluate(says) == "Copied"
    assert browser.evaluate("navigator.clipboard.readText()") == LONG
    assert browser.evaluate("document.querySelectorAll('.copy').length") == browser.evaluate(
        "document.querySelectorAll('pre.code').length"
    )


def test_enter_enlarges_a_figure_and_escape_puts_it_back(browser, pages):
    browser.show(1400)
    browser.open(f"file://{pages}/00_one.html")
    browser.evaluate("document.querySelector('figure button').focus()")
    browser.press("Enter")
    assert browser.evaluate("document.querySelector('dialog[open] img').alt") == "two colours"
    assert browser.evaluate("document.querySelector('dialog img').width") == 1400
    browser.press("Escape")
    browser.rest()
    assert browser.evaluate("document.querySelector('dialog')") is None
    assert browser.evaluate("document.activeElement.className") == "enlarge"
    browser.evaluate("document.querySelector('figure img').click()")
    browser.evaluate("document.querySelector('dialog[open] img').click()")
    browser.rest()
    assert browser.evaluate("document.querySelector('dialog')") is None


FOUND = "[...document.querySelectorAll('#results a')].map((link) => link.getAttribute('href'))"


def test_a_search_finds_sections_from_any_page(browser, pages):
    browser.show(420)
    browser.open(f"file://{pages}/00_one.html")
    browser.evaluate("document.querySelector('.search input').focus()")
    browser.write("mask")
    browser.press("Enter")
    browser.loaded()
    assert browser.evaluate("location.search") == "?q=mask"
    both = ["00_one.html#where-a-mask-stands", "01_two.html#other"]
    assert browser.evaluate(FOUND) == both
    assert browser.evaluate("document.getElementById('count').textContent") == (
        "2 sections with “mask”"
    )
    assert browser.evaluate("document.querySelector('#results mark').textContent") == "mask"
    browser.evaluate("document.querySelector('.search input').focus()")
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.getAttribute('href')") == both[0]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("MASK rolling", ["01_two.html#other"]),
        ("ring", ["01_two.html#other"]),
        ("two <b>", ["01_two.html#01-two-b", "01_two.html#other"]),
        ("(.*", []),
        ("  ", []),
    ],
)
def test_what_a_search_finds(browser, pages, query, found):
    browser.open(f"file://{pages}/index.html")
    browser.evaluate("document.querySelector('.search input').focus()")
    browser.write(query)
    assert browser.evaluate(FOUND) == found
    cards = browser.evaluate("document.getElementById('start').checkVisibility()")
    assert cards == (not query.strip()), "the list of notebooks makes room for what was found"


def test_without_a_script_nothing_is_missing_but_what_needs_one(browser, pages):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        for name in ("index", "00_one"):
            browser.open(f"file://{pages}/{name}.html")
            tree = browser.send("DOM.getDocument", depth=-1)["root"]["nodeId"]
            for selector in ("button", ".search:not([hidden])"):
                asked = {"nodeId": tree, "selector": selector}
                assert browser.send("DOM.querySelectorAll", **asked)["nodeIds"] == []
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
