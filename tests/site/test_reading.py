"""The glossary, the questions, the sheet and the one-hour path: links, pages, and one sheet."""

import re

import pytest
from browsers import browsed, open_file
from notebook_fixtures import NOTEBOOKS, book, page_faults

from nanogpt.site import address, reading, speed
from nanogpt.site.html import Prose
from nanogpt.site.nbfile import ours

NAMES = [path.stem for path in NOTEBOOKS]
OTHERS = ("index.html", "your_cache.html")
SOURCES = [*reading.PAGES.values(), reading.ONE_HOUR]
each = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


def headings(*texts: str) -> set[str]:
    """The ids of the headings in these texts, in a page of their own."""
    prose = Prose(set())
    for text in texts:
        prose.render(text)
    return {heading["id"] for heading in prose.headings}


def prose_of(path) -> list[str]:
    """The Markdown of a notebook's own cells, or of a file."""
    if path.suffix != ".ipynb":
        return [path.read_text(encoding="utf-8")]
    cells = [cell for cell in book(path).cells if cell.cell_type == "markdown"]
    return [cell.source for cell in cells if ours(cell).get("generated") != "links"]


@each
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(path):
    text = path.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https://)([^)#\s]*)#?([^)\s]*)\)", text):
        there = path.parent / target if target else path
        assert there.is_file(), target
        if anchor and there.name == "index.html":
            assert anchor in {row.anchor for row in speed.ROWS.values()}, anchor
        elif anchor:
            assert anchor in headings(*prose_of(there)), f"{target}#{anchor}"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The folder of these pages, and of empty ones with the names that they may link to."""
    folder = tmp_path_factory.mktemp("reading")
    for name in (*(f"{name}.html" for name in NAMES), *OTHERS):
        (folder / name).touch()
    for name, text in reading.reading_pages(NAMES, OTHERS).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", reading.PAGES)
def test_a_page_can_be_read_by_everyone_and_leads_back(pages, name):
    path = pages / f"{name}.html"
    faults = [fault for fault in page_faults(path) if not fault.startswith("script not ours")]
    assert faults == []
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert 'href="index.html"' in text
    assert len(text) < 50_000


def test_links_to_notebooks_that_are_not_on_the_site_become_text():
    page = reading.reading_pages([], ())["questions.html"]
    assert re.findall(r'href="([^"#]+)', page).count("index.html") >= 1
    assert not re.search(r'href="\d\d_', page)


def test_a_file_of_the_repository_is_linked_only_with_an_address(monkeypatch):
    text = "[it](../../outputs/sweeps/float32.json) and [that](../03_x.ipynb#a)"
    monkeypatch.setattr(address, "REPO", "")
    assert "float32.json" not in Prose(set()).render(reading.for_site(text))
    monkeypatch.setattr(address, "REPO", "ada/engine")
    there = "https://github.com/ada/engine/blob/main/outputs/sweeps/float32.json"
    drawn = Prose({"03_x"}).render(reading.for_site(text))
    assert re.findall(r'href="([^"]+)"', drawn) == [there, "03_x.html#a"]


def test_the_one_hour_path_is_shown_where_all_its_stops_are_pages():
    assert 'href="13_a_real_model.html#' in reading.one_hour(NAMES)
    assert reading.one_hour(NAMES[:3]) == ""


@browsed
def test_the_sheet_fits_one_page_of_a4(pages, browser):
    browser.set_viewport_size({"width": 794, "height": 900})  # A4 at 96 pixels an inch
    open_file(browser, pages / "sheet.html")
    assert browser.evaluate("document.documentElement.scrollHeight") <= 1123
