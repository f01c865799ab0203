"""The pages beside the notebooks: a glossary, questions, a sheet to print, and the one-hour path.

Their sources are Markdown, so that they can also be read in the repository: notebooks/reading, and
the sheet of notebooks/teaching.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from ..files import ROOT
from . import address
from .html import TEMPLATES, Prose, promise
from .slides import render_to_print

_FOLDER = ROOT / "notebooks" / "reading"
PAGES = {  # a page's name, and its source
    "glossary": _FOLDER / "glossary.md",
    "questions": _FOLDER / "questions.md",
    "sheet": ROOT / "notebooks" / "teaching" / "sheet.md",
}
ONE_HOUR = _FOLDER / "one_hour.md"
_LINK = re.compile(r"\]\((?!https://|#)([^)#\s]+)(#[^)\s]*)?\)")


def reading_pages(names: Collection[str], more: Collection[str]) -> dict[str, str]:
    """PAGES as HTML, by file name, if their sources exist.

    `names` are the site's notebooks and `more` its other pages: links to them are kept.
    """
    sources = {f"{name}.html": path for name, path in PAGES.items() if path.is_file()}
    known = {*names, *more, *sources, "index.html"}
    made = {}
    for name, path in sources.items():
        if name == "sheet.html":
            made[name] = render_to_print(path, home="index.html")
        else:
            made[name] = _page(path.read_text(encoding="utf-8"), known)
    return made


def _page(markdown: str, known: set[str]) -> str:
    """A page with a list of its headings below the first paragraph."""
    prose = Prose(known)
    body = prose.render(for_site(markdown))
    title, *parts = prose.headings
    frame = TEMPLATES.get_template("reading.html.j2")
    return frame.render(title=title["text"], about=promise(body), contents=parts, body=body)


def one_hour(names: Collection[str]) -> str:
    """The body of the one-hour path for the index; empty unless all its notebooks are pages."""
    text = ONE_HOUR.read_text(encoding="utf-8") if ONE_HOUR.is_file() else ""
    text = text.partition("\n")[2]  # the index has its own heading
    stops = set(re.findall(r"(\d\d_\w+)\.ipynb", text))
    return Prose(set(names)).render(for_site(text)) if stops and stops <= set(names) else ""


def for_site(markdown: str) -> str:
    """Markdown of the repository with its relative links as `Prose` resolves them on a page.

    A link to another reading page or to a published page leads into html/. A link to any other file
    leads to the repository's address, or becomes plain text if it has none.
    """

    def there(link: re.Match[str]) -> str:
        target = Path(link[1])
        if target.suffix == ".ipynb":
            return link[0]
        if target.suffix in (".html", ".md"):
            return f"](html/{target.stem}.html{link[2] or ''})"
        if not address.REPO:
            return "](html/none.html)"  # no such page: Prose keeps only the words
        path = re.sub(r"^(\.\./)+", "", link[1])
        return f"](https://github.com/{address.REPO}/blob/{address.REF}/{path})"

    return _LINK.sub(there, markdown)
