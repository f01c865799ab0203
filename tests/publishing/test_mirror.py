"""The sync tool: cells follow the package, addresses one constant; a check writes nothing."""

import ast
import json
import re
import shutil

import nbformat
import pytest
from notebook_fixtures import code, output, prose, write

from nanogpt.cli import sync
from nanogpt.config import address
from nanogpt.publishing import mirror, nbfile
from nanogpt.system.files import ROOT, sha256

LINKS = {"generated": "links"}
SETUP = {"generated": "setup"}
MIRRORED = ["nanogpt.model.attention.visible", "nanogpt.model.attention.attend"]


@pytest.fixture
def root(tmp_path):
    """A small repository with two notebooks, a README and a copy of address.py, all out of date."""
    for name, title in (("00_one", "00 · One"), ("01_two", "01 · Two")):
        write(
            tmp_path / "notebooks" / f"{name}.ipynb",
            prose("?", "links", nanogpt=LINKS),
            code("?", "setup", nanogpt=SETUP),
            code(
                "?",
                "mirror",
                nanogpt={"mirror": MIRRORED},
            ),
            code(
                "print(1)\n", "own", [output("1")], tags=["timing"], collapsed=True, scrolled=False
            ),
            code("", "left-over"),
            title=title,
        )
    (tmp_path / "README.md").write_text(
        f"[badge]({mirror.COLAB}/someone/else/blob/v0/notebooks/00_one.ipynb), "
        f"after https://github.com/karpathy/nanoGPT, here https://github.com/{address.REPO}"
    )
    config = tmp_path / "nanogpt" / "config"
    config.mkdir(parents=True)
    shutil.copy(ROOT / "nanogpt" / "config" / "address.py", config)
    return tmp_path


def cells(root, name="00_one"):
    return {cell.id: cell for cell in nbformat.read(root / "notebooks" / f"{name}.ipynb", 4).cells}


def snapshot(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_one_run_brings_everything_up_to_date(root):
    differ = mirror.sync(root)
    assert [path.name for path in differ] == ["00_one.ipynb", "01_two.ipynb", "README.md"]
    assert mirror.sync(root, check=True) == []


def test_a_check_lists_and_writes_nothing(root):
    before = snapshot(root)
    assert len(mirror.sync(root, check=True)) == 3
    assert snapshot(root) == before


def test_a_mirror_is_the_packages_own_text(root):
    mirror.sync(root)
    source = cells(root)["mirror"].source
    package = (ROOT / "nanogpt" / "model" / "attention.py").read_text()
    first, second = source.split("\n\n\n")[0], source.split("\n\n\n")[-1]
    assert first.startswith("def visible(")
    assert first in package
    assert second.startswith("def attend(")
    assert second in package
    assert [node.name for node in ast.parse(source).body] == ["visible", "attend"]


def test_an_edited_mirror_is_noticed(root):
    mirror.sync(root)
    path = root / "notebooks" / "01_two.ipynb"
    path.write_text(path.read_text().replace("def attend(", "def attended("))
    assert mirror.sync(root, check=True) == [path]
    mirror.sync(root)
    assert "def attend(" in path.read_text()


def test_outputs_counts_and_editors_traces_go(root):
    mirror.sync(root)
    found = cells(root)
    assert "left-over" not in found
    assert found["own"].outputs == []
    assert found["own"].execution_count is None
    assert found["own"].metadata == {"tags": ["timing"]}
    assert found["own"].source == "print(1)"
    nb = nbformat.read(root / "notebooks" / "00_one.ipynb", 4)
    assert nb.metadata == nbfile.METADATA
    assert (nb.nbformat, nb.nbformat_minor) == (4, 5)


def test_the_links_know_the_neighbours(root):
    mirror.sync(root, "ada/engine", "v1")
    first, last = cells(root)["links"].source, cells(root, "01_two")["links"].source
    assert f"({mirror.COLAB}/ada/engine/blob/v1/notebooks/00_one.ipynb)" in first
    assert "(https://github.com/ada/engine/blob/v1/outputs/published/00_one.ipynb)" in first
    assert first.endswith("[01 · Two](01_two.ipynb) →")
    assert last.endswith("← [00 · One](00_one.ipynb)")
    assert "](00_one.ipynb)" not in first.split(" · ", 2)[2]


def test_without_an_address_words_say_what_to_do_and_no_link_leads_away(root):
    (root / "README.md").write_text("[Colab][00], [Colab][01]\n\n[00]: x\n[01]: y\n")
    mirror.sync(root, "ada/engine", "v1")
    readme = (root / "README.md").read_text()
    assert f"\n[01]: {mirror.COLAB}/ada/engine/blob/v1/notebooks/01_two.ipynb\n" in readme
    mirror.sync(root, "OWNER_NAME/x")
    links = cells(root)["links"].source
    assert re.findall(r"\]\(([^)]+)\)", links) == ["01_two.ipynb"]
    assert "`make badges REPO=owner/name`" in links
    assert "`%env NANOGPT_REPO=https://github.com/owner/name`" in links
    advice = '#the-notebooks "No address yet: make badges REPO=owner/name"'
    start = "[Colab][00], [Colab][01]\n\n"
    assert (root / "README.md").read_text() == f"{start}[00]: {advice}\n[01]: {advice}\n"
    mirror.sync(root, "ada/engine", "v1")
    assert (root / "README.md").read_text() == readme


def test_the_set_up_cell_is_the_same_everywhere_and_knows_the_address(root):
    mirror.sync(root, "ada/engine", "v1")
    source = cells(root)["setup"].source
    assert source == cells(root, "01_two")["setup"].source == mirror.setup_cell("ada/engine", "v1")
    assert '"https://github.com/ada/engine"' in source
    assert '"engine"' in source
    assert '"v1"' in source
    assert not re.search("@[A-Z]+@", source)


def test_only_badges_are_rewritten_in_the_readme(root):
    mirror.sync(root, "ada/engine", "v1")
    text = (root / "README.md").read_text()
    assert f"{mirror.COLAB}/ada/engine/blob/v1/notebooks/00_one.ipynb" in text
    assert "https://github.com/karpathy/nanoGPT" in text


@pytest.mark.parametrize(
    "name", ["nanogpt.model.gpt.Nothing", "nanogpt.nowhere.Head", "Head", "nanogpt.model."]
)
def test_a_mirror_of_nothing_names_the_cell(root, name):
    path = root / "notebooks" / "01_two.ipynb"
    path.write_text(path.read_text().replace(MIRRORED[0], name))
    before = snapshot(root)
    with pytest.raises(nbfile.SyncError, match="01_two.ipynb, cell 'mirror'"):
        mirror.sync(root)
    assert snapshot(root) == before


def test_an_unknown_generated_cell_is_refused(root):
    path = root / "notebooks" / "00_one.ipynb"
    path.write_text(
        path.read_text()
        .replace('"links"', '"menu"', 1)
        .replace('"generated": "links"', '"generated": "menu"')
    )
    with pytest.raises(nbfile.SyncError, match="generated='menu'; it can be setup or links"):
        mirror.sync(root)


def test_a_file_that_is_not_a_notebook_is_named(root):
    (root / "notebooks" / "02_bad.ipynb").write_text("{")
    with pytest.raises(nbfile.SyncError, match="02_bad.ipynb cannot be read as a notebook"):
        mirror.sync(root)


# ------------------------------------------------------------------ the address


def test_the_address_stands_in_one_constant(root):
    mirror.set_address("ada/engine", "v1", root)
    text = (root / "nanogpt" / "config" / "address.py").read_text()
    values = {}
    exec(text, values)
    assert (values["REPO"], values["REF"]) == ("ada/engine", "v1")
    assert text.count("ada/engine") == 1
    assert "https://github.com/ada/engine" in (root / "README.md").read_text()
    assert "https://github.com/karpathy/nanoGPT" in (root / "README.md").read_text()


@pytest.mark.parametrize(
    "repo",
    [
        "engine",
        "ada/",
        "/engine",
        "ada/engine/x",
        "https://github.com/ada/engine",
        "a da/engine",
        'ada/"engine',
        "ada/engine.git",
        "",
    ],
)
def test_a_bad_address_is_refused(root, repo):
    before = snapshot(root)
    with pytest.raises(nbfile.SyncError, match="give owner/name"):
        mirror.set_address(repo, "main", root)
    assert snapshot(root) == before


@pytest.mark.parametrize("ref", ["", "a b", "-x", "feature/x", '"'])
def test_a_bad_branch_is_refused(root, ref):
    with pytest.raises(nbfile.SyncError, match="give a branch or a tag"):
        mirror.set_address("ada/engine", ref, root)


def test_published_notebooks_keep_their_outputs_and_follow_the_address(root):
    mirror.sync(root)
    published = root / "outputs" / "published"
    published.mkdir(parents=True)
    for name in ("00_one", "01_two"):
        nb = nbformat.read(root / "notebooks" / f"{name}.ipynb", 4)
        nb.cells[-1].outputs = [output("1")]
        nbfile.write_notebook(published / f"{name}.ipynb", nb)
    entries = [{"notebook": name, "sha256": "?", "ok": True} for name in ("00_one", "01_two")]
    (published / "manifest.json").write_text(json.dumps({"notebooks": entries}))
    assert mirror.sync(root, check=True) == []
    differ = mirror.sync(root, "ada/engine")
    assert published / "00_one.ipynb" in differ
    nb = nbformat.read(published / "00_one.ipynb", 4)
    assert nb.cells[-1].outputs == [output("1")]
    assert "ada/engine" in nb.cells[2].source
    written = json.loads((published / "manifest.json").read_text())["notebooks"]
    assert written[0]["sha256"] == sha256(published / "00_one.ipynb")


# ------------------------------------------------------------------ the command line


@pytest.fixture
def here(root, monkeypatch):
    """The command's project is the small repository."""
    monkeypatch.setattr(sync, "ROOT", root)
    monkeypatch.setattr(mirror.set_address, "__defaults__", (root,))
    return root


def test_the_command_checks_and_writes(here, capsys):
    assert sync.main(["--check"]) == 1
    printed = capsys.readouterr().out
    assert "differs: notebooks/00_one.ipynb" in printed
    assert "run `make sync`" in printed
    assert sync.main([]) == 0
    assert "written: notebooks/00_one.ipynb" in capsys.readouterr().out
    assert sync.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_the_command_sets_the_address(here, capsys):
    assert sync.main(["--repo", "ada/engine"]) == 0
    assert '"ada/engine"' in (here / "nanogpt" / "config" / "address.py").read_text()
    assert "ada/engine" in cells(here)["links"].source


@pytest.mark.parametrize("words", [["--repo", "nonsense"], ["--check", "--repo", "ada/engine"]])
def test_the_command_refuses_and_writes_nothing(here, capsys, words):
    before = snapshot(here)
    assert sync.main(words) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert snapshot(here) == before


def test_a_tag_folds_a_cell_everywhere_and_its_absence_opens_it():
    closed = code("1", "closed", tags=["hide-input"])
    was_closed = code("1", "open", jupyter={"source_hidden": True}, cellView="form")
    for cell in (closed, was_closed):
        nbfile.fold(cell)
    assert closed.metadata["jupyter"] == {"source_hidden": True}
    assert closed.metadata["cellView"] == "form"
    assert was_closed.metadata == {}


def test_syncing_folds_what_is_tagged(root):
    path = root / "notebooks" / "00_one.ipynb"
    nb = nbformat.read(path, 4)
    nb.cells.append(code("1", "figure", tags=["hide-input"]))
    nbformat.write(nb, path)
    mirror.sync(root, "ada/engine", "v1")
    assert cells(root)["figure"].metadata["cellView"] == "form"
