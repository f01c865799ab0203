"""Every speedup that a reader meets is a row of one table, or a link to whoever measured it."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from notebook_fixtures import NOTEBOOKS, Page, prose, write

from nanogpt.files import PUBLISHED, ROOT
from nanogpt.site import build, reading, speed
from nanogpt.site.html import Prose, plain

README = (ROOT / "README.md").read_text(encoding="utf-8")
VALUES = speed.measured()
SPEEDUP = re.compile(r"\d[\d,.]*×(?!\s?\d)|\d[\d,.]* ?(?:×|times)[- ](?:faster|as fast)")
ANCHOR = re.compile(r"(?:index\.html|README\.md)?#(speed-[\w-]+)")
each_row = pytest.mark.parametrize("row", speed.ROWS.values(), ids=speed.ROWS)


def loose_speedups(html: str) -> list[str]:
    """The speedups in HTML that are no link to their row, or to a source elsewhere.

    Code, outputs of a program and the table itself are aside.
    """
    aside = r'<(pre|script|style|code)\b.*?</\1>|<table class="speed">.*?</table>'
    html = re.sub(aside, "", html, flags=re.S)
    loose = []
    for target, words in re.findall(r'<a\b[^>]*?href="([^"]*)"[^>]*>(.*?)</a>', html, re.S):
        found = SPEEDUP.search(words)
        row = ANCHOR.fullmatch(target)
        if row:
            value = VALUES.get(row[1].removeprefix("speed-"))
            said = value and speed.number(value["median"])
            if not said or (found and found[0] != said):
                loose.append(f"{plain(words)} → {target}, where {said} is")
        elif found and not re.match(r"https?://|outputs/", target):
            loose.append(f"{plain(words)} → {target}")
    rest = plain(re.sub(r"<a\b.*?</a>", "", html, flags=re.S))
    return loose + [
        f"{rest[max(0, m.start() - 40) : m.end() + 20]}" for m in SPEEDUP.finditer(rest)
    ]


def rendered(markdown: str) -> str:
    """Markdown as HTML, whatever page a link leads to."""
    return Prose({path.stem for path in NOTEBOOKS} | {"index.html"}).render(markdown)


CPP = speed.number(VALUES["cpp"]["median"])
LOOSE = {
    "a number alone": (f"It is {CPP} faster.", 1),
    "in words": ("It is 7 times faster, or 7 times as fast.", 2),
    "in bold": ("It is **2.5×** with a draft.", 1),
    "linked to a page": ("It is [2.5×](05_how_much_faster.ipynb) faster.", 1),
    "another number than the row's": ("It is [7×](#speed-cpp).", 1),
    "no such row": ("It is [7×](#speed-warp).", 1),
    "its row": (f"It is [{CPP}](#speed-cpp) faster.", 0),
    "its row on the index": (f"It is [{CPP}](html/index.html#speed-cpp) faster.", 0),
    "somebody else's": ("They report [7×](https://example.org/paper).", 0),
    "code": ("`2×` and\n\n```text\n3× as fast\n```", 0),
    "no speedup": ("3 × 4 numbers, 2×3, 5 times more, 2 × layers.", 0),
}


@pytest.mark.parametrize(("text", "count"), LOOSE.values(), ids=LOOSE)
def test_a_loose_speedup_is_found(text, count):
    assert len(loose_speedups(rendered(text))) == count


# ------------------------------------------------------------------ what a reader meets

# In notebook 05 as it was published last; its source has links, as every next publication will.
OLD = {"0.74 times as fast", "0.93 times as fast"}


def without_table(text: str) -> str:
    before, _, rest = text.partition(speed.BEGIN)
    return before + rest.partition(speed.TABLE_END)[2]


@pytest.mark.parametrize("path", [*reading.PAGES.values(), reading.ONE_HOUR], ids=lambda p: p.stem)
def test_every_speedup_in_the_reading_pages_links_to_its_row(path):
    text = path.read_text(encoding="utf-8")
    assert loose_speedups(rendered(reading.for_site(text))) == []


@pytest.mark.parametrize("name", ["README.md", "USAGE.md"])
def test_every_speedup_in_the_readme_is_a_row_or_links_to_it(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert loose_speedups(rendered(without_table(text))) == []
    anchors = re.findall(r"\]\(#(speed-[\w-]+)\)", text)
    assert [name for name in anchors if f'<a id="{name}"></a>' not in text] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_speedup_in_the_text_of_a_notebook_links_to_its_row(path):
    cells = nbformat.read(path, as_version=4).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = text.replace("](../outputs/published/html/", "](html/")
    assert loose_speedups(rendered(text)) == []


@pytest.mark.parametrize("path", sorted((PUBLISHED / "html").glob("*.html")), ids=lambda p: p.stem)
def test_every_speedup_in_the_text_of_a_page_links_to_its_row(path):
    html = path.read_text(encoding="utf-8")
    parts = re.findall(r'<section class="prose">(.*?)</section>', html, re.S)
    if not re.match(r"\d\d_", path.stem):
        parts = [html.partition("<main")[2].partition("</main>")[0]]
    found = [loose for part in parts for loose in loose_speedups(part)]
    assert [loose for loose in found if not any(old in loose for old in OLD)] == []


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> str:
    """The index of a folder with the notebooks whose cards have a number."""
    folder = tmp_path_factory.mktemp("index")
    for number in (*speed.CARDS, "99"):
        write(folder / f"{number}_x.ipynb", prose("## A part", "part"), title=f"{number} · X")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "KEEPER", Path("none"))
        return build.render(folder).read_text(encoding="utf-8")


def test_the_index_has_every_row_once_and_quotes_no_other_number(index):
    ids = Page(index).all("tr", "id")
    assert ids == [row.anchor for row in speed.ROWS.values()]
    assert loose_speedups(index.partition("<main")[2].partition("</main>")[0]) == []


def test_a_card_has_one_number_at_most_with_a_link_to_its_row(index):
    cards = re.findall(r'<li class="card">.*?</li>', index, re.S)
    assert len(cards) == len(speed.CARDS) + 1
    numbers = {}
    for card in cards:
        (notebook,) = re.findall(r'<h3><a href="(\d\d)_x', card)
        numbers[notebook] = re.findall(r'<a href="#speed-([\w-]+)">([^<]*)</a>', card)
    wanted = {"99": []}
    for notebook, (id, _) in speed.CARDS.items():
        wanted[notebook] = [(id, speed.number(VALUES[id]["median"]))]
    assert numbers == wanted


def test_the_index_says_what_a_kv_cache_is_before_anything_runs(index):
    before = plain(index.partition("<main")[2].partition('class="doors"')[0])
    assert "A KV cache keeps them, so that each step computes one token" in before


# ------------------------------------------------------------------ the table and its files


@each_row
def test_a_row_agrees_with_its_file(row):
    data = json.loads((ROOT / "outputs" / row.file).read_text(encoding="utf-8"))
    assert VALUES[row.id]["low"] <= VALUES[row.id]["median"] <= VALUES[row.id]["high"]
    card = data.get("environment") if isinstance(data, dict) else None
    if card:
        name = re.sub(r"\(R\)| Processor", "", card["device_name"])
        assert name in row.machine
        assert data.get("dtype", card.get("dtype")) == "float32"
        assert card["device"] == "cuda" or card["threads"] == 1
    else:
        assert row.machine == "NVIDIA H200"
    assert row.tokens == new_tokens(data, row)
    assert row.machine in speed.SETTINGS


def new_tokens(data, row) -> int:
    """The new tokens of the measurement, from the innermost part of the file that has them."""
    if row.id == "your-cache":
        return 1 + len(data["results"]["timing"]["systems"]["cached"]["itl"])
    if row.id == "smollm2-lookup":
        page = (PUBLISHED / "13_a_real_model.ipynb").read_text(encoding="utf-8")
        return int(re.search(r"(\d+) tokens in \d+ passes", page)[1])
    keys = row.path.split("/")
    ends = [key for key in range(1, len(keys)) if "=" not in keys[key]]  # after all conditions
    parts = [data, *(speed.find(data, "/".join(keys[:key])) for key in ends)]
    return [part["n_new"] for part in parts if isinstance(part, dict) and "n_new" in part][-1]


def test_the_readme_has_the_table_as_it_is_written_and_sync_writes_it_again():
    assert speed.with_speedups(README) == README, "run `make sync`"
    stale = README.replace(speed.readme_table(), "| another | table |")
    assert stale != README
    assert speed.with_speedups(stale) == README
    assert speed.with_speedups("no table here") == "no table here"


RUNGS = {
    "rungs": [
        {"rung": "1", "size": 1, "rate": {"median": 2}},
        {"rung": "7", "size": 1, "rate": {"median": 8}},
    ]
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("rungs/rung=7/rate/median", 8),
        ("rungs/rung=7/size=1", RUNGS["rungs"][1]),
        ("rungs/size=1/rate", None),
        ("rungs/rung=8/rate", None),
        ("rungs/rung=7/speed", None),
    ],
    ids=str,
)
def test_a_path_leads_to_one_item_or_fails(path, found):
    if found is None:
        with pytest.raises(LookupError):
            speed.find(RUNGS, path)
    else:
        assert speed.find(RUNGS, path) == found


def test_a_run_that_is_being_published_fills_the_table(tmp_path):
    data = json.loads((PUBLISHED / "json" / "05.json").read_text(encoding="utf-8"))
    data["results"]["timing"]["speedup"] = {"median": 7.0, "low": 6.0, "high": 8.0, "n": 5}
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "05.json").write_text(json.dumps(data), encoding="utf-8")
    values = speed.measured(tmp_path)
    assert speed.number(values["your-cache"]["median"]) == "7.0×"
    assert "cpp" not in values, "its file is not there"


@pytest.mark.parametrize(
    ("value", "said"), [(0.926, "0.93×"), (2.23, "2.2×"), (13.41, "13.4×"), (123.9, "124×")]
)
def test_a_number_has_as_many_digits_as_it_is_worth(value, said):
    assert speed.number(value) == said
