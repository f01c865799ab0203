"""Tiny notebooks for the tests of the tools, and what the tests ask of real ones."""

from __future__ import annotations

import base64
import contextlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbformat import v4
from papermill import PapermillExecutionError

from nanogpt.publishing.nbfile import METADATA
from nanogpt.system.files import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMETERS = 'profile: str = "auto"  # how much\nn: int = 1\nword: str | None = None'


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


def execute_here(source, target, parameters, *, on_cell_start, config, **_) -> None:
    """papermill.execute_notebook without a kernel: the cells run in this process, in turn."""
    nb, scope = nbformat.read(source, 4), {}
    lines = "\n".join(["# Parameters", *(f"{name} = {v!r}" for name, v in parameters.items())])
    tagged = ["parameters" in cell.metadata.get("tags", []) for cell in nb.cells]
    injected = code(lines, "injected", tags=["injected-parameters"])
    nb.cells.insert(tagged.index(True) + 1, injected)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in config.Kernel.variables.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        try:
            for i, cell in enumerate(nb.cells):
                if cell.cell_type == "code":
                    on_cell_start(cell=cell, cell_index=i)
                    _execute_cell(cell, i, scope)
        finally:
            nbformat.write(nb, target)


def _execute_cell(cell, i: int, scope: dict) -> None:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(cell.source, scope)
    except Exception as error:
        said = {"ename": type(error).__name__, "evalue": str(error), "traceback": []}
        cell.outputs.append(v4.new_output("error", **said))
        raise PapermillExecutionError(i, i, cell.source, **said) from None
    finally:
        if printed.getvalue():
            cell.outputs.insert(0, output(printed.getvalue()))


class Page(HTMLParser):
    """What an HTML page is made of, for questions about it."""

    VOID = {"meta", "img", "source", "hr", "br", "link", "input"}

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.headings, self.open, self.text = [], [], [], ""
        self.scripts: list[str] = []
        self.feed(text)

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert [tag] == self.open[-1:], f"</{tag}> closes what is not open"
        self.open.pop()

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] not in (["style"], ["title"]):
            self.text += data

    def all(self, tag: str, attribute: str) -> list[str]:
        return [
            attributes[attribute]
            for name, attributes in self.tags
            if name == tag and attribute in attributes
        ]


def page_faults(path: Path) -> list[str]:
    """What keeps a page from being read by everyone from a disk; empty when nothing does."""
    text, faults = path.read_text(encoding="utf-8"), []
    page = Page(text)
    if page.open:
        faults.append(f"never closed: {page.open}")
    if any(name in ("iframe", "object", "embed", "link", "base") for name, _ in page.tags):
        faults.append("loads or runs something")
    data = [kind == "application/json" for kind in page.all("script", "type")]
    ours = (ROOT / "nanogpt/publishing/site.js").read_text(encoding="utf-8")
    foreign = [script for script in page.scripts[sum(data) :] if script.strip() != ours.strip()]
    if foreign or page.all("script", "src") or not all(data) or len(page.scripts) > sum(data) + 1:
        faults.append("runs a script that is not ours, or not once")
    if any(key.startswith("on") for _, attributes in page.tags for key in attributes):
        faults.append("an event handler")
    loads = [value for tag in ("img", "source", "video", "audio") for value in page.all(tag, "src")]
    loads += page.all("source", "srcset")
    faults += [
        f"loads {value[:60]}" for value in loads if not value.startswith("data:image/png;base64,")
    ]
    if re.search(r"url\(|@import", "".join(re.findall(r"<style>.*?</style>", text, re.S))):
        faults.append("the style loads something")
    faults += [
        f"a picture without alt: {a.get('src', '')[:40]}"
        for t, a in page.tags
        if t == "img" and not a.get("alt")
    ]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    faults += [f"id {name} twice" for name in {name for name in ids if ids.count(name) > 1}]
    if page.headings.count(1) != 1 or page.headings[0] != 1:
        faults.append(f"headings begin {page.headings[:3]}")
    faults += [
        f"h{a} then h{b}"
        for a, b in zip(page.headings, page.headings[1:], strict=False)
        if b > a + 1
    ]
    if dict(page.tags).get("html", {}).get("lang") != "en" or not re.search(
        r"<title>\S.*</title>", text
    ):
        faults.append("no language or no title")
    for link in page.all("a", "href"):
        target, _, fragment = link.partition("#")
        if re.match(r"https://", target):
            continue
        if fragment and not target and fragment not in ids:
            faults.append(f"#{fragment} leads nowhere")
        if target and not (path.parent / target).exists():
            faults.append(f"{target} leads nowhere")
    return faults
