"""The cells of an executed notebook as HTML, and their text, independent of pages and folders.

nbconvert renders them with the template in page/. This module has its filters for prose, code and
pictures.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
import textwrap
from pathlib import Path
from typing import Any, TypedDict

import jinja2
import mistune
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound
from traitlets.config import Config

from .nbfile import FILLED, alt_text, figure_name, moving, ours, phone_png, png_of, tagged

_WIDE = 96  # characters of code that fit the column; longer lines scroll and are focusable
FOLD = re.compile(r"^<details>\s*<summary>([^<>\n]+)</summary> *$(.*?)^</details> *$", re.M | re.S)
_TITLE = "# @title "
RIGHT = re.compile(
    r"Right: (\S+) does what it should\.(?:\nFrom here on the solution's \1 runs\.)?"
)
_SHOWN = ["image/png", "text/markdown", "text/plain"]  # for each output, the first type that it has
DATA_URL = "data:image/png;base64,"
COVERS = {  # the name of each notebook's main figure
    "00": "race",
    "01": "loss",
    "02": "triangle",
    "03": "margins",
    "04": "marked",
    "05": "per_token",
    "06": "ladder",
    "07": "drafted",
    "08": "ring",
    "09": "schedules",
    "10": "request",
    "11": "look_back",
    "12": "last_bits",
    "13": "gain",
}
_HEADING = re.compile(r'<h[1-6] id="([^"]+)">(.*?)</h[1-6]>', re.S)
NAME = re.compile(r"[A-Za-z_]\w{3,}")
MINUTES = re.compile(r"^- \*Minutes\*: (\d+) to read(?:, (\d+) with the blanks)?", re.M)
TEMPLATE_FOLDER = Path(__file__).parent / "templates"
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATE_FOLDER),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


class Heading(TypedDict):
    """A heading of a page: link target, HTML, and level from 1."""

    id: str
    text: str
    level: int


class CodeCell(TypedDict):
    """The template's facts about a code cell."""

    source: str
    note: str | None  # the origin of its code
    folded: str | None  # the label of its closed fold; None if it is open
    filled: bool  # whether it is a blank that this run filled in
    answers: bool  # whether its outputs are also folded, so that a reader guesses first
    timing: bool


class Picture(TypedDict):
    """A picture on a page. `still` is the first frame of an animation, for reduced motion."""

    src: str
    width: int
    height: int
    still: str | None


class Cover(TypedDict):
    """The small picture of a notebook in the index."""

    src: str
    width: int
    height: int
    alt: str


class Prose(mistune.HTMLRenderer):
    """Markdown as HTML, for one page. It keeps the headings that it has rendered.

    Raw HTML is escaped, except for a line `<details><summary>Plain words</summary>` and the next
    line `</details>`, which fold the markdown between them. Links to notebooks and into html/
    lead to `pages`, others become plain text. Pictures are not fetched.
    """

    def __init__(self, pages: set[str]):
        super().__init__(escape=True)
        self.pages = pages
        self.headings: list[Heading] = []
        self.markdown = mistune.create_markdown(renderer=self, plugins=["table", "strikethrough"])

    def render(self, text: str) -> str:
        """Markdown as HTML, with tables in scrolling boxes."""
        first, *parts = FOLD.split(text)
        drawn = f"{self.markdown(first)}"
        for summary, inner, after in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            drawn += f'<details class="fold">\n<summary>{html.escape(summary)}</summary>\n'
            drawn += f"{self.markdown(inner)}</details>\n{self.markdown(after)}"
        drawn = drawn.replace("<table>", '<div class="table"><table>')
        return drawn.replace("</table>", "</table></div>")

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        text = re.sub(r"</?a\b[^>]*>", "", text)  # the heading is a link itself
        words = re.sub(r"<[^>]+>|&\w+;", "", text).lower()
        base = re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "part"
        taken = {"main", *(heading["id"] for heading in self.headings)}
        name = base
        n = 1
        while name in taken:
            n += 1
            name = f"{base}-{n}"
        self.headings.append({"id": name, "text": text, "level": level})
        inner = text if level == 1 else f'<a class="anchor" href="#{name}">{text}</a>'
        return f'<h{level} id="{name}">{inner}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        target = re.fullmatch(r"(?:[^:]*/)?(\w+)\.ipynb(#.*)?|html/(\w+\.html)(#.*)?", url)
        if target:
            if (target[1] or target[3]) not in self.pages:
                return text
            page = target[3] or f"{target[1]}.html"
            url = f"{page}{target[2] or target[4] or ''}"
        return super().link(text, url, title)

    image = link

    def block_code(self, code: str, info: str | None = None) -> str:
        return coloured(code, (info or "text").split()[0])


def coloured(code: str, language: str = "python") -> str:
    """Code as a block with one CSS class per kind of token."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    inner = highlight(textwrap.dedent(code).rstrip("\n"), lexer, HtmlFormatter(nowrap=True))
    focus = ' tabindex="0"' if max(map(len, code.split("\n"))) > _WIDE else ""
    code = f'<pre class="code"{focus}><code>{inner.rstrip()}</code></pre>'
    return f'<div class="listing">{code}</div>\n'


def article(nb: NotebookNode, prose: Prose, name: str = "", colab: str | None = None) -> str:
    """The cells of a notebook, rendered by nbconvert with the template in page/.

    `name` and `colab`, the notebook's own, say where a reader can fill in a blank.
    Raises SyntaxError, EOFError, OSError or ValueError for a damaged picture.
    """
    shown = [cell for cell in nb.cells if ours(cell).get("generated") != "links"]
    exporter = HTMLExporter(
        config=Config({"NbConvertBase": {"display_data_priority": _SHOWN}}),
        extra_template_basedirs=[str(TEMPLATE_FOLDER)],
        template_name="page",
        filters={
            "prose": prose.render,
            "part": part,
            "verdict": verdict,
            "coloured": coloured,
            "picture": picture,
            "alt_text": alt_text,
            "moving": moving,
            "phone_png": phone_png,
            "script_json": script_json,
        },
    )
    body: str
    body, _ = exporter.from_notebook_node(
        NotebookNode({**nb, "cells": shown}),
        {"setup": setup(shown), "checks": checks(shown), "notebook": name, "colab": colab},
    )
    return body


def script_json(data: object) -> str:
    """Data as JSON that is safe inside a <script> element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def moving_kinds(nb: NotebookNode) -> list[str]:
    """The distinct kinds of interactive figures on a page. Raises ValueError for an unknown one."""
    kinds = set()
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            figure = moving(output)
            if figure:
                kinds.add(figure["kind"])
    unknown = kinds - {path.stem for path in (TEMPLATE_FOLDER / "figures").glob("*.js")}
    if unknown:
        raise ValueError(f"no script for figures of kind {', '.join(unknown)}")
    return sorted(kinds)


def setup(cells: list[NotebookNode]) -> tuple[str, str] | None:
    """The first and last cell id of the set-up: folded code at the top, without a picture."""
    opening: list[str] = []
    for cell in cells[1:]:
        folded = cell.cell_type == "code" and part(cell)["folded"]
        if not folded or any(png_of(output) for output in cell.outputs):
            break
        opening.append(cell.get("id", ""))
    return (opening[0], opening[-1]) if len(opening) > 1 and opening[0] else None


def checks(cells: list[NotebookNode]) -> list[str]:
    """The ids of cells that check a blank filled in with the solution by this run."""
    pairs = zip(cells, cells[1:], strict=False)
    return [check.id for blank, check in pairs if blank.source.startswith(FILLED)]


def verdict(text: str) -> str:
    """Reword a check's output for a page with an empty blank: the solution was checked."""
    return RIGHT.sub(r"The solution passes its check: \1 does what it should.", text)


def part(cell: NotebookNode) -> CodeCell:
    """The template's facts about a code cell."""
    note = None
    folded = None
    source = cell.source
    if tagged(cell, "injected-parameters"):
        folded = "Parameters of this run"
    elif tagged(cell, "hide-input"):
        folded = "Code"
        if source.startswith(_TITLE):
            folded, _, source = source.removeprefix(_TITLE).partition("\n")
    mirrored = ours(cell).get("mirror")
    if mirrored:
        names = ", ".join(name.removeprefix("nanogpt.") for name in mirrored)
        note = f"from the package: {names}"
    return {
        "source": source,
        "note": note,
        "folded": folded,
        "filled": cell.source.startswith(FILLED),
        "answers": (folded or "").startswith("The answers"),
        "timing": tagged(cell, "timing"),
    }


def picture(png: str) -> Picture:
    """A picture from its PNG in base64."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        image.load()  # a damaged one is an error here
        still = None
        if getattr(image, "n_frames", 1) > 1:
            first = io.BytesIO()
            image.convert("RGB").quantize(64).save(first, "PNG", optimize=True)
            still = DATA_URL + base64.b64encode(first.getvalue()).decode()
        return {"src": DATA_URL + png, "width": image.width, "height": image.height, "still": still}


def cover(nb: NotebookNode, number: str) -> Cover | None:
    """A small cover: the upper part of the figure in COVERS, or else of the first one.

    Uses the phone version if available, because its text is large. None without figures.
    """
    figures: list[NotebookNode] = []
    for cell in nb.cells:
        figures += filter(png_of, cell.get("outputs", []))
    if not figures:
        return None
    named = [figure for figure in figures if figure_name(figure) == COVERS.get(number)]
    output = [*named, *figures][0]
    png = phone_png(output) or png_of(output) or ""
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        wide, high = image.size
        part = image.convert("RGB").crop((0, 0, wide, min(high, wide * 7 // 8)))
    small = io.BytesIO()
    part.quantize(32, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    src = DATA_URL + base64.b64encode(small.getvalue()).decode()
    return {"src": src, "width": part.width, "height": part.height, "alt": alt_text(output)}


# ------------------------------------------------------------------ the text of the cells


def plain(text: str) -> str:
    """HTML as plain text on one line."""
    spaced = re.sub(r"</(?:p|li|h\d|td|th|pre|summary)>", " ", text)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", spaced)).split())


def promise(text: str) -> str:
    """The first paragraph of a page, as plain text."""
    first = re.search(r"<p>(.*?)</p>", text, re.S)
    return plain(first[1]) if first else ""


def minutes(nb: NotebookNode) -> tuple[int, int]:
    """The minutes stated in a notebook's box: to read, and with the blanks; 0, 0 if missing."""
    numbers = MINUTES.search(nb.cells[0].source)
    return (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)


def sections(nb: NotebookNode, prose: Prose) -> list[list[str]]:
    """A page by heading, as rows of id, heading, text, and the names in its code.

    `prose` must not have rendered anything yet, so that the ids match the page's.
    """
    rows = [["", "", "", ""]]
    for cell in nb.cells:
        if cell.cell_type == "code":
            known = dict.fromkeys(rows[-1][3].split() + NAME.findall(part(cell)["source"]))
            rows[-1][3] = " ".join(known)
        elif cell.cell_type == "markdown" and ours(cell).get("generated") != "links":
            before, *parts = _HEADING.split(prose.render(cell.source))
            rows[-1][2] = f"{rows[-1][2]} {plain(before)}".strip()
            for id, heading, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                rows.append([id, plain(heading), plain(text), ""])
    return rows[1:]
