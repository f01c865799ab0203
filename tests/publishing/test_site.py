"""The pages: readable from a disk by everyone, true to the notebooks; nothing loads."""

import json
import os
import re

import nbformat
import pytest
from notebook_fixtures import Page, code, output, page_faults, png, prose, write

from nanogpt.cli import site as command
from nanogpt.config import address
from nanogpt.publishing import html as page_html
from nanogpt.publishing import sections, site
from nanogpt.publishing.blanks import filled
from nanogpt.publishing.glossary import new_words
from nanogpt.publishing.output_folder import Folder
from nanogpt.system.files import ROOT

CARD = {
    "profile": "cpu",
    "corpus": {
        "name": "Tiny Shakespeare",
        "real": True,
        "characters": 1115394,
        "sha256": "86c4e6aa" * 8,
    },
    "environment": {
        "python": "3.11.7",
        "torch": "2.13.0",
        "device": "cpu",
        "threads": 2,
        "commit": "c0ffee" * 7,
        "dirty": True,
    },
    "notebooks": [{"notebook": "00_one", "ok": True, "seconds": 12.3, "error": None}],
}

FOLDS = """### A <b>blank</b> with [a link](01_two.ipynb)

<details><summary>Hint & <more></summary>

Add **both**.

- <i>one</i>
</details>

<details><summary>Solution</summary>

```python
both = q + k
```

</details>
"""


def folder_of(path, card=CARD):
    """An output folder with two executed notebooks that hold one of everything."""
    write(
        path / "00_one.ipynb",
        prose("[badge](https://img.example/x.svg)", "links", nanogpt={"generated": "links"}),
        code("# @title Set-up\nimport os", "setup", [output("python 3")], tags=["hide-input"]),
        code("# Parameters\nn = 2", "injected-parameters", tags=["injected-parameters"]),
        prose(
            "## A part\n\n"
            "To [the next](01_two.ipynb#more), <b>raw</b> <script>x()</script> & `code`.",
            "part",
        ),
        prose(
            "## A part\n\n![a picture](https://img.example/a.png)\n\n"
            "| a | b |\n|---|---:|\n| 1 | 2 |",
            "again",
        ),
        code(
            "def head(x):\n    return x", "mirror", nanogpt={"mirror": ["nanogpt.model.gpt.Head"]}
        ),
        code("plot()", "plot", [output(picture=png(), alt='a "red" <field>')], tags=["timing"]),
        code(
            "show()",
            "show",
            [output(**{"text/markdown": "```python\nx = 1\n```", "text/plain": "x = 1"})],
        ),
        code("print()", "print", [output("\x1b[31m<red>\x1b[0m & plain\n")], tags=["hide-input"]),
        prose(FOLDS, "folds"),
        title="00 · One <of> two",
    )
    animated = code("race()", "race", [output(picture=png(frames=3), alt="a race")])
    write(path / "01_two.ipynb", prose("## More", "more"), animated, title="01 · Two")
    (path / "manifest.json").write_text(json.dumps(card))
    return path


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("site"))
    assert site.render(folder) == folder / "html" / "index.html"
    return folder / "html"


@pytest.fixture(scope="module")
def one(html):
    return (html / "00_one.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["index", "00_one", "01_two"])
def test_nothing_keeps_a_reader_out(html, name):
    assert page_faults(html / f"{name}.html") == []


def test_the_checks_find_what_they_look_for(html, tmp_path):
    whole = (html / "00_one.html").read_text(encoding="utf-8")
    broken = {
        "loads or runs": whole.replace("</main>", "<iframe></iframe></main>"),
        "not ours": whole.replace("</main>", "<script>x()</script></main>"),
        "or not once": whole.replace("navigator.clipboard", "navigator.sendBeacon"),
        "is not ours": whole.replace("<script>", "<script src='x.js'>"),
        "loads https": whole.replace('src="data:', 'src="https://img.example/', 1),
        "without alt": whole.replace(' alt="', ' title="', 1),
        "an event": whole.replace("<main ", '<main onclick="x" '),
        "twice": whole.replace('id="a-part-2"', 'id="a-part"'),
        "nowhere": whole.replace('href="01_two.html#more"', 'href="02_gone.html"'),
        "h1 then h3": whole.replace("<h2", "<h3").replace("</h2", "</h3"),
        "no language": whole.replace('lang="en"', ""),
        "never closed": whole.replace("</main>", ""),
        "the style": whole.replace("<style>", "<style>@import 'x';"),
    }
    for expected, text in broken.items():
        assert text != whole, expected
        path = html / "broken.html"
        path.write_text(text, encoding="utf-8")
        try:
            faults = page_faults(path)
        except AssertionError as error:
            faults = [f"never closed: {error}"]
        finally:
            path.unlink()
        assert any(expected in fault for fault in faults), (expected, faults)


def test_links_lead_to_pages(one):
    page = Page(one)
    links = page.all("a", "href")
    assert "01_two.html#more" in links
    assert not [link for link in links if link.endswith(".ipynb") and not link.startswith("../")]
    assert "../00_one.ipynb" in links


def test_pages_know_each_other(html, one):
    assert 'rel="next" href="01_two.html"' in one
    assert 'rel="prev"' not in one
    assert 'rel="prev" href="00_one.html"' in (html / "01_two.html").read_text()
    assert '<a class="brand" href="index.html"' in one


def test_a_link_to_a_page_leads_there_from_every_copy_of_a_notebook():
    said = "[it](../outputs/published/html/live.html)"
    ran = filled(nbformat.v4.new_notebook(cells=[prose(said, "next")])).cells[0].source
    assert ran == "[it](html/live.html)"
    assert '<a href="live.html">it</a>' in page_html.Prose(set()).render(ran)


def test_headings_are_links_to_themselves_and_make_the_contents(one):
    assert '<h2 id="a-part"><a class="anchor" href="#a-part">A part</a></h2>' in one
    assert '<a class="anchor" href="#a-bblank-b-with-a-link">' in one, "no link inside a link"
    listed = re.findall(r'<li class="level-(\d)"><a href="#([^"]+)">', one)
    parts = [("2", "a-part"), ("2", "a-part-2"), ("3", "a-bblank-b-with-a-link")]
    assert listed == parts * 2, "beside the page, and in a fold where there is no place beside it"


def test_plumbing_is_folded_and_what_it_shows_is_not(one):
    assert re.search(r"<summary>Set-up</summary>\s*<div class=.listing.*?import.*?os", one, re.S)
    assert "@title" not in one
    assert re.search(r"<summary>Code</summary>.*?</details>\s*<div class=.output.", one, re.S)
    assert "<pre>python 3</pre>" in re.sub(r"<details>.*?</details>", "", one, flags=re.S)


def test_a_blank_is_shown_as_the_learner_gets_it(tmp_path):
    blank = {"tags": ["blank", "hide-input"], "nanogpt": {"blank": "def f(x):\n    ..."}}
    solved = code("# @title The solution\ndef f(x):\n    return x", "f", **blank)
    write(tmp_path / "00_x.ipynb", solved)
    site.render(tmp_path)
    words = " ".join(Page.read(tmp_path / "html" / "00_x.html").text.split())
    assert "for you to fill in; this run used the solution below" in words
    assert "def f(x): ..." in words
    assert "return x" not in words, "the text below folds it"


@pytest.mark.parametrize(
    ("first", "says", "rest"),
    [
        ("# @title A race", "A race", "x = 1"),
        ('#@title A race { display-mode: "form" }', "A race", "x = 1"),
        ("# title", "Code", "# title\nx = 1"),
        ("", "Code", "\nx = 1"),
    ],
)
def test_what_a_fold_says(first, says, rest):
    cell = code(f"{first}\nx = 1", "fold", tags=["hide-input"])
    assert page_html.fold_of(cell) == (says, rest)
    cell.metadata.tags = []
    assert page_html.fold_of(cell) == (None, cell.source)


def test_text_folds_and_no_other_html_is_obeyed(one):
    assert "<summary>Hint &amp; &lt;more&gt;</summary>" not in one, "a summary is plain words"
    folded = page_html.Prose(set()).render(FOLDS.replace("<more>", "more"))
    assert not Page(folded).open
    assert re.findall(r"<summary>(.*?)</summary>", folded) == ["Hint &amp; more", "Solution"]
    assert "<strong>both</strong>" in folded
    assert "<li>&lt;i&gt;one&lt;/i&gt;" in folded
    assert folded.count('<details class="fold">') == folded.count("</details>") == 2
    assert '<span class="n">both</span>' in folded


@pytest.mark.parametrize(
    ("text", "folds"),
    [
        ("<details><summary>Open</summary>\n\nnever closed", 1),
        ("</details>\n\n<details><summary>Reversed</summary>\n\nx", 1),
        ("<details><summary>A</summary>\nx\n</details>\n<details><summary>B</summary>\n- y", 2),
        ("- a\n\n  <details><summary>In a list</summary>\n\n  x\n\n  </details>", 1),
        ("<details open><summary>More</summary>\n\nx\n\n</details>", 0),
        ("<details onclick=x><summary>More</summary>\n\nx\n\n</details>", 0),
        ("<details><summary><b>More</b></summary>\n\nx\n\n</details>", 0),
    ],
)
def test_whatever_is_written_a_fold_closes_and_only_a_plain_one_folds(text, folds):
    page = Page(page_html.Prose(set()).render(text))
    assert not page.open
    assert [tag for tag, _ in page.tags].count("details") == folds


def test_reading_takes_as_long_as_the_words_and_the_open_code():
    words = {"kind": "prose", "html": f"<p>{'word ' * 400}</p><details>{'word ' * 400}</details>"}
    lines = {"kind": "code", "source": "x = 1\n\n" * 60, "folded": None}
    assert sections.minutes([words]) == 2
    assert sections.minutes([words, lines]) == 5
    assert sections.minutes([words, {**lines, "folded": "A figure"}]) == 2
    assert sections.minutes([]) == 1


def test_the_index_can_be_searched_by_section(html):
    page = Page.read(html / "index.html")
    rows = json.loads(page.scripts[0])
    assert [row[:4] for row in rows][1:3] == [
        ["00_one", "00 · One <of> two", "a-part", "A part"],
        ["00_one", "00 · One <of> two", "a-part-2", "A part"],
    ]
    assert rows[1][4] == "To the next, <b>raw</b> <script>x()</script> & code."
    assert rows[2][5] == "head return plot show print"
    for name in ("00_one", "01_two"):
        known = {row[2] for row in rows if row[0] == name}
        ids = {a["id"] for tag, a in Page.read(html / f"{name}.html").tags if tag in ("h1", "h2")}
        assert ids <= known


def test_the_script_is_inline_and_the_same_everywhere(html):
    script = (ROOT / "nanogpt/publishing/site.js").read_text(encoding="utf-8").strip()
    assert len(script) < 8000
    for path in html.glob("*.html"):
        assert Page.read(path).scripts[-1].strip() == script
        assert Page.read(path).all("form", "hidden") == [None], "no search without a script"


def test_raw_html_is_shown_and_not_obeyed(one):
    assert "&lt;script&gt;x()&lt;/script&gt;" in one
    assert "One &lt;of&gt; two" in one
    assert "<b>raw</b>" not in one


def test_pictures_from_elsewhere_become_links(one):
    assert "img.example/x.svg" not in one, "the links cell has no place on a page"
    assert '<a href="https://img.example/a.png">a picture</a>' in one


def test_pictures_keep_their_words_and_their_size(one):
    attributes = next(a for tag, a in Page(one).tags if tag == "img")
    assert attributes["alt"] == 'a "red" <field>'
    assert (attributes["width"], attributes["height"]) == ("40", "20")


def test_an_animation_has_a_still_for_those_who_want_no_motion(html, one):
    text = (html / "01_two.html").read_text(encoding="utf-8")
    still = next(a["srcset"] for tag, a in Page(text).tags if tag == "source")
    assert 'media="(prefers-reduced-motion: reduce)"' in text
    assert still not in Page(text).all("img", "src")
    assert "<source" not in one


def test_code_text_and_tables_look_like_themselves(one):
    assert '<span class="k">def</span>' in one
    assert '<span class="ansi-red-fg">&lt;red&gt;</span> &amp; plain' in one
    assert '<div class="table"><table>' in one
    shown = (
        '<div class="prose"><div class="listing"><pre class="code"><code><span class="n">x</span>'
    )
    assert shown in one


def test_a_page_says_where_its_code_and_numbers_come_from(one):
    assert "from the package: model.gpt.Head" in one
    assert "<summary>Parameters of this run</summary>" in one
    assert "measured in this run" in one
    footer = " ".join(one[one.index("<footer>") :].split())
    assert (
        "CPU, 2 threads, torch 2.13.0, Python 3.11.7 · profile cpu · Tiny Shakespeare, 1,115,394"
        in footer
    )
    assert "c0ffeec0ff</code>, with changes" in footer


def test_the_index_tells_and_shows_what_there_is(html):
    text = (html / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "What it promises." in page.text
    assert "1 min to read · ran in 12 s" in page.text
    assert "Start with 00 · One <of> two" in page.text
    assert page.all("img", "alt") == ['a "red" <field>', "a race"]
    assert [link for link in page.all("a", "href") if "#" not in link].count("00_one.html") == 3
    assert "00_one.html#a-part-2" in page.all("a", "href")


def test_answers_stay_closed_with_what_they_print(tmp_path):
    """A reader who scrolls past a question has not been told."""
    tables = {"Figures": output("seven"), "The answers": output("forty-two")}
    cells = [
        code(f"# @title {title}\nprint()", f"cell-{i}", [said], tags=["hide-input"])
        for i, (title, said) in enumerate(tables.items())
    ]
    write(tmp_path / "00_x.ipynb", *cells)
    site.render(tmp_path)
    page = (tmp_path / "html" / "00_x.html").read_text(encoding="utf-8")
    open_part = re.sub(r"<details.*?</details>", "", page, flags=re.S)
    assert "seven" in open_part
    assert "forty-two" in page
    assert "forty-two" not in open_part


def test_a_tag_chooses_the_thumbnail(tmp_path):
    first = code("1", "one", [output(picture=png("red"), alt="first")])
    second = code("2", "two", [output(picture=png("green"), alt="second")], tags=["thumbnail"])
    write(tmp_path / "00_x.ipynb", first, second)
    index = site.render(tmp_path).read_text(encoding="utf-8")
    assert Page(index).all("img", "alt") == ["second"]


NOTICES = {
    "practice corpus": (
        {"corpus": {**CARD["corpus"], "real": False}},
        "Practice corpus, not Shakespeare",
    ),
    "smoke": ({"profile": "smoke"}, "Its numbers mean nothing"),
    "failed since": (
        {"notebooks": [{"notebook": "00_one", "ok": False, "error": "cell 'x': no"}]},
        "from an earlier one",
    ),
}


@pytest.mark.parametrize(("change", "notice"), NOTICES.values(), ids=NOTICES)
def test_what_a_reader_has_to_know_stands_first(tmp_path, html, change, notice):
    folder = folder_of(tmp_path, {**CARD, **change})
    site.render(folder)
    page = (folder / "html" / "00_one.html").read_text(encoding="utf-8")
    assert notice in page[: page.index("<article>")]
    assert notice not in (html / "00_one.html").read_text(encoding="utf-8")


def test_a_page_names_the_text_that_it_was_made_with_whatever_the_last_run_had(tmp_path, html):
    practised = {"notebook": "00_one", "ok": True, "seconds": 9.0, "corpus": "practice corpus"}
    real = {"notebook": "01_two", "ok": True, "seconds": 9.0, "corpus": "Tiny Shakespeare"}
    folder = folder_of(tmp_path, {**CARD, "notebooks": [practised, real]})
    site.render(folder)
    one, two, index = (
        (folder / "html" / f"{name}.html").read_text(encoding="utf-8")
        for name in ("00_one", "01_two", "index")
    )
    assert "Practice corpus, not Shakespeare" in one
    assert "Practice corpus, not Shakespeare" not in two
    footers = [" ".join(page[page.index("<footer>") :].split()) for page in (one, two)]
    assert "· practice corpus" in footers[0]
    assert "Tiny Shakespeare" not in footers[0]
    assert "Tiny Shakespeare, 1,115,394" in footers[1]
    assert "different texts, practice corpus and Tiny Shakespeare" in index


def test_the_address_is_offered_only_when_there_is_one(tmp_path, monkeypatch, one):
    assert "colab" not in one
    monkeypatch.setattr(address, "REPO", "ada/engine")
    folder = folder_of(tmp_path)
    site.render(folder)
    page = (folder / "html" / "00_one.html").read_text(encoding="utf-8")
    assert (
        'href="https://colab.research.google.com/github/ada/engine/blob/main/notebooks/00_one.ipynb"'
        in page
    )


def test_rendering_again_changes_nothing_and_drops_what_is_gone(tmp_path):
    folder = folder_of(tmp_path)
    site.render(folder)
    before = {path.name: path.read_bytes() for path in (folder / "html").iterdir()}
    site.render(folder)
    assert {path.name: path.read_bytes() for path in (folder / "html").iterdir()} == before
    (folder / "01_two.ipynb").unlink()
    (folder / "00_one.ipynb").write_text(
        (folder / "00_one.ipynb").read_text().replace("01_two", "00_one")
    )
    site.render(folder)
    assert sorted(path.name for path in (folder / "html").iterdir()) == [
        "00_one.html",
        "index.html",
    ]


def test_a_folder_without_a_manifest_still_renders(tmp_path):
    write(tmp_path / "00_x.ipynb", "print(1)")
    assert page_faults(site.render(tmp_path)) == []


def test_the_command(tmp_path, capsys):
    assert command.main([str(folder_of(tmp_path / "out"))]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "html" / "index.html")
    (tmp_path / "empty").mkdir()
    assert command.main([str(tmp_path / "empty")]) == 2
    assert "no executed notebooks" in capsys.readouterr().err


def test_without_a_folder_the_newest_run_is_meant(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "ROOT", tmp_path)
    assert site.newest() == site.PUBLISHED
    for age, name in enumerate(("cpu", "smoke")):
        folder_of(tmp_path / "outputs" / "run" / name)
        os.utime(tmp_path / "outputs" / "run" / name / "manifest.json", (100 - age, 100 - age))
    assert site.newest() == tmp_path / "outputs" / "run" / "cpu"


BOX = """# 00 · Words

**What it promises.**

- *You need*: nothing.
- *New words*: a **token** is a piece of text. It may be long. **TTFT** is a wait; a
  **mask** hides
"""


def test_the_new_words_of_a_notebook_are_its_sentences_by_term():
    nb = nbformat.v4.new_notebook(cells=[prose(BOX, "title")])
    assert new_words(nb) == {
        "token": "A **token** is a piece of text. It may be long.",
        "TTFT": "**TTFT** is a wait.",
        "mask": "A **mask** hides.",
    }
    assert new_words(nbformat.v4.new_notebook(cells=[prose("# Title", "title")])) == {}


def test_the_index_defines_the_words_of_all_notebooks(tmp_path):
    write(tmp_path / "00_words.ipynb")
    nb = nbformat.read(tmp_path / "00_words.ipynb", 4)
    nb.cells[0].source = BOX
    nbformat.write(nb, tmp_path / "00_words.ipynb")
    index = site.render(tmp_path).read_text(encoding="utf-8")
    assert "<summary>00 · token, TTFT, mask</summary>" in index
    assert "A <strong>token</strong> is a piece of text. It may be long." in index
    assert page_faults(tmp_path / "html" / "index.html") == []


def test_only_pages_of_this_project_are_removed_or_replaced(tmp_path):
    folder = folder_of(tmp_path)
    index = site.render(folder)
    mine = {"notes.html": "<p>mine</p>", "07_mine.html": "<p>mine</p>"}
    for name, text in mine.items():
        (index.parent / name).write_text(text)
    (index.parent / "09_gone.html").write_bytes(index.read_bytes())
    site.render(folder)
    assert not (index.parent / "09_gone.html").exists()
    assert {name: (index.parent / name).read_text() for name in mine} == mine
    index.write_text("<p>mine</p>")
    with pytest.raises(site.SiteError, match="index.html is not a page of this project: move it"):
        site.render(folder)
    assert index.read_text() == "<p>mine</p>"


DAMAGED = {
    "null": None,
    "a list": [CARD],
    "a number": 7,
    "null inside": dict.fromkeys(CARD),
    "lists inside": {key: [1, "a", None] for key in CARD},
    "empty parts": {"corpus": {}, "environment": {}, "notebooks": [{}]},
    "half an entry": CARD | {"notebooks": [{"notebook": "00_one", "ok": True}, "01_two", [1]]},
    "an entry of other kinds": CARD
    | {"notebooks": [{"notebook": "00_one", "ok": True, "seconds": "x", "error": [1], "files": 7}]},
    "an environment of other kinds": CARD | {"environment": {"commit": 7}},
}


@pytest.mark.parametrize("card", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_manifest_counts_as_far_as_it_goes(tmp_path, card):
    write(tmp_path / "00_one.ipynb", "print(1)")
    (tmp_path / "manifest.json").write_text(json.dumps(card))
    assert page_faults(site.render(tmp_path)) == []
    kept = [entry["notebook"] for entry in Folder(tmp_path, {}).entries.values()]
    assert kept == (["00_one"] if isinstance(card, dict) and "00_one" in str(card) else [])
