"""What every notebook of the series keeps to; what is published was made from these notebooks."""

import ast
import base64
import json
import re
import subprocess
import sys

import nbformat
import pytest
from nbconvert import ScriptExporter
from notebook_fixtures import NOTEBOOKS, page_faults

from nanogpt.config import address
from nanogpt.data.corpus import SHA256, CorpusError, load_corpus
from nanogpt.publishing import mirror, nbfile
from nanogpt.publishing.blanks import filled, is_blank
from nanogpt.publishing.execute import alt_text, check_outputs
from nanogpt.publishing.glossary import new_words
from nanogpt.publishing.html import Prose, blocks
from nanogpt.publishing.parameters import read_parameters
from nanogpt.publishing.sections import minutes
from nanogpt.system.files import PUBLISHED, ROOT, sha256

REAL_CORPUS = True
EXECUTED = sorted(PUBLISHED.glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
published = pytest.mark.parametrize("path", EXECUTED, ids=lambda path: path.stem)
LONGEST = 25  # lines of a cell that is no mirror of package code, and not generated


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def ours(cell) -> dict:
    return cell.metadata.get("nanogpt", {})


def marked(path, **mark):
    return [cell for cell in read(path).cells if mark.items() <= ours(cell).items()]


# ------------------------------------------------------------------ the sources


@each
def test_the_form_is_the_one_that_all_tools_read(path):
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert (raw["nbformat"], raw["nbformat_minor"]) == (4, 5)
    assert raw["metadata"] == nbfile.METADATA
    assert re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem)
    ids = [cell["id"] for cell in raw["cells"]]
    assert len(ids) == len(set(ids))
    unreadable = [
        id
        for id in ids
        if not re.fullmatch(r"[a-z][a-z0-9-]{1,40}", id) or re.fullmatch(r"[0-9a-f-]{8,}", id)
    ]
    assert not unreadable, f"give these cells names that say what they are: {unreadable}"
    nbformat.validate(raw)


@each
def test_it_is_in_step_with_the_package(path):
    wanted = mirror.synced(path, NOTEBOOKS, address.REPO, address.REF)
    for cell, should in zip(read(path).cells, wanted.cells, strict=True):
        assert cell.source == should.source, f"cell {cell.id!r}: run `make sync`"
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    assert (
        path.read_text(encoding="utf-8") == nbformat.writes(wanted, version=4).rstrip("\n") + "\n"
    )


@each
def test_it_opens_with_a_title_links_and_set_up(path):
    cells = read(path).cells
    assert cells[0].cell_type == "markdown"
    assert re.match(rf"# {path.stem[:2]} · \S.*\n\n\*\*\S.*\*\*", cells[0].source), (
        "# NN · Title, then **a promise**"
    )
    assert [ours(cell).get("generated") for cell in cells[1:3]] == ["links", "setup"]
    assert "parameters" in cells[3].metadata.get("tags", [])
    assert len(marked(path, generated="setup")) == len(marked(path, generated="links")) == 1


@each
def test_a_box_says_what_to_expect_and_defines_the_new_words(path):
    cells = read(path).cells
    said = re.findall(r"^- \*(.+?)\*: \S", cells[0].source, re.M)
    assert said == ["You need", "You will be able to", "Minutes", "New words"]
    assert new_words(read(path))


@each
def test_the_box_says_how_long_it_takes(path):
    """The minutes to read are those that the pages compute; a blank takes 3 to 9 more."""
    nb = read(path)
    pages = minutes(blocks(filled(nb), Prose(set())))
    box = re.search(
        r"\*Minutes\*: (\d+) to read(?:, (\d+) with the blanks)?\.?$", nb.cells[0].source, re.M
    )
    assert box, f"*Minutes*: {pages} to read, … with the blanks."
    assert abs(int(box[1]) - pages) <= 2, f"the pages say {pages}"
    blanks = sum(is_blank(cell) for cell in nb.cells)
    assert 3 * blanks <= int(box[2] or box[1]) - int(box[1]) <= 9 * blanks


@each
def test_it_has_blanks(path):
    blanks = [cell for cell in code_cells(path) if is_blank(cell)]
    assert len(blanks) >= (0 if path.stem.startswith("00") else 3)


@each
def test_the_parameters_are_annotated_literals_and_only_that(path):
    parameters = read_parameters(path)
    assert parameters["profile"].default == "auto"
    for parameter in parameters.values():
        kind = parameter.kind.removesuffix(" | None")
        assert kind in ("str", "int", "float", "bool"), parameter
        assert parameter.default is None or type(parameter.default).__name__ == kind, parameter
    cell = next(cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", []))
    assert all("#" in line for line in cell.source.splitlines()), (
        "say in a comment what each parameter is for"
    )


@each
def test_nothing_is_installed_shelled_out_or_magic(path):
    for cell in code_cells(path):
        assert not re.search(
            r"^\s*[!%]|pip install|get_ipython|ipywidgets|tqdm\.(auto|notebook)", cell.source, re.M
        ), cell.id
        ast.parse(cell.source)


@each
def test_cells_are_short(path):
    for cell in code_cells(path):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= LONGEST or ours(cell), f"cell {cell.id!r} has {len(lines)} lines"


@each
def test_mirrored_code_is_used_below_and_defined_nowhere_else(path):
    """What the package has is imported or mirrored; a second definition would drift."""
    cells = code_cells(path)
    for i, cell in enumerate(cells):
        for name in (full.rpartition(".")[2] for full in ours(cell).get("mirror", [])):
            below = "\n".join(other.source for other in cells[i + 1 :])
            assert re.search(rf"\b{name}\b", below), (
                f"{name} is shown in cell {cell.id!r} and used nowhere below"
            )
            assert not re.search(rf"^from nanogpt\S* import .*\b{name}\b", below, re.M), (
                f"{name} is imported below its mirror"
            )


def is_tool(cell) -> bool:
    """Whether the cell calls itself a tool; it may only import and define."""
    if not cell.source.startswith("# @title Tools: "):
        return False
    defines = (ast.Import, ast.ImportFrom, ast.FunctionDef)
    return all(isinstance(node, defines) for node in ast.parse(cell.source).body)


@each
def test_plumbing_is_folded_and_the_lesson_is_open(path):
    """Cells that make figures or tables, save results, or define tools are folded; no others."""
    for cell in code_cells(path):
        plumbing = re.search(r"\b(show_table|run\.figure|run\.save|judge)\(", cell.source)
        folded = "hide-input" in cell.metadata.get("tags", [])
        assert folded == bool(plumbing or ours(cell).get("generated") or is_tool(cell)), cell.id
        assert folded == bool(re.match(r"# @title \S", cell.source)), (
            f"cell {cell.id!r}: a folded cell begins with `# @title What it shows`"
        )


@each
def test_headings_are_in_order(path):
    levels = []
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            levels += [
                len(mark)
                for mark in re.findall(
                    r"^(#+) ", re.sub(r"```.*?```", "", cell.source, flags=re.S), re.M
                )
            ]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False)), levels


@each
def test_prose_is_plain(path):
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.S)
            prose = re.sub(r"</?details>|<summary>[^<\n]+</summary>", "", prose)
            assert not re.search(r"<[a-z/!]", prose), (
                f"cell {cell.id!r}: no HTML, it is not obeyed on the pages"
            )
            assert not re.search(r"\$[^$\n]+\$|\\\(|\\\[", prose), (
                f"cell {cell.id!r}: no LaTeX, it is not drawn on the pages"
            )


@each
def test_links_lead_somewhere(path):
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)#]+)", cell.source):
                assert target.startswith("https://") or (path.parent / target).is_file(), (
                    f"cell {cell.id!r}: {target}"
                )


@each
def test_the_badge_opens_this_notebook_or_says_what_is_missing(path):
    links = marked(path, generated="links")[0].source
    badge = f"({mirror.COLAB}/{address.REPO}/blob/{address.REF}/notebooks/{path.name})"
    assert (mirror.NO_ADDRESS if mirror.is_placeholder(address.REPO) else badge) in links
    i = NOTEBOOKS.index(path)
    neighbours = NOTEBOOKS[max(0, i - 1) : i] + NOTEBOOKS[i + 1 : i + 2]
    assert re.findall(r"\]\((\d\d_\w+\.ipynb)\)", links) == [other.name for other in neighbours]


def test_every_badge_in_the_readme_opens_a_notebook():
    readme = ROOT / "README.md"
    if not readme.is_file():
        pytest.skip("there is no README.md yet")
    text = readme.read_text(encoding="utf-8")
    folder = f"{mirror.COLAB}/{address.REPO}/blob/{address.REF}/notebooks/"
    known = not mirror.is_placeholder(address.REPO)
    for path in NOTEBOOKS:
        (to,) = re.findall(rf"^\[{path.name[:2]}\]: (\S+)", text, re.M)
        assert to == (folder + path.name if known else "#the-notebooks")
        assert f"[Colab][{path.name[:2]}]" in text
    words = text.partition("## The notebooks")[2].partition("\n## ")[0]
    assert "`make badges REPO=owner/name`" in words


def test_the_readmes_own_code_runs_alone(monkeypatch, capsys):
    """The first piece is an excerpt of a class, and says so; each of the others is a whole."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, *pieces = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    for piece in pieces:
        exec(piece, {})
        assert len(capsys.readouterr().out) >= 200


def test_a_notebook_becomes_a_script_of_python():
    text, more = ScriptExporter().from_filename(str(NOTEBOOKS[0]))
    assert more["output_extension"] == ".py"
    compile(text, "script", "exec")


@pytest.mark.skipif(not NOTEBOOKS, reason="there are no notebooks yet")
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_is_content(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "notebooks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


# ------------------------------------------------------------------ the published run


needs_published = pytest.mark.skipif(not EXECUTED, reason="nothing is published yet")


@pytest.fixture(scope="module")
def card():
    return json.loads((PUBLISHED / "manifest.json").read_text(encoding="utf-8"))


@needs_published
def test_the_published_run_is_whole(card):
    assert [path.name for path in EXECUTED] == [path.name for path in NOTEBOOKS]
    assert [entry["notebook"] for entry in card["notebooks"]] == [path.stem for path in EXECUTED]
    assert all(entry["ok"] for entry in card["notebooks"])
    assert (card["profile"], card["settings"], card["corpus"]["sha256"]) == ("cpu", [], SHA256)
    top = {path.name for path in PUBLISHED.iterdir()} - {path.name for path in EXECUTED}
    assert top == {"html", "figures", "json", "checkpoints", "manifest.json"}


@published
def test_it_was_made_from_the_notebook_that_stands_here(path):
    source = filled(read(ROOT / "notebooks" / path.name)).cells
    executed = [cell for cell in read(path).cells if cell.id != "injected-parameters"]
    assert [cell.id for cell in executed] == [cell.id for cell in source], "run `make publish`"
    for cell, was in zip(source, executed, strict=True):
        assert was.source == cell.source, f"cell {cell.id!r} has changed since: run `make publish`"
        assert was.metadata == cell.metadata, cell.id


@published
def test_it_ran_to_the_end_in_order(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [cell.id for cell in cells if any(o.output_type == "error" for o in cell.outputs)]
    check_outputs(path)


@published
def test_it_is_the_file_that_the_manifest_means(path, card):
    entry = next(entry for entry in card["notebooks"] if entry["notebook"] == path.stem)
    assert entry["sha256"] == sha256(path)
    for file in entry["files"]:
        working = "-last." in file or file.endswith(".jsonl")
        assert (PUBLISHED / file).is_file() or working, file


@published
def test_it_names_no_folder_of_the_machine_that_made_it(path):
    text = path.read_text(encoding="utf-8") + "".join(
        p.read_text() for p in PUBLISHED.glob(f"json/{path.stem[:2]}*")
    )
    assert not re.search(r"/(home|Users|root|tmp|work|content)/", text)


@published
def test_every_picture_is_a_figure_with_alt_text(path):
    figures = {file.read_bytes() for file in (PUBLISHED / "figures").glob(f"{path.stem[:2]}_*.png")}
    shown = [
        o for cell in code_cells(path) for o in cell.outputs if "image/png" in o.get("data", {})
    ]
    assert all(len(alt_text(output)) > 20 for output in shown)
    assert {base64.b64decode(output.data["image/png"]) for output in shown} == figures


@published
def test_no_more_than_a_line_of_the_corpus_is_printed(path):
    try:
        corpus = load_corpus(download=False)
    except CorpusError as error:
        pytest.skip(str(error))
    if corpus.sha256 != SHA256:
        pytest.skip("Tiny Shakespeare is not at hand")
    lines = corpus.text.splitlines()
    pairs = {
        f"{a}\n{b}" for a, b in zip(lines, lines[1:], strict=False) if min(len(a), len(b)) > 20
    }
    for cell in code_cells(path):
        for output in cell.outputs:
            text = [
                line.strip()
                for line in str(
                    output.get("text") or output.get("data", {}).get("text/plain", "")
                ).split("\n")
            ]
            found = pairs & {f"{a}\n{b}" for a, b in zip(text, text[1:], strict=False)}
            assert not found, f"cell {cell.id!r} prints two lines of the corpus: {found}"


@pytest.mark.parametrize(
    "page", sorted((PUBLISHED / "html").glob("[!l]*.html")), ids=lambda page: page.stem
)  # live.html runs a script of its own: test_live.py reads that page
def test_the_page_can_be_read_by_everyone(page):
    assert page_faults(page) == []


@needs_published
def test_there_is_a_page_for_each():
    pages = {page.stem for page in (PUBLISHED / "html").glob("*.html")}
    assert pages == {"index", "live"} | {path.stem for path in EXECUTED}


@needs_published
def test_the_weights_are_small_good_and_recorded():
    names = sorted(path.name for path in (PUBLISHED / "checkpoints").iterdir())
    assert names == ["small.json", "small.safetensors"]
    weights = PUBLISHED / "checkpoints" / "small.safetensors"
    assert weights.stat().st_size < 4_000_000
    meta = json.loads(weights.with_suffix(".json").read_text(encoding="utf-8"))
    assert meta["sha256"] == sha256(weights)
    assert (meta["config"]["block_size"], meta["corpus"]["sha256"]) == (256, SHA256)
    history = json.loads((PUBLISHED / "json" / "01.json").read_text(encoding="utf-8"))["results"][
        "history"
    ]
    assert 1.0 < history["full_val"] <= 1.80
