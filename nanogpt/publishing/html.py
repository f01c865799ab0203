"""The cells of an executed notebook as HTML: prose, code, pictures. Knows no page and no folder."""

from __future__ import annotations

import base64
import io
import re
import struct
import textwrap

import mistune
from nbconvert.filters.ansi import ansi2html
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from .nbfile import alt_text, png_of

WIDE = 96  # characters of code that fit the column; longer lines scroll, and take the keyboard
FOLD = re.compile(r"<details>\s*<summary>([^<>\n]+)</summary>\s*")
FOLD_LINE = re.compile(r"\n*^(<details>\s*<summary>[^<>\n]+</summary>|</details>) *$\n*", re.M)
FORM = re.compile(r"#\s*@title +(.+?)\s*(?:\{.*\})?\s*(?:\n|$)")


class Prose(mistune.HTMLRenderer):
    """Markdown as HTML, for one page. It keeps the headings that it has rendered.

    Raw HTML is shown, not obeyed, but for lines of `<details><summary>Plain words</summary>` and
    `</details>`: they fold the markdown between them.
    Links to notebooks lead to pages, those into html/ too. Pictures are never fetched.
    """

    def __init__(self, pages: set[str]):
        super().__init__(escape=True)
        self.pages, self.headings, self.open_folds = pages, [], 0
        self.markdown = mistune.create_markdown(renderer=self, plugins=["table", "strikethrough"])

    def render(self, text: str) -> str:
        """Markdown as HTML, its tables in a box that scrolls."""
        self.open_folds = 0
        text = FOLD_LINE.sub(r"\n\n\1\n\n", text)  # apart, or a list would swallow it
        html = self.markdown(text) + "</details>\n" * self.open_folds
        html = html.replace("<table>", '<div class="table"><table>')
        return html.replace("</table>", "</table></div>")

    def block_html(self, html: str) -> str:
        if found := FOLD.fullmatch(html):
            self.open_folds += 1
            summary = mistune.escape(found[1].strip())
            return f'<details class="fold">\n<summary>{summary}</summary>\n'
        if self.open_folds and html.strip() == "</details>":
            self.open_folds -= 1
            return "</details>\n"
        return super().block_html(html)

    def heading(self, text: str, level: int, **attrs) -> str:
        text = re.sub(r"</?a\b[^>]*>", "", text)  # the heading is a link itself
        words = re.sub(r"<[^>]+>|&\w+;", "", text).lower()
        name = re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "part"
        taken = {heading["id"] for heading in self.headings}
        name = next(n for n in [name] + [f"{name}-{i}" for i in range(2, 99)] if n not in taken)
        self.headings.append({"id": name, "text": text, "level": level})
        inner = text if level == 1 else f'<a class="anchor" href="#{name}">{text}</a>'
        return f'<h{level} id="{name}">{inner}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        stem, dot, fragment = url.partition(".ipynb")
        if dot and stem.rsplit("/", 1)[-1] in self.pages:
            url = f"{stem.rsplit('/', 1)[-1]}.html{fragment}"
        if re.fullmatch(r"html/[a-z0-9_]+\.html", url):  # a page beside this one
            url = url.removeprefix("html/")
        return super().link(text, url, title)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return self.link(text, url, title)

    def block_code(self, code: str, info: str | None = None) -> str:
        return coloured(code, (info or "text").split()[0])


def coloured(code: str, language: str = "python") -> str:
    """Code as a block with one class for each kind of token."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    inner = highlight(textwrap.dedent(code).rstrip("\n"), lexer, HtmlFormatter(nowrap=True))
    focus = ' tabindex="0"' if max(map(len, code.split("\n"))) > WIDE else ""
    return (
        f'<div class="listing"><pre class="code"{focus}><code>{inner.rstrip()}</code></pre></div>\n'
    )


def blocks(nb, prose: Prose) -> list[dict]:
    """The cells of a notebook as what the template draws: {kind, html, ...}.

    A code cell adds source, note, folded (what its closed fold says; None when it is open), answers
    (whether its outputs are folded too, so that a reader guesses first), timing and outputs. A
    blank is shown as the learner gets it, which metadata.nanogpt.blank keeps.
    """
    found = []
    for cell in nb.cells:
        if cell.metadata.get("nanogpt", {}).get("generated") == "links":
            continue  # the frame of the page has its own
        if cell.cell_type == "markdown":
            found.append({"kind": "prose", "html": prose.render(cell.source)})
        elif cell.cell_type == "code":
            found.append(_code_block(cell, prose))
    return found


def _code_block(cell, prose: Prose) -> dict:
    ours, tags = cell.metadata.get("nanogpt", {}), cell.metadata.get("tags", [])
    note = "from the package: " if "mirror" in ours else ""
    note += ", ".join(name.removeprefix("nanogpt.") for name in ours.get("mirror", []))
    folded, source = fold_of(cell)
    if "blank" in ours:
        folded, source = None, ours["blank"]
        note = "for you to fill in; this run used the solution below"
    return {
        "kind": "code",
        "html": coloured(source),
        "source": source,
        "note": note,
        "folded": folded,
        "answers": (folded or "").startswith("The answers"),
        "timing": "timing" in tags,
        "outputs": [shown(output, prose, "keep-colours" in tags) for output in cell.outputs],
    }


def fold_of(cell) -> tuple[str | None, str]:
    """What the closed fold of a code cell says, None for an open cell; and the code to show."""
    tags = cell.metadata.get("tags", [])
    if "injected-parameters" in tags:
        return "Parameters of this run", cell.source
    if "hide-input" not in tags:
        return None, cell.source
    if found := FORM.match(cell.source):
        return found[1], cell.source[found.end() :].lstrip("\n")
    return "Code", cell.source


def shown(output, prose: Prose, as_is: bool = False) -> dict:
    """One output as {kind, ...}: a picture, markdown, text or an error.

    A picture that is to be shown `as_is` keeps its colours on dark pages.
    """
    if output.output_type == "stream":
        return _text(output.text.rstrip(), error=output.name == "stderr")
    if output.output_type == "error":
        return _text("\n".join(output.traceback), error=True)
    if png := png_of(output):
        drawn = picture(base64.b64decode(png))
        return {"kind": "picture", **drawn, "alt": alt_text(output), "as_is": as_is}
    if "text/markdown" in output.data:
        return {"kind": "markdown", "html": prose.render(output.data["text/markdown"])}
    return _text(output.data.get("text/plain", ""), error=False)


def _text(text: str, error: bool) -> dict:
    return {"kind": "text", "html": ansi2html(text), "error": error}


def picture(png: bytes) -> dict:
    """{src, width, height, still}: of an animation, the last frame for who wants no motion."""
    width, height = struct.unpack(">II", png[16:24])
    still = None
    if b"acTL" in png[:200]:
        with Image.open(io.BytesIO(png)) as frames:
            frames.seek(frames.n_frames - 1)
            still = _url(_png(frames.convert("RGB").quantize(64)))
    return {"src": _url(png), "width": width, "height": height, "still": still}


def thumbnail(nb) -> dict | None:
    """A small copy of the first picture, or of the first in a cell tagged `thumbnail`."""
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    cells.sort(key=lambda cell: "thumbnail" not in cell.metadata.get("tags", []))
    pictures = (output for cell in cells for output in cell.outputs if png_of(output))
    if not (first := next(pictures, None)):
        return None
    with Image.open(io.BytesIO(base64.b64decode(png_of(first)))) as full:
        small = full.convert("RGB")
    small.thumbnail((480, 480))
    size = {"width": small.width, "height": small.height}
    return {"src": _url(_png(small.quantize(128))), **size, "alt": alt_text(first)}


def promise(nb) -> str:
    """The first paragraph below a notebook's title, as plain text."""
    text = next(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if not part.startswith("#")]
    return re.sub(r"[*_`]", "", paragraphs[0]).replace("\n", " ").strip() if paragraphs else ""


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
