"""The pages in a real browser: nothing is asked for or complained about, keys reach everything."""

import base64
import io

import pytest
from browsers import BROWSED, open_file
from notebook_fixtures import code, output, png, prose, write
from PIL import Image

from nanogpt.site import build

pytestmark = BROWSED
LONG = "x = " + " + ".join(f"value_{i}" for i in range(40))
TABLE = "|" + "a long heading|" * 12 + "\n|" + "---|" * 12 + "\n|" + "value|" * 12
SOLUTION = "<details><summary>Solution</summary>\n\n```python\nboth = q + k\n```\n\n</details>"
FOUND = "[...document.querySelectorAll('#results a')].map((link) => link.getAttribute('href'))"


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
    plot = output(picture=png(), alt="a figure")
    tall = io.BytesIO()
    Image.new("RGB", (30, 60)).save(tall, "PNG")
    plot.metadata["image/png"]["phone"] = base64.b64encode(tall.getvalue()).decode()
    nb_cells = [prose("## Other\n\nA `RollingCache` has a mask too.", "other"), "class Ring: ..."]
    nb_cells.append(code("plot()", "plot", [plot]))
    write(folder / "01_two.ipynb", *nb_cells, title="01 · Two <b>")
    return build.render(folder).parent


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1400])
def test_a_page_fits_the_window(browser, pages, width, scheme):
    browser.set_viewport_size({"width": width, "height": 900})
    browser.emulate_media(color_scheme=scheme)
    for name in ("index", "00_one"):
        open_file(browser, pages / f"{name}.html")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    dark = browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark == (scheme == "dark")
    if width == 420:  # a figure fills a phone
        image = "document.querySelector('figure img').getBoundingClientRect().width"
        assert browser.evaluate(image) == width


def test_content_wider_than_a_phone_scrolls_in_its_box_and_takes_the_keyboard(browser, pages):
    browser.set_viewport_size({"width": 420, "height": 900})
    open_file(browser, pages / "00_one.html")
    browser.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
    wider = (
        "[...document.querySelectorAll('pre, .table')].filter((e) => e.scrollWidth > e.clientWidth)"
    )
    browser.wait_for_function(f"{wider}.length && {wider}.every((box) => box.tabIndex === 0)")
    assert browser.evaluate("document.querySelector('.table').tabIndex") == 0
    overflow = f"{wider}.map((box) => getComputedStyle(box).overflowX)"
    assert set(browser.evaluate(overflow)) == {"auto"}


def test_a_phone_shows_the_picture_that_is_made_for_it(browser, pages):
    name = "document.querySelector('figure img').currentSrc.length"
    sizes = {}
    for width in (420, 1400):
        browser.set_viewport_size({"width": width, "height": 900})
        open_file(browser, pages / "01_two.html")
        browser.wait_for_function(f"{name} > 0")
        sizes[width] = browser.evaluate("document.querySelector('figure img').naturalHeight")
    assert sizes == {420: 60, 1400: 20}


def test_the_tab_key_reaches_everything_and_shows_where_it_is(browser, pages):
    browser.set_viewport_size({"width": 1400, "height": 900})
    open_file(browser, pages / "00_one.html")
    browser.press(".fold summary", "Enter")
    assert browser.evaluate("document.querySelector('.fold').open"), "a key opens a fold"
    browser.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
    browser.evaluate(
        "window.wanted = new Set([...document.querySelectorAll('a, button, input, summary')]"
        ".filter((element) => element.checkVisibility()))"
    )
    many = browser.evaluate("wanted.size")
    assert many > 20
    for _ in range(many + 20):
        browser.keyboard.press("Tab")
        bare = browser.evaluate(
            "(() => { const at = document.activeElement; wanted.delete(at);"
            "return getComputedStyle(at).outlineStyle === 'none' && at !== document.body"
            " ? at.outerHTML : '' })()"
        )
        assert bare == "", "no ring around what has the focus"
    assert browser.evaluate("[...wanted].map((element) => element.outerHTML)") == []


def test_copy_copies_the_code(browser, pages):
    open_file(browser, pages / "00_one.html")
    browser.context.grant_permissions(["clipboard-read", "clipboard-write"])
    browser.press("section:nth-of-type(4) .copy", "Enter")
    browser.wait_for_function("document.activeElement.textContent === 'Copied'")
    assert browser.evaluate("navigator.clipboard.readText()") == LONG
    many = "document.querySelectorAll('{}').length"
    assert browser.evaluate(many.format(".copy")) == browser.evaluate(many.format("pre.code"))


def test_enter_enlarges_a_figure_and_escape_puts_it_back(browser, pages):
    browser.set_viewport_size({"width": 1400, "height": 900})
    open_file(browser, pages / "00_one.html")
    browser.press("figure button", "Enter")
    assert browser.evaluate("document.querySelector('dialog[open] img').alt") == "two colours"
    assert browser.evaluate("document.querySelector('dialog img').width") == 1400
    browser.keyboard.press("Escape")
    browser.wait_for_function("!document.querySelector('dialog')")
    assert browser.evaluate("document.activeElement.className") == "enlarge"
    browser.evaluate("document.querySelector('figure img').click()")
    browser.evaluate("document.querySelector('dialog[open] img').click()")
    browser.wait_for_function("!document.querySelector('dialog')")


def test_a_search_finds_sections_from_any_page(browser, pages):
    open_file(browser, pages / "00_one.html")
    browser.evaluate("document.querySelector('.search input').focus()")
    browser.keyboard.insert_text("mask")
    browser.keyboard.press("Enter")
    browser.wait_for_url("**/index.html?q=mask")
    both = ["00_one.html#where-a-mask-stands", "01_two.html#other"]
    assert browser.evaluate(FOUND) == both
    assert "2 sections" in browser.text_content("#count")
    assert browser.text_content("#results mark") == "mask"
    browser.press(".search input", "Enter")
    assert browser.evaluate("document.activeElement.getAttribute('href')") == both[0]
    for query, found in {
        "MASK rolling": both[1:],
        "ring": both[1:],
        "two <b>": ["01_two.html#01-two-b", both[1]],
        "(.*": [],
        "  ": [],
    }.items():
        open_file(browser, pages / "index.html")
        browser.evaluate("document.querySelector('.search input').focus()")
        browser.keyboard.insert_text(query)
        assert browser.evaluate(FOUND) == found
        cards = browser.evaluate("document.getElementById('start').checkVisibility()")
        assert cards == (not query.strip()), "the list of notebooks makes room for what was found"
