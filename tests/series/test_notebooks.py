"""What every notebook of the series keeps to, and what is published."""

import base64
import json
import re

import pytest
from notebook_fixtures import NOTEBOOKS, book

from nanogpt.data import SHA256, CorpusError, load_corpus
from nanogpt.decoder.checkpoint import load_checkpoint
from nanogpt.files import PUBLISHED, ROOT, sha256
from nanogpt.series import mirror
from nanogpt.series.execute import check_outputs
from nanogpt.series.parameters import read_parameters
from nanogpt.site import nbfile, reading
from nanogpt.site.html import COVERS, verdict
from nanogpt.site.nbfile import FILLED, alt_text, ours, png_of

REAL_CORPUS = True
EXECUTED = sorted(PUBLISHED.glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
published = pytest.mark.parametrize("path", EXECUTED, ids=lambda path: path.stem)


def code_cells(path):
    return [cell for cell in book(path).cells if cell.cell_type == "code"]


# ------------------------------------------------------------------ the sources


def test_all_are_in_step_with_the_package():
    assert mirror.sync(check=True) == [], "run `make sync`"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    read = re.findall(r"\[read\]\(outputs/published/(\w+)\.ipynb\)", readme)
    assert read == [path.stem for path in NOTEBOOKS]


@each
def test_the_form_is_the_one_that_all_tools_read(path):
    nb = book(path)
    assert (nb.nbformat, nb.nbformat_minor, nb.metadata) == (4, 5, nbfile.METADATA)
    assert re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem)
    ids = [cell.id for cell in nb.cells]
    assert len(ids) == len(set(ids))
    plain = r"[a-z][a-z0-9-]{1,40}"
    random = r"[0-9a-f-]{8,}"
    unreadable = [i for i in ids if not re.fullmatch(plain, i) or re.fullmatch(random, i)]
    assert not unreadable, f"give these cells names that say what they are: {unreadable}"


@each
def test_the_parameters_are_annotated_literals_and_only_that(path):
    parameters = read_parameters(path)
    assert parameters["profile"].default == "auto"
    for parameter in parameters.values():
        kind = parameter.kind.removesuffix(" | None")
        assert kind in ("str", "int", "float", "bool"), parameter
        assert parameter.default is None or type(parameter.default).__name__ == kind, parameter
    lines = book(path).cells[3].source.splitlines()
    assert all("#" in line for line in lines), "say in a comment what each parameter is for"


@each
def test_mirrored_code_is_used_below_and_defined_nowhere_else(path):
    """What the package has is imported or mirrored; a second definition would drift."""
    cells = code_cells(path)
    for i, cell in enumerate(cells):
        below = "\n".join(other.source for other in cells[i + 1 :])
        for name in (full.rpartition(".")[2] for full in ours(cell).get("mirror", [])):
            assert re.search(rf"\b{name}\b", below), f"{cell.id!r}: {name} is used nowhere below"
            again = rf"^from nanogpt\S* import .*\b{name}\b"
            assert not re.search(again, below, re.M), f"{name} is imported below its mirror"


def test_each_notebook_draws_the_figure_that_stands_on_its_card():
    for path in NOTEBOOKS:
        text = "\n".join(cell.source for cell in code_cells(path))
        figures = re.findall(r"run\.(?:figure|animation)\((.*?)\)$", text, re.M | re.S)
        name = COVERS.get(path.stem[:2])
        found = name is None or any(f'"{name}"' in drawn for drawn in figures)
        assert found, f"{path.stem} draws no {name}"


@each
def test_links_in_prose_lead_somewhere(path):
    for cell in book(path).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)#\s]+)", cell.source):
                there = target.startswith("https://") or (path.parent / target).is_file()
                assert there, f"cell {cell.id!r}: {target}"


def test_the_readmes_own_code_runs_alone(monkeypatch, capsys):
    """The first piece is an excerpt of a class, and says so; each of the others is a whole."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, *pieces = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    for piece in pieces:
        exec(piece, {})
        assert len(capsys.readouterr().out) >= 200


# ------------------------------------------------------------------ the published run


def test_the_published_run_is_whole():
    card = json.loads((PUBLISHED / "manifest.json").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    # A notebook is published by the next run: until then its row gives no seconds.
    waiting = re.findall(r"\(notebooks/(\w+)\.ipynb\).*\| — \|$", readme, re.M)
    names = [path.stem for path in NOTEBOOKS if path.stem not in waiting]
    assert [path.stem for path in EXECUTED] == names
    assert [entry["notebook"] for entry in card["notebooks"] if entry["ok"]] == names
    assert (card["profile"], card["settings"], card["corpus"]["sha256"]) == ("full", [], SHA256)
    top = {path.name for path in PUBLISHED.iterdir() if path not in EXECUTED}
    assert top == {"html", "figures", "json", "checkpoints", "manifest.json"}
    pages = {page.stem for page in (PUBLISHED / "html").glob("*.html")}
    assert pages == {"api", "index", "live", "museum", "your_cache", *reading.PAGES, *names}
    for entry, path in zip(card["notebooks"], EXECUTED, strict=True):
        assert entry["sha256"] == sha256(path)
        kept = [file for file in entry["files"] if not re.search(r"-last\.|\.jsonl$", file)]
        assert [file for file in kept if not (PUBLISHED / file).is_file()] == []


@published
def test_a_published_notebook_ran_to_the_end_in_order_and_names_no_folder_of_its_machine(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [cell.id for cell in cells if any(o.output_type == "error" for o in cell.outputs)]
    check_outputs(path)
    files = [path, *PUBLISHED.glob(f"json/{path.stem[:2]}*")]
    for file in files:
        assert not re.search(r"/(home|Users|root|tmp|work|content)/", file.read_text("utf-8"))


@published
def test_every_picture_is_a_figure_with_alt_text(path):
    figures = {file.read_bytes() for file in (PUBLISHED / "figures").glob(f"{path.stem[:2]}_*.png")}
    shown = [output for cell in code_cells(path) for output in cell.outputs if png_of(output)]
    assert all(len(alt_text(output)) > 20 for output in shown)
    assert {base64.b64decode(png_of(output)) for output in shown} == figures


@published
def test_after_every_blank_stand_its_check_and_its_solution(path):
    cells = book(path).cells
    for i, cell in enumerate(cells):
        if cell.source.startswith(FILLED):
            said = verdict("".join(output.get("text", "") for output in cells[i + 1].outputs))
            assert said.startswith("The solution passes its check: "), cell.id
            assert "<summary>Solution" in cells[i + 2].source, cell.id


@published
def test_no_more_than_a_line_of_the_corpus_is_printed(path, monkeypatch):
    monkeypatch.setenv("NANOGPT_OFFLINE", "1")
    try:
        corpus = load_corpus()
    except CorpusError as error:
        pytest.skip(str(error))
    if corpus.sha256 != SHA256:
        pytest.skip("Tiny Shakespeare is not at hand")
    lines = corpus.text.splitlines()
    pairs = {pair for pair in zip(lines, lines[1:], strict=False) if min(map(len, pair)) > 20}
    for cell in code_cells(path):
        for output in cell.outputs:
            said = output.get("text") or output.get("data", {}).get("text/plain", "")
            text = [line.strip() for line in said.split("\n")]
            found = pairs & set(zip(text, text[1:], strict=False))
            assert not found, f"cell {cell.id!r} prints two lines of the corpus: {found}"


def test_the_weights_are_small_good_and_recorded():
    names = sorted(path.name for path in (PUBLISHED / "checkpoints").iterdir())
    assert names == ["medium.json", "medium.safetensors"]
    weights = PUBLISHED / "checkpoints" / "medium.safetensors"
    assert weights.stat().st_size < 4_000_000
    meta = json.loads(weights.with_suffix(".json").read_text(encoding="utf-8"))
    assert meta == load_checkpoint(weights).meta
    assert (meta["config"]["block_size"], meta["corpus"]["sha256"]) == (256, SHA256)
    results = json.loads((PUBLISHED / "json" / "01.json").read_text(encoding="utf-8"))["results"]
    assert 1.0 < results["history"]["full_val"] <= 1.55
