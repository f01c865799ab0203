"""Render slides and pages to print as HTML files, from Markdown; needs no network.

Slides are in Marp's format, which Marp itself and its editors show too: front matter, then slides
separated by `---`, each with the speaker's note in a comment.
"""

from __future__ import annotations

import base64
import html
import re
from contextlib import ExitStack
from pathlib import Path

import mistune

from ..files import OURS, ROOT, atomic_path, real_path, write_json
from ..training.folders import check_folder
from .html import DATA_URL, TEMPLATES, coloured

_SOURCES = ROOT / "notebooks" / "teaching"
_MARK = "slides.json"  # marks a folder that we wrote
FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.S)
NOTE = re.compile(r"<!--(.*?)-->", re.S)  # a speaker's note
TO_PRINT = ("board", "exam", "sheet")
DENSE = ("sheet",)  # in two columns of small type, to fit on one page


class SlidesError(ValueError):
    """A slides file that cannot be rendered; the message names it."""


class Slide(mistune.HTMLRenderer):
    """Markdown as HTML, with embedded pictures. Raw HTML is escaped."""

    def __init__(self, folder: Path):
        super().__init__(escape=True)
        self.folder = folder

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """A PNG file, embedded. Raises SlidesError if it is not there."""
        path = self.folder / url
        if path.suffix != ".png" or not path.is_file():
            raise SlidesError(f"{path}: no such PNG; `make publish` writes the figures")
        data = base64.b64encode(path.read_bytes()).decode()
        return f'<img src="{DATA_URL}{data}" alt="{html.escape(text)}">'

    def block_code(self, code: str, info: str | None = None) -> str:
        """Code, with one CSS class per kind of token."""
        return coloured(code, (info or "text").split()[0])


def split(path: Path) -> list[str]:
    """The slides of a file, as Markdown without notes. Raises SlidesError without front matter."""
    return [NOTE.sub("", slide).strip() for slide in _parts(path)]


def notes(path: Path) -> list[str]:
    """The speaker's note of each slide of a file; "" for none."""
    found = [NOTE.search(slide) for slide in _parts(path)]
    return [note[1].strip() if note else "" for note in found]


def _parts(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    front = FRONT.match(text)
    if not front or "marp: true" not in front[1]:
        raise SlidesError(f"{path} has no front matter with `marp: true`")
    return re.split(r"^---$", text[front.end() :], flags=re.M)


def render(path: Path) -> str:
    """A slides file as a standalone HTML page."""
    draw = mistune.create_markdown(renderer=Slide(path.parent), plugins=["table"])
    slides = split(path)
    title = slides[0].partition("\n")[0].lstrip("# ")
    shown = [*zip(map(draw, slides), notes(path), strict=True)]
    return TEMPLATES.get_template("slides.html.j2").render(title=title, slides=shown)


def render_to_print(path: Path, home: str = "") -> str:
    """A Markdown file as a standalone HTML page for paper; a line `---` begins a new sheet.

    With `home`, the page begins with a link there, which is not printed.
    """
    draw = mistune.create_markdown(renderer=Slide(path.parent), plugins=["table"])
    text = path.read_text(encoding="utf-8")
    title = text.partition("\n")[0].lstrip("# ")
    frame = TEMPLATES.get_template("print.html.j2")
    return frame.render(title=title, page=draw(text), home=home, dense=path.stem in DENSE)


def write_slides(out: Path, *, overwrite: bool = False) -> list[Path]:
    """Render what notebooks/teaching has for a class into a folder, and return the paths.

    Raises ValueError if the folder is not ours, unless `overwrite` is set, and SlidesError.
    """
    out = real_path(out)
    check_folder(out, _MARK, overwrite)
    pages = {f"{path.stem}.html": render(path) for path in sorted(_SOURCES.glob("session_*.md"))}
    pages |= {f"{name}.html": render_to_print(_SOURCES / f"{name}.md") for name in TO_PRINT}
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / _MARK, {"format": f"{OURS} slides", "files": list(pages)})
    with ExitStack() as files:
        for name, page in pages.items():
            files.enter_context(atomic_path(out / name)).write_text(page, encoding="utf-8")
    return [out / name for name in pages]
