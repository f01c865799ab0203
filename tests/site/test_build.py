"""The pages: readable from a disk by everyone, true to the notebooks; nothing loads."""

import base64
import io
import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from notebook_fixtures import Page, code, output, page_faults, png, prose, write
from PIL import Image

from nanogpt.cli import main
from nanogpt.site import address, build, reading
from nanogpt.site import html as cells
from nanogpt.site.nbfile import FILLED, SyncError, filled

SHAKESPEARE = {"name": "Tiny Shakespeare", "real": True, "characters": 1115394, "sha256": "86" * 32}
MACHINE = {"python": "3.11.7", "torch": "2.13.0", "device": "cpu", "threads": 2}
CARD = {
    "profile": "full",
    "corpus": SHAKESPEARE,
    "environment": MACHINE | {"commit": "c0ffee" * 7, "dirty": True},
    "notebooks": [{"notebook": "00_one", "ok": True, "seconds": 12.3, "error": None}],
}
FOLDS = """### A <b>blank</b> with [a link](01_two.ipynb)

<details><summary>Hint & more</summary>

Add **both**.

- <i>one</i>
</details>
<details><summary>Solution</summary>

```python
both = q + k
```

</details>
"""
PARTS = """## A part

To [the next](01_two.ipynb#more), <b>raw</b> <script>x()</script> & `code`.

## A part

![a picture](https://img.example/a.png)

| a | b |
|---|---:|
| 1 | 2 |
"""


def folder_of(path, card=CARD):
    """An output folder with two executed notebooks that hold one of everything."""
    write(
        path / "00_one.ipynb",
        prose("[badge](https://img.example/x.svg)", "links", nanogpt={"generated": "links"}),
        code("# @title Set-up\nimport os", "setup", [output("python 3")], tags=["hide-input"]),
        code("# Parameters\nn = 2", "injected-parameters", tags=["injected-parameters"]),
        prose(PARTS, "parts"),
        code("def head(x):\n    return x", "mirror", nanogpt={"mirror": ["nanogpt.model.Head"]}),
        code("plot()", "plot", [output(picture=png(), alt='a "red" <field>')], tags=["timing"]),
        code("show()", "show", [output(**{"text/markdown": "```python\nx = 1\n```"})]),
        code("print()", "print", [output("\x1b[31m<red>\x1b[0m & plain\n")], tags=["hide-input"]),
        code("# @title The answers\nsay()", "answers", [output("forty-two")], tags=["hide-input"]),
        code(f"{FILLED}def f(x):\n    ...", "blank", tags=["blank"]),
        prose(FOLDS, "folds"),
        title="00 · One <of> two",
    )
    animated = code("race()", "race", [output(picture=png(frames=3), alt="a race")])
    write(path / "01_two.ipynb", prose("## More", "more"), animated, title="01 · Two")
    (path / "manifest.json").write_text(json.dumps(card), encoding="utf-8")
    return path


def rendered(folder) -> dict[str, str]:
    """The pages by name, each run of white space as one space."""
    index = build.render(folder)
    return {path.stem: squeezed(path) for path in index.parent.glob("*.html")}


def squeezed(path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(address, "REPO", "")
        patch.setattr(build, "KEEPER", Path("none"))  # live.html has tests of its own
        return build.render(folder_of(tmp_path_factory.mktemp("site"))).parent


def test_nothing_keeps_a_reader_out(html):
    pages = sorted(set(html.glob("*.html")) - {html / "museum.html"})  # test_museum_page.py
    names = ["00_one", "01_two", "api", "index", "your_cache"]
    assert [path.stem for path in pages] == sorted([*names, *reading.PAGES])
    pages = [path for path in pages if path.stem in ("00_one", "01_two", "index")]  # with a script
    assert [fault for path in pages for fault in page_faults(path)] == []


SAYS = {
    "00_one": {
        "a link to a notebook leads to its page": 'href="01_two.html#more"',
        "the notebook of the page": 'href="../00_one.ipynb"',
        "the next page": 'rel="next" href="01_two.html"',
        "the index": '<a class="brand" href="index.html"',
        "a heading is a link": '<h2 id="a-part"><a class="anchor" href="#a-part">A part</a></h2>',
        "no link in a link": '<a class="anchor" href="#a-bblank-b-with-a-link">',
        "contents": '<li class="level-2"><a href="#a-part-2">A part</a></li>',
        "a title of a fold": "<summary>Set-up</summary>",
        "a fold without one": "<summary>Code</summary>",
        "parameters": "<summary>Parameters of this run</summary>",
        "a picture from elsewhere": '<a href="https://img.example/a.png">a picture</a>',
        "alt text and size": 'alt=\'a "red" &lt;field&gt;\' height="20"',
        "raw HTML": "&lt;script&gt;x()&lt;/script&gt;",
        "coloured code": '<span class="k">def</span>',
        "coloured output": '<span class="ansi-red-fg">&lt;red&gt;</span> &amp; plain',
        "code in markdown": '<div class="prose"><div class="listing"><pre class="code"><code>',
        "a table that scrolls": '<div class="table"><table>',
        "where code comes from": "from the package: model.Head",
        "a timing": "measured in this run",
        "a blank": "# For you to fill in. This run used the solution that is folded below.",
        "a fold of text": '<details class="fold"> <summary>Hint &amp; more</summary>',
        "markdown in it": "<strong>both</strong>",
        "versions": "CPU, 2 threads, torch 2.13.0, Python 3.11.7 · profile full",
        "the text": "Tiny Shakespeare, 1,115,394 characters",
        "the commit": "c0ffeec0ff</code>, with changes",
    },
    "01_two": {
        "the page before": 'rel="prev" href="00_one.html"',
        "a still where no motion is wanted": 'media="(prefers-reduced-motion: reduce)" srcset="d',
    },
    "index": {
        "where to begin": "starting with 00 · One &lt;of&gt; two",
        "the promise": "What it promises.",
        "a picture with its words": 'alt="a &#34;red&#34; &lt;field&gt;"> <h3><a href="00_',
    },
}
SAYS_NOT = {
    "00_one": ["@title", "img.example/x.svg", "<b>raw", 'rel="prev"', "<source", "colab"],
    "index": ["live.html", "colab"],
}


@pytest.mark.parametrize(("page", "what"), [(page, what) for page in SAYS for what in SAYS[page]])
def test_a_page_has(html, page, what):
    assert SAYS[page][what] in squeezed(html / f"{page}.html")


@pytest.mark.parametrize("page", SAYS_NOT)
def test_a_page_has_not(html, page):
    text = re.sub("<s(tyle|cript)>.*?</s(tyle|cript)>", "", squeezed(html / f"{page}.html"))
    assert [words for words in SAYS_NOT[page] if words in text] == []


def test_the_index_links_every_page_beside_the_notebooks(html):
    index = Page.read(html / "index.html")
    beside = {f"{name}.html" for name in (*reading.PAGES, "api", "your_cache")}
    assert beside <= set(index.all("a", "href"))


def test_code_is_folded_and_what_it_shows_is_not_but_for_answers(html):
    """A reader who scrolls past a question has not been told."""
    text = squeezed(html / "00_one.html")
    unfolded = re.sub(r"<details.*?</details>", "", text)
    assert "<pre>python 3</pre>" in unfolded
    assert "forty-two" in text
    assert "forty-two" not in unfolded


@pytest.mark.parametrize(
    ("text", "folds"),
    [
        (FOLDS, 2),
        ("<details><summary>Open</summary>\n\nnever closed", 0),
        ("</details>\n\n<details><summary>Reversed</summary>\n\nx", 0),
        ("<details onclick=x><summary>More</summary>\n\nx\n\n</details>", 0),
        ("<details><summary><b>More</b></summary>\n\nx\n\n</details>", 0),
    ],
)
def test_whatever_is_written_a_fold_closes_and_only_a_plain_one_folds(text, folds):
    page = Page(cells.Prose(set()).render(text))
    assert not page.open
    assert [tag for tag, _ in page.tags].count("details") == folds


def test_a_link_to_a_page_leads_there_from_every_copy_of_a_notebook():
    said = "[it](../outputs/published/html/live.html)"
    ran = filled(nbformat.v4.new_notebook(cells=[prose(said, "next")])).cells[0].source
    assert ran == "[it](html/live.html)"
    row = "[it](html/index.html#speed-cpp)"
    assert '<a href="index.html#speed-cpp">it</a>' in cells.Prose({"index.html"}).render(row)
    assert '<a href="live.html">it</a>' in cells.Prose({"live.html"}).render(ran)
    away = "[one](https://example.com/x.ipynb), [two](01_x.ipynb#a)"
    pages = cells.Prose(set())
    assert pages.render(ran) == "<p>it</p>\n", "only words where there is no such page"
    assert pages.render(away) == '<p><a href="https://example.com/x.ipynb">one</a>, two</p>\n'


def test_the_index_can_be_searched_by_section(html):
    rows = json.loads(Page.read(html / "index.html").scripts[0])
    assert rows[1][:4] == ["00_one", "00 · One <of> two", "a-part", "A part"]
    assert rows[1][4] == "To the next, <b>raw</b> <script>x()</script> & code."
    assert rows[2][5].startswith("head return plot show print")


def test_many_equal_headings_and_markup_in_one_leave_the_page_and_the_search_whole(tmp_path):
    write(tmp_path / "00_x.ipynb", prose("## Main\n\n" + "## `<!--<script>`\n\n" * 120, "many"))
    index = build.render(tmp_path)
    assert page_faults(index.with_name("00_x.html")) == []
    (rows,) = re.findall(
        r'id="search-index">(.*?)</script>', index.read_text(encoding="utf-8"), re.S
    )
    assert "<" not in rows
    assert json.loads(rows)[-1][2:4] == ["script-120", "<!--<script>"]


def test_set_up_is_one_fold_and_no_blank_is_called_right(tmp_path):
    """A page shows the blank, that the solution passes, and where to write one's own."""
    nb = nbformat.v4.new_notebook(
        cells=[
            prose("# 00 · One\n\n**More.**", "title"),
            code("import os", "setup", [output("python 3\n")], tags=["hide-input"]),
            code("profile = 1", "injected", tags=["injected-parameters"]),
            prose("## An idea", "idea"),
            code(FILLED + "class Head: ...", "head", tags=["blank"]),
            code(
                "check()",
                "check",
                [
                    output(
                        "Right: Head does what it should.\nFrom here on the solution's Head runs.\n"
                    )
                ],
                tags=["hide-input"],
            ),
        ]
    )
    nbformat.write(nb, tmp_path / "00_one.ipynb")
    text = squeezed(build.render(tmp_path).with_name("00_one.html"))
    before, _, after = text.partition('<details class="setup">')
    assert "python 3" in after
    assert "python 3" not in before
    assert after.index("Parameters of this run") < after.index("An idea")
    assert "The solution passes its check: Head does what it should." in text
    assert "Right: Head" not in text
    assert "Head runs" not in text
    assert "jupyter lab notebooks/00_one.ipynb" in text


def test_a_damaged_picture_is_named_by_its_notebook(tmp_path):
    folder = folder_of(tmp_path)
    before = rendered(folder)
    path = folder / "01_two.ipynb"
    whole = base64.b64encode(png(frames=3)).decode()
    for damaged in ("QUJD", "A", whole[: len(whole) // 2]):
        path.write_text(path.read_text(encoding="utf-8").replace(whole, damaged), encoding="utf-8")
        with pytest.raises(SyncError, match="01_two.ipynb cannot be rendered"):
            build.render(folder)
        path.write_text(
            path.read_text(encoding="utf-8").replace(f'"{damaged}"', f'"{whole}"'), encoding="utf-8"
        )
    assert rendered(folder) == before


def test_the_map_and_next_lead_along_the_spine_and_a_branch_says_where_it_leaves(tmp_path):
    for name in ("00_a", "01_b", "02_c", "11_d", "12_e"):
        box = f"# {name[:2]} · {name[3]}\n\n- *Minutes*: 7 to read, 20 with the blanks.\n"
        nb = nbformat.v4.new_notebook(cells=[prose(box, "title")])
        nbformat.write(nb, tmp_path / f"{name}.ipynb")
    pages = rendered(tmp_path)
    turns = {name: re.findall(r'rel="(\w+)" href="(\w+)', text) for name, text in pages.items()}
    middle = [("prev", "01_b"), ("next", "02_c")] * 2
    assert turns["01_b"] == [("prev", "00_a"), ("next", "02_c")] * 2
    assert turns["11_d"] == middle, "the branch goes back to where it left"
    assert turns["12_e"] == [("prev", "02_c")] * 2, "what it leaves is not here: it is on the spine"
    assert "<span>A branch from</span> 01 · b" in pages["11_d"]
    assert 'A branch from here: <a href="11_d.html">11 · d</a>' in pages["01_b"]
    assert "00 to 12 in order: 28 min to read, 80 if you also fill in the blanks" in pages["index"]
    spine, branches = re.findall(r'<[ou]l class="cards">(.*?)</[ou]l>', pages["index"])
    assert re.findall(r'href="(\w+)', spine) == ["00_a", "01_b", "02_c", "12_e"]
    assert re.findall(r'href="(\w+)', branches) == ["11_d"]
    assert "7 min, 20 with the blanks · branches off 01 · b" in branches, "as the box says"


def drawn(figure, alt="a figure of a run"):
    """An output with a figure as run.figure shows it: its name, and its picture for a phone."""
    shown = output(picture=png(), alt=alt)
    tall = io.BytesIO()
    Image.new("RGB", (30, 60)).save(tall, "PNG")
    about = {"name": figure, "phone": base64.b64encode(tall.getvalue()).decode()}
    shown.metadata["image/png"] |= about
    return shown


def test_a_phone_gets_its_own_picture_and_a_card_the_upper_part_of_it(tmp_path):
    cell = [code("plot()", "plot", [drawn("first", "another"), drawn("ladder", "nine rungs")])]
    write(tmp_path / "06_limit.ipynb", *cell, title="06 · To the limit")
    pages = rendered(tmp_path)
    source = r'<source height="60" media="\(max-width: 500px\)" srcset="data:[^"]+" width="30"/>'
    assert len(re.findall(source, pages["06_limit"])) == 2
    (size,) = re.findall(r'<li class="card"> <img src="data:[^"]+" (.*?)>', pages["index"])
    assert size == 'width="30" height="26" alt="nine rungs"'


RAN = {"ok": True, "seconds": 9.0}
PRACTISED = {"notebook": "00_one", **RAN, "corpus": "practice corpus", "real": False}
REAL = {"notebook": "01_two", **RAN, "corpus": "Tiny Shakespeare", "real": True}
NOTICES = {
    "practice": ({"corpus": SHAKESPEARE | {"real": False}}, "00_one", "not Shakespeare"),
    "smoke": ({"profile": "smoke"}, "00_one", "Its numbers mean nothing"),
    "two texts": ({"notebooks": [PRACTISED, REAL]}, "00_one", "not Shakespeare"),
    "on the index": ({"notebooks": [PRACTISED, REAL]}, "index", "practice corpus and Tiny"),
}


@pytest.mark.parametrize(("change", "page", "notice"), NOTICES.values(), ids=NOTICES)
def test_notices_stand_at_the_top_of_a_page(tmp_path, html, change, page, notice):
    text = rendered(folder_of(tmp_path, CARD | change))[page]
    assert 'class="note warning"' in text
    assert notice in text[: text.index('<section class="prose"' if page != "index" else "<h1>")]
    assert "note warning" not in squeezed(html / f"{page}.html").partition("<body")[2]


def test_a_page_names_the_text_that_it_was_made_with_whatever_the_last_run_had(tmp_path):
    pages = rendered(folder_of(tmp_path, CARD | {"notebooks": [PRACTISED, REAL]}))
    footers = {name: text.partition("<footer>")[2] for name, text in pages.items()}
    assert "· practice corpus" in footers["00_one"]
    assert "Tiny Shakespeare" not in footers["00_one"]
    assert "Tiny Shakespeare, 1,115,394" in footers["01_two"]
    assert "not Shakespeare" not in pages["01_two"]


def test_a_page_about_a_model_from_elsewhere_says_nothing_of_the_corpus(tmp_path):
    """Notebook 00 shows the bundled model, whatever corpus there is."""
    elsewhere = PRACTISED | {"corpus": "", "real": True}
    practised = PRACTISED | {"notebook": "01_two"}
    card = CARD | {"corpus": SHAKESPEARE | {"name": "practice corpus", "real": False}}
    pages = rendered(folder_of(tmp_path, card | {"notebooks": [elsewhere, practised]}))
    assert "practice corpus" not in pages["00_one"].partition("<body")[2].lower()
    for name in ("01_two", "index"):
        assert "Practice corpus, not Shakespeare" in pages[name]


def test_with_an_address_a_page_leads_to_colab_and_a_published_one_to_its_notebook(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(address, "REPO", "ada/engine")
    folder = folder_of(tmp_path)
    page = rendered(folder)["00_one"]
    assert 'github/ada/engine/blob/main/notebooks/00_one.ipynb">open in Colab' in page
    assert 'href="../00_one.ipynb">this page' in page
    monkeypatch.setattr(build, "PUBLISHED", folder)
    there = "https://github.com/ada/engine/blob/main/outputs/published/00_one.ipynb"
    assert f'href="{there}">this page' in rendered(folder)["00_one"]


def test_rendering_again_changes_nothing_and_drops_what_is_gone(tmp_path):
    folder = folder_of(tmp_path)
    before = rendered(folder)
    assert rendered(folder) == before
    (folder / "00_one.ipynb").unlink()
    names = {"00_one", "01_two", "api", "index", "museum", "your_cache", *reading.PAGES}
    assert set(rendered(folder)) == names, "nothing is deleted"


def test_only_pages_of_this_project_are_replaced(tmp_path):
    folder = folder_of(tmp_path)
    index = build.render(folder)
    mine = {"notes.html": "<p>mine</p>", "07_mine.html": "<p>mine</p>"}
    for name, text in mine.items():
        (index.parent / name).write_text(text, encoding="utf-8")
    build.render(folder)
    assert {name: (index.parent / name).read_text(encoding="utf-8") for name in mine} == mine


def test_the_command_and_the_newest_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    assert build.newest() == build.PUBLISHED
    for age, name in enumerate(("cpu", "smoke")):
        folder = folder_of(tmp_path / "outputs" / "run" / name)
        os.utime(folder / "manifest.json", (100 - age, 100 - age))
    assert main(["site"]) == 0
    out = tmp_path / "outputs" / "run" / "cpu" / "html" / "index.html"
    assert capsys.readouterr().out.strip() == str(out)
    assert out.is_file()
    assert main(["site", str(tmp_path)]) == 2
    assert "no executed notebooks" in capsys.readouterr().err
