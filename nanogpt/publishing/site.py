"""Executed notebooks as a small site: no script, no network, one file a page.

The look is in site.css, the frame of a page in site.html.j2, the cells are in html.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import jinja2

from ..config import address
from ..data import synthetic
from ..system.environment import conditions
from ..system.files import PUBLISHED, ROOT
from .html import Prose, blocks, promise, thumbnail
from .mirror import COLAB
from .nbfile import read, title, write_text

BRAND = "nanoGPT notebooks"
HEADLINE = "The same tokens, sooner"
PROMISE = (
    "Karpathy’s character-level GPT, a KV cache in every head, "
    "and the same text as before, token by token."
)


class SiteError(ValueError):
    """A folder that cannot be rendered; the message says why."""


def render(folder: Path) -> Path:
    """Write the pages of an output folder into html/ and return the path of their index.

    Pages of notebooks that have gone are removed. Raises SiteError, and SyncError for a notebook
    that cannot be read.
    """
    paths = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise SiteError(
            f"no executed notebooks in {folder}: run some first (python -m nanogpt run)"
        )
    notebooks = {path.stem: read(path) for path in paths}
    card, html = _manifest(folder), folder / "html"
    entries = {entry["notebook"]: entry for entry in card.get("notebooks", [])}
    pages = [_about(name, nb, entries.get(name, {})) for name, nb in notebooks.items()]
    frame = _frame(
        brand=BRAND, pages=pages, card=card, conditions=_conditions(card), practice=synthetic.NAME
    )
    texts = {"index.html": frame.render(page=None, headline=HEADLINE, promise=PROMISE)}
    for i, (name, nb) in enumerate(notebooks.items()):
        texts[f"{name}.html"] = _page(frame, pages, i, nb)
    for name, text in texts.items():
        write_text(html / name, text)
    for path in html.glob("*.html"):
        if path.name not in texts:
            path.unlink()
    return html / "index.html"


def _page(frame: jinja2.Template, pages: list[dict], i: int, nb) -> str:
    """The page of notebook number i."""
    prose = Prose({page["name"] for page in pages})
    return frame.render(
        page=pages[i],
        blocks=blocks(nb, prose),
        headings=[heading for heading in prose.headings if heading["level"] == 2],
        before=pages[i - 1] if i else None,
        after=pages[i + 1] if i + 1 < len(pages) else None,
    )


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


def _frame(**everywhere) -> jinja2.Template:
    here = Path(__file__).parent
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(everywhere, style=(here / "site.css").read_text(encoding="utf-8"))
    return environment.from_string((here / "site.html.j2").read_text(encoding="utf-8"))


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
    """Where Colab opens the notebook; None while the repository has no real address."""
    if "_" in address.REPO.split("/")[0]:
        return None
    return f"{COLAB}/{address.REPO}/blob/{address.REF}/notebooks/{name}.ipynb"


def newest() -> Path:
    """The run that was written last, else the published one."""
    runs = [path.parent for path in (ROOT / "outputs" / "run").glob("*/manifest.json")]
    return max(runs, key=lambda run: (run / "manifest.json").stat().st_mtime, default=PUBLISHED)
