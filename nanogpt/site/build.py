"""Executed notebooks as a small static site: one self-contained file per page, readable offline.

The style is in templates/site.css and the page frame in templates/site.html.j2; nbconvert renders
the cells with the template in templates/page and the filters in html.py. One small script, site.js,
copies code, enlarges figures and searches; every page is readable without it. live.html runs the
model itself, with its weights embedded.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from ..bench.environment import conditions
from ..decoder.checkpoint import load_checkpoint
from ..decoder.config import beyond_lecture
from ..engines.portable import packed
from ..files import KEEPER, PUBLISHED, ROOT, real_path, write_whole
from ..timing import Summary
from ..training.recipes import MODERN
from . import address, speed
from .address import colab
from .api_page import api_page
from .html import (
    TEMPLATES,
    Prose,
    article,
    cover,
    minutes,
    moving_kinds,
    promise,
    script_json,
    sections,
)
from .museum_page import museum_page
from .nbfile import SyncError, place, read, read_manifest, title
from .reading import one_hour, reading_pages

# live_model.js supports the bundled model's architecture, in any of these sizes.
_SHAPE = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "rope_base")
_LARGEST = 1_000_000  # bytes of weights; base64 adds a third
# Rotary positions have no limit, but a model learned to look back no further than its block. So
# on the page a character sees the last block_size: the bundled model's loss is then 1.46 at
# positions 500 to 700, and 1.43 at 128 to 256. If it sees the whole text, the loss rises to 1.91.
_LONGEST = 600  # new characters
# Prompts, with seeds whose text reads well at the page's temperature.
PRESETS: list[dict[str, Any]] = [
    {"name": "a speaking name", "prompt": "JULIET:\n", "seed": 283, "length": 187},
    {"name": "a stage direction", "prompt": "Enter a Messenger.\n\n", "seed": 2, "length": 210},
    {
        "name": "a line of verse",
        "prompt": "Shall I compare thee to a summer's day?\n",
        "seed": 103,
        "length": _LONGEST,
    },
]


def render(folder: Path, home: Path | None = None) -> Path:
    """Write the pages of an output folder into html/ and return the path of their index.

    `home` is the folder's final location, if it will be moved. Raises SyncError for a folder
    without notebooks and for a notebook that cannot be read.
    """
    paths = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise SyncError(
            f"no executed notebooks in {folder}: run some first with python -m nanogpt run"
        )
    card = read_manifest(folder)
    html = folder / "html"
    where = card.get("environment")
    entries = {entry["notebook"]: entry for entry in card["notebooks"]}
    names = [path.stem for path in paths]
    museum = museum_page(names)
    live = live_page()
    more = {}
    if live:
        more["live.html"] = live
    if museum:
        more["museum.html"] = museum
    more["your_cache.html"] = your_cache_page(museum is not None)
    api = api_page()
    if api:
        more["api.html"] = api
    more |= reading_pages(names, more)
    pages = [_about(path, entries, names, more) for path in paths]
    is_published = PUBLISHED in (real_path(folder), home)
    repo = address.REPO if is_published else ""  # its files are online
    above = f"https://github.com/{repo}/blob/{address.REF}/outputs/published/" if repo else "../"
    outputs = "../../" if is_published else ""
    if address.REPO:
        outputs = f"https://github.com/{address.REPO}/blob/{address.REF}/outputs/"
    table = speedups(folder if is_published else PUBLISHED, outputs)
    frame = partial(
        TEMPLATES.get_template("site.html.j2").render,
        pages=pages,
        card=card,
        conditions=f"{conditions(where)}, Python {where['python']}" if where else "",
        more=more,
        above=above,
        speedups=table,
        factors={row["row"].id: row["factor"] for part in table for row in part["rows"]},
        card_numbers=speed.CARDS,
        one_hour=one_hour(names),
    )
    rows = []
    for page in pages:
        rows += [[page["name"], page["heading"], *row] for row in page["sections"]]
    texts = {"index.html": frame(search_index=script_json(rows)), **more}
    for page in pages:
        texts[f"{page['name']}.html"] = frame(page=page)
    for name, text in texts.items():
        write_whole(html / name, text.encode())
    return html / "index.html"


def speedups(published: Path, outputs: str) -> list[dict[str, Any]]:
    """The table of speedups, as parts with rows, for the files that exist.

    `published` is the folder of the published run. Links to files begin with `outputs`; if that is
    empty, there are no links.
    """
    values = speed.measured(published)
    parts = []
    for part in speed.STORY:
        rows = [_speedup(row, values[row.id], outputs) for row in part.rows if row.id in values]
        if rows:
            parts.append({"title": part.title, "says": part.says, "rows": rows})
    return parts


def _speedup(row: speed.Row, value: Summary, outputs: str) -> dict[str, Any]:
    return {
        "row": row,
        "factor": speed.number(value["median"]),
        "spread": speed.spread(value),
        "n": value["n"],
        "settings": row.settings,
        "source": outputs and outputs + row.file,
        "number": row.file.partition("/json/")[2].removesuffix(".json"),  # of its notebook, if any
    }


def _about(
    path: Path, entries: dict[str, dict[str, Any]], names: list[str], more: Collection[str]
) -> dict[str, Any]:
    """A page: its cells, and its entries in the index and on its neighbours' pages."""
    name = path.stem
    nb = read(path)
    prose = Prose({*names, *more, "index.html"})
    try:
        online = colab(name, address.REPO, address.REF)
        drawn = article(nb, prose, name, online)
        plain = re.sub(r"^\d\d\W+", "", title(nb))
        return {
            "name": name,
            "number": name[:2],
            "title": plain,
            "heading": f"{name[:2]} · {plain}",
            "promise": promise(drawn),
            "entry": entries.get(name, {}),
            "colab": online,
            "article": drawn,
            "contents": [heading for heading in prose.headings if heading["level"] in (2, 3)],
            "sections": sections(nb, Prose(prose.pages)),
            "minutes": minutes(nb),
            "cover": cover(nb, name[:2]),
            "moving": moving_kinds(nb),
            **place(name, names),
        }
    except (ValueError, OSError, SyntaxError, EOFError) as error:  # the last three: from a picture
        raise SyncError(f"{name}.ipynb cannot be rendered ({error}): run it again") from error


def your_cache_page(museum: bool) -> str:
    """The page on using the referee elsewhere; `museum` says whether the museum's page exists."""
    repository = address.REPO and f"https://github.com/{address.REPO}"
    frame = TEMPLATES.get_template("your_cache.html.j2")
    return frame.render(museum=museum, repository=repository)


def live_page() -> str | None:
    """The page that runs the bundled model; None if its checkpoint cannot run in a page.

    The checkpoint must exist, be undamaged, have the architecture of the recipe `keeper` and a
    width that is a multiple of 4, and take at most _LARGEST bytes.
    """
    try:
        saved = load_checkpoint(KEEPER)
        losses = saved.meta["losses"]
        val = losses.get("full_val", losses["val"])  # over all of the validation text, if known
        facts = {"corpus": saved.meta["corpus"]["name"], "val": float(val)}
    except (OSError, KeyError, TypeError, ValueError):
        return None
    config = saved.model.config
    form = beyond_lecture(config)
    form.pop("rope_base", None)
    if form != MODERN or config.n_embd % 4:
        return None
    weights = packed(saved.model)
    if len(weights) > _LARGEST:
        return None
    shape = {name: getattr(config, name) for name in _SHAPE}
    text = base64.b64encode(weights).decode("ascii")
    chars = saved.tokenizer.chars
    data = {"config": shape, "vocabulary": chars, "longest": _LONGEST, "weights": text}
    return TEMPLATES.get_template("live.html.j2").render(
        facts,
        config=shape,
        longest=_LONGEST,
        presets=[preset for preset in PRESETS if set(preset["prompt"]) <= set(chars)],
        parameters=config.n_params,
        checkpoint=(KEEPER.relative_to(ROOT) if KEEPER.is_relative_to(ROOT) else KEEPER).as_posix(),
        data=script_json(data),
    )


def newest() -> Path:
    """The most recent run, else the published one."""
    runs = [path.parent for path in (ROOT / "outputs" / "run").glob("*/manifest.json")]
    return max(runs, key=lambda run: (run / "manifest.json").stat().st_mtime, default=PUBLISHED)
