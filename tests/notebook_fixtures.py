"""Tiny notebooks for the tests of the tools, and what the tests ask of real ones."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from nanogpt import config
from nanogpt.bench import roofline
from nanogpt.config import GPTConfig
from nanogpt.decoder.config import DecoderConfig
from nanogpt.files import ROOT
from nanogpt.series import profiles
from nanogpt.series.execute import NotebookError, save
from nanogpt.site.nbfile import METADATA
from nanogpt.site.plots import style
from nanogpt.timing import summary
from nanogpt.training.recipes import TrainConfig

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMETERS = 'profile: str = "auto"  # how much\nn: int = 1\nword: str | None = None'


@functools.cache
def book(path: Path) -> nbformat.NotebookNode:
    """A notebook of the repository, read once: copy it before you change it."""
    return nbformat.read(path, as_version=4)


@functools.cache
def cells_of(notebook: int, *ids: str, imports: str = "import torch") -> dict:
    """What these cells of a notebook define together, given some names from above them."""
    names: dict = {}
    found = {cell.id: cell.source for cell in book(NOTEBOOKS[notebook]).cells}
    for source in (imports, *(found[id] for id in ids)):
        exec(source, names)
    return names


# The referee tries one scenario of each kind: cells are tested here, and not its reach.
BRIEF = {"LONGER": (64,), "MANY": 8}  # of servers
BRIEFLY = {"tokens": 0}


def brief_referee(patch: pytest.MonkeyPatch) -> None:
    """The referee as BRIEF says, in this process."""
    from nanogpt.kv_referee.trial import referee

    for name, value in BRIEF.items():
        patch.setattr(f"nanogpt.verify.server.{name}", value)
    for name, value in BRIEFLY.items():
        patch.setitem(referee.__kwdefaults__, name, value)


TINY = {"n_layer": 1, "n_head": 1, "n_embd": 16}
# A short stage first, as in the recipes: the weights before step 1 are not the ones kept.
TRAINED = TrainConfig(
    steps=4, batch_size=4, eval_every=2, eval_batches=1, stages=((0.5, 64),), zero_init=True
)


def tiny_series(patch: pytest.MonkeyPatch) -> None:
    """Tiny models, little work, coarse pictures: cells are tested here, not what they measure."""
    smoke = replace(
        profiles.PROFILES["smoke"],
        train=TRAINED,
        seeds=2,
        lengths=(1, 8),
        batches=(1, 2),
        repeats=1,
    )
    patch.setitem(profiles.PROFILES, "smoke", smoke)
    for name, shape in config.SIZES.items():
        patch.setitem(config.SIZES, name, replace(shape, **TINY))
    for kind in (GPTConfig, DecoderConfig):
        usual = kind.__init__.__defaults__
        patch.setattr(kind.__init__, "__defaults__", (*usual[:2], 1, *usual[3:]))
    peak = summary([1e9]) | {"how": "not measured"}  # a large product takes seconds
    patch.setattr(roofline, "peak_arithmetic", lambda **_: peak)
    patch.setattr(style, "DPI", 30)
    patch.setattr(style, "for_phone", lambda figure: None)
    brief_referee(patch)


def brief_kernels(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """The referee as BRIEF says and coarse pictures, in every kernel, by a start-up file."""
    lines = ["from nanogpt.kv_referee import trial", "from nanogpt.verify import server"]
    lines += [f"vars(server).update({BRIEF})", "del server"]
    lines += [f"trial.referee.__kwdefaults__.update({BRIEFLY})", "del trial"]
    lines += ["from nanogpt.site.plots import style", "style.DPI = 60", "del style"]
    startup = folder / "brief.py"
    startup.write_text("\n".join(lines), encoding="utf-8")
    patch.setenv("PYTHONSTARTUP", str(startup))


def png(colour: str = "red", frames: int = 1) -> bytes:
    """A small picture; with frames, an animated one."""
    from PIL import Image

    images = [Image.new("RGB", (40, 20 + i), colour).resize((40, 20)) for i in range(frames)]
    images[-1].putpixel((0, 0), (0, 0, 255))
    buffer = io.BytesIO()
    images[0].save(buffer, "PNG", save_all=frames > 1, append_images=images[1:])
    return buffer.getvalue()


def output(
    text: str | None = None, picture: bytes | None = None, alt: str | None = None, **data
) -> dict:
    """One output of a code cell: printed text, a picture, or other data by MIME type."""
    if text is not None:
        return v4.new_output("stream", name="stdout", text=text)
    metadata = {}
    if picture:
        data = {"image/png": base64.b64encode(picture).decode(), "text/plain": "<Image>"}
        metadata = {"image/png": {"alt": alt}} if alt else {}
    return v4.new_output("display_data", data=data, metadata=metadata)


def code(source: str, id: str, outputs=(), **metadata) -> nbformat.NotebookNode:
    return v4.new_code_cell(source, id=id, outputs=list(outputs), metadata=metadata)


def prose(source: str, id: str, **metadata) -> nbformat.NotebookNode:
    return v4.new_markdown_cell(source, id=id, metadata=metadata)


def write(path: Path, *cells, title: str = "Small", parameters: str | None = PARAMETERS) -> Path:
    """A notebook: a title, a parameters cell, and the cells given; a string is a code cell."""
    head = [prose(f"# {title}\n\n**What it promises.**", "title")]
    if parameters is not None:
        head.append(code(parameters, "parameters", tags=["parameters"]))
    numbered = enumerate(cells, 1)
    body = [code(cell, f"cell-{i}") if isinstance(cell, str) else cell for i, cell in numbered]
    nb = v4.new_notebook(cells=head + body, metadata=METADATA)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, path)
    return path


def run_cells_here(nb_man, kernel_name, *, options, **_) -> None:
    """papermill's engine without a kernel: the cells run in this process, in turn."""
    variables, target, _timeout, before_cell = options
    scope = {}
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
            for index, cell in enumerate(nb_man.nb.cells):
                if cell.cell_type == "code":
                    before_cell(index, cell)
                    _run_cell(cell, scope)
    finally:
        save(nb_man.nb, target)


def _run_cell(cell, scope: dict) -> None:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(cell.source, scope)
    except Exception as error:
        said = {"ename": type(error).__name__, "evalue": str(error), "traceback": []}
        cell.outputs.append(v4.new_output("error", **said))
        raise NotebookError(f"cell {cell.id!r}: {said['ename']}: {error}") from None
    finally:
        if printed.getvalue():
            cell.outputs.insert(0, output(printed.getvalue()))


class Page(HTMLParser):
    """What an HTML page is made of, for questions about it."""

    VOID = {"meta", "img", "source", "hr", "br", "link", "input"}

    def __init__(self, text: str):
        super().__init__()
        self.tags = []
        self.open = []
        self.text = ""
        self.scripts = []
        self.styles = ""
        self.feed(text)

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    handle_startendtag = handle_starttag  # <hr />

    def handle_endtag(self, tag):
        assert [tag] == self.open[-1:], f"</{tag}> closes what is not open"
        self.open.pop()

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] == ["style"]:
            self.styles += data
        elif self.open[-1:] != ["title"]:
            self.text += data

    def all(self, tag: str, attribute: str) -> list[str]:
        found = [attributes for name, attributes in self.tags if name == tag]
        return [attributes[attribute] for attributes in found if attribute in attributes]

    @property
    def headings(self) -> list[int]:
        return [int(tag[1]) for tag, _ in self.tags if re.fullmatch(r"h[1-6]", tag)]


def own_script(script: str, kinds: set[str]) -> str:
    """The script of a page with figures of these kinds."""
    files = [*(["dom.js"] if script == "site.js" else []), script]
    files += ["stage.js", "figures.js"] if kinds else []
    files += [f"figures/{kind}.js" for kind in sorted(kinds)]
    texts = [(ROOT / "nanogpt/site/templates" / file).read_text(encoding="utf-8") for file in files]
    return "\n".join([*texts, *(["startFigures();"] if kinds else [])])


def page_faults(path: Path, script: str = "site.js") -> list[str]:
    """What keeps a page from being read by everyone from a disk; empty when nothing does."""
    page = Page.read(path)
    names, attributes = zip(*page.tags, strict=True)
    scripts = [script for script in page.scripts if not script.lstrip().startswith(("[", "{"))]
    ours = own_script(script, {a["data-kind"] for a in attributes if "data-kind" in a})
    loads = [value for tag in ("img", "source") for value in page.all(tag, "src")]
    loads += page.all("source", "srcset")
    ids = [a["id"] for a in attributes if "id" in a]
    steps = list(zip([0, *page.headings], page.headings, strict=False))
    links = [link.partition("#") for link in page.all("a", "href") if link[:8] != "https://"]
    faults = {
        "never closed": page.open,
        "loads or runs": {"object", "embed", "link", "base"} & set(names),
        "frames": set(page.all("iframe", "src")) - {"live.html#strip", "live.html#token"},
        "script not ours": [s.split() for s in scripts] != [ours.split()],
        "script from elsewhere": page.all("script", "src"),
        "an event": [key for a in attributes for key in a if key.startswith("on")],
        "a picture loads": [value[:60] for value in loads if value[:15] != "data:image/png;"],
        "the style loads": re.findall(r"url\(|@import", page.styles),
        "without alt": [a for tag, a in page.tags if tag == "img" and not a.get("alt")],
        "twice": {name for name in ids if ids.count(name) > 1},
        "headings": page.headings.count(1) != 1 or [s for s in steps if s[1] > s[0] + 1],
        "no language": page.all("html", "lang") != ["en"],
        "nowhere": [to for to, _, id in links if id and not to and id not in ids]
        + [to for to, _, _ in links if to and not (path.parent / to).exists()],
    }
    return [f"{fault}: {found}" for fault, found in faults.items() if found]
