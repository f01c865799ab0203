"""Executed notebooks as a small site: no script, no network, one file a page.

    python -m nanogpt site [FOLDER]      writes FOLDER/html/index.html and a page for each notebook

Without a folder: the run that was written last, else the published one. The look is in site.css,
the frame of a page in site.html.j2.
"""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import textwrap
from pathlib import Path

import jinja2
import mistune
from nbconvert.filters.ansi import ansi2html
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from ..config import address
from ..data import synthetic
from ..system.environment import conditions
from ..system.files import PUBLISHED, ROOT, atomic_path
from .execute import alt_text
from .mirror import COLAB
from .nbfile import read, title

BRAND = "nanoGPT notebooks"


HEADLINE = "The same tokens, sooner"


PROMISE = "Karpathy’s character-level GPT, a KV cache in every head, and the same text as before, token by token."


WIDE = 96  # characters of code that fit the column; longer lines scroll, and then take the keyboard


class SiteError(ValueError):
    """A folder that cannot be rendered; the message says why."""


class Prose(mistune.HTMLRenderer):
    """Markdown as HTML: raw HTML is shown, not obeyed; links lead to pages; pictures are never fetched."""

    def __init__(self, pages: set[str]):
        super().__init__(escape=True)
        self.pages, self.headings = pages, []

    def heading(self, text: str, level: int, **attrs) -> str:
        name = (
            re.sub(r"[^a-z0-9]+", "-", re.sub(r"<[^>]+>|&\w+;", "", text).lower()).strip("-")
            or "part"
        )
        taken = {heading["id"] for heading in self.headings}
        name = next(n for n in [name] + [f"{name}-{i}" for i in range(2, 99)] if n not in taken)
        self.headings.append({"id": name, "text": text, "level": level})
        return f'<h{level} id="{name}">{text}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        stem, dot, fragment = url.partition(".ipynb")
        if dot and stem.rsplit("/", 1)[-1] in self.pages:
            url = f"{stem.rsplit('/', 1)[-1]}.html{fragment}"
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
    return f'<pre class="code"{_focus(code)}><code>{inner.rstrip()}</code></pre>\n'


def _focus(text: str) -> str:
    return ' tabindex="0"' if max(map(len, text.split("\n"))) > WIDE else ""


def blocks(nb, prose: mistune.Markdown) -> list[dict]:
    """The cells of a notebook as what the template draws: {kind, html, note, outputs}."""
    found = []
    for cell in nb.cells:
        ours, tags = cell.metadata.get("nanogpt", {}), cell.metadata.get("tags", [])
        if ours.get("generated") == "links":
            continue  # the frame of the page has its own
        if cell.cell_type == "markdown":
            found.append({"kind": "prose", "html": markdown(prose, cell.source)})
        elif cell.cell_type == "code":
            note = ""
            if "mirror" in ours:
                note = "from the package: " + ", ".join(
                    name.removeprefix("nanogpt.") for name in ours["mirror"]
                )
            elif "injected-parameters" in tags:
                note = "parameters of this run"
            found.append(
                {
                    "kind": "code",
                    "html": coloured(cell.source),
                    "note": note,
                    "folded": ours.get("generated") == "setup",
                    "timing": "timing" in tags,
                    "outputs": [shown(output, prose) for output in cell.outputs],
                }
            )
    return found


def markdown(prose: mistune.Markdown, text: str) -> str:
    """Markdown as HTML, its tables in a box that scrolls."""
    html = prose(text)
    return html.replace("<table>", '<div class="table"><table>').replace(
        "</table>", "</table></div>"
    )


def shown(output, prose: mistune.Markdown) -> dict:
    """One output as {kind, ...}: a picture, markdown, text or an error."""
    if output.output_type == "stream":
        return {
            "kind": "text",
            "html": ansi2html(output.text.rstrip()),
            "error": output.name == "stderr",
        }
    if output.output_type == "error":
        return {"kind": "text", "html": ansi2html("\n".join(output.traceback)), "error": True}
    data = output.data
    if "image/png" in data:
        return {
            "kind": "picture",
            **picture(base64.b64decode(data["image/png"])),
            "alt": alt_text(output),
        }
    if "text/markdown" in data:
        return {"kind": "markdown", "html": markdown(prose, data["text/markdown"])}
    return {"kind": "text", "html": ansi2html(data.get("text/plain", "")), "error": False}


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
    for cell in sorted(cells, key=lambda cell: "thumbnail" not in cell.metadata.get("tags", [])):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))) as full:
                    small = full.convert("RGB")
                small.thumbnail((480, 480))
                return {
                    "src": _url(_png(small.quantize(128))),
                    "width": small.width,
                    "height": small.height,
                    "alt": alt_text(output),
                }
    return None


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def render(folder: Path) -> Path:
    """Write the pages of an output folder and return the path of their index. Raises SiteError."""
    sources = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not sources:
        raise SiteError(
            f"no executed notebooks in {folder}: run some first (python -m nanogpt run)"
        )
    card = _manifest(folder)
    entries = {entry["notebook"]: entry for entry in card.get("notebooks", [])}
    notebooks = {path.stem: read(path) for path in sources}
    pages = [_about(name, nb, entries.get(name, {})) for name, nb in notebooks.items()]
    frame = _frame(
        brand=BRAND, pages=pages, card=card, conditions=_conditions(card), practice=synthetic.NAME
    )
    for i, (page, nb) in enumerate(zip(pages, notebooks.values(), strict=True)):
        renderer = Prose(set(notebooks))
        prose = mistune.create_markdown(renderer=renderer, plugins=["table", "strikethrough"])
        _write(
            folder / "html" / f"{page['name']}.html",
            frame.render(
                page=page,
                blocks=blocks(nb, prose),
                headings=[h for h in renderer.headings if h["level"] == 2],
                before=pages[i - 1] if i else None,
                after=pages[i + 1] if i + 1 < len(pages) else None,
            ),
        )
    index = folder / "html" / "index.html"
    _write(index, frame.render(page=None, headline=HEADLINE, promise=PROMISE))
    for path in (
        set(index.parent.glob("*.html"))
        - {index.with_name(f"{name}.html") for name in notebooks}
        - {index}
    ):
        path.unlink()  # of a notebook that is no more
    return index


def _about(name: str, nb, entry: dict) -> dict:
    """What the index and the neighbours of a page say of it."""
    return {
        "name": name,
        "number": name[:2],
        "title": re.sub(r"^\d\d\W+", "", title(nb)),
        "promise": promise(nb),
        "thumbnail": thumbnail(nb),
        "entry": entry,
        "colab": _colab(name),
    }


def promise(nb) -> str:
    """The first paragraph below a notebook's title, as plain text."""
    text = next(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if not part.startswith("#")]
    return re.sub(r"[*_`]", "", paragraphs[0]).replace("\n", " ").strip() if paragraphs else ""


def _frame(**everywhere) -> jinja2.Template:
    here = Path(__file__).parent
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(everywhere, style=(here / "site.css").read_text(encoding="utf-8"))
    return environment.from_string((here / "site.html.j2").read_text(encoding="utf-8"))


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _manifest(folder: Path) -> dict:
    try:
        return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _conditions(card: dict) -> str:
    try:
        return f"{conditions(card['environment'])}, Python {card['environment']['python']}"
    except KeyError:
        return ""


def _colab(name: str) -> str | None:
    """Where Colab opens the notebook; nothing while the repository has no real address."""
    if "_" in address.REPO.split("/")[0]:
        return None
    return f"{COLAB}/{address.REPO}/blob/{address.REF}/notebooks/{name}.ipynb"


def newest() -> Path:
    """The run that was written last, else the published one."""
    runs = [path.parent for path in (ROOT / "outputs" / "run").glob("*/manifest.json")]
    return max(runs, key=lambda run: (run / "manifest.json").stat().st_mtime, default=PUBLISHED)
