"""The sync tool: cells follow the package, the address is one constant; a check writes nothing."""

import ast
import shutil

import nbformat
import pytest
from fault_fixtures import contents
from notebook_fixtures import code, output, prose, write

from nanogpt.cli import main, notebooks
from nanogpt.files import ROOT, atomic_path
from nanogpt.series import mirror
from nanogpt.site import nbfile

MIRRORED = ["nanogpt.attention.visible", "nanogpt.attention.attend"]
README = "**[Read it online](outputs/published/html/index.html)** | "
README += "[it](outputs/published/00_one.ipynb) | [read](outputs/published/01_two.ipynb)\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The command's project: two notebooks, all out of date, a README and address.py."""
    for name, title in (("00_one", "00 · One"), ("01_two", "01 · Two")):
        write(
            tmp_path / "notebooks" / f"{name}.ipynb",
            prose("?", "links", nanogpt={"generated": "links"}),
            code("?", "setup", nanogpt={"generated": "setup"}),
            code("?", "mirror", nanogpt={"mirror": MIRRORED}),
            code("print(1)\n", "own", [output("1")], tags=["timing"], collapsed=True),
            code("x = 1", "figure", tags=["hide-input"]),
            code("x = 1", "opened", jupyter={"source_hidden": True}, cellView="form"),
            code("", "left-over"),
            title=title,
        )
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    config = tmp_path / "nanogpt" / "site"
    config.mkdir(parents=True)
    shutil.copy(ROOT / "nanogpt" / "site" / "address.py", config)
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    return tmp_path


def cells(root, name="00_one"):
    return {cell.id: cell for cell in nbformat.read(root / "notebooks" / f"{name}.ipynb", 4).cells}


def snapshot(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_check_lists_and_writes_nothing_and_one_run_brings_all_up_to_date(root, capsys):
    before = snapshot(root)
    assert main(["sync", "--check"]) == 1
    assert "differs: notebooks/00_one.ipynb" in capsys.readouterr().out
    assert snapshot(root) == before
    assert main(["sync"]) == 0
    assert "written: notebooks/01_two.ipynb" in capsys.readouterr().out
    assert main(["sync", "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_a_mirror_is_the_packages_own_text_and_an_edited_one_is_noticed(root):
    mirror.sync(root)
    source = cells(root)["mirror"].source
    package = (ROOT / "nanogpt" / "attention.py").read_text(encoding="utf-8")
    assert [node.name for node in ast.parse(source).body] == ["visible", "attend"]
    assert all(part in package for part in source.split("\n\n\n"))
    path = root / "notebooks" / "01_two.ipynb"
    path.write_text(
        path.read_text(encoding="utf-8").replace("def attend(", "def attended("), encoding="utf-8"
    )
    assert mirror.sync(root, check=True) == [path]


def test_outputs_and_editors_traces_go_and_a_tag_alone_folds_a_cell(root):
    mirror.sync(root)
    found = cells(root)
    assert "left-over" not in found
    assert (found["own"].outputs, found["own"].execution_count) == ([], None)
    assert found["own"].metadata == {"tags": ["timing"]}
    assert found["own"].source == "print(1)"
    nb = nbformat.read(root / "notebooks" / "00_one.ipynb", 4)
    assert (nb.metadata, nb.nbformat, nb.nbformat_minor) == (nbfile.METADATA, 4, 5)
    for name in ("figure", "setup"):
        assert found[name].metadata["jupyter"] == {"source_hidden": True}
        assert found[name].metadata["cellView"] == "form"
    assert found["opened"].metadata == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (MIRRORED[0], "nanogpt.model.Nothing", "01_two.ipynb, cell 'mirror'"),
        (MIRRORED[0], "nanogpt.nowhere.Head", "01_two.ipynb, cell 'mirror'"),
        ('"cells"', '"cels"', "01_two.ipynb cannot be read as a notebook"),
        ("# 01", "01", "no heading"),
        ('"cells": [', f'"cells": {"[" * 9999}', "01_two.ipynb cannot be read as a notebook"),
    ],
)
def test_a_notebook_that_cannot_be_synced_is_named_and_nothing_is_written(root, old, new, said):
    path = root / "notebooks" / "01_two.ipynb"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    before = snapshot(root)
    with pytest.raises(nbfile.SyncError, match=said):
        mirror.sync(root)
    assert snapshot(root) == before


# ------------------------------------------------------------------ the address


def test_without_an_address_the_links_are_the_neighbours_and_no_more(root):
    mirror.sync(root, "")
    assert cells(root)["links"].source == "[01 · Two](01_two.ipynb) →"
    assert cells(root, "01_two")["links"].source == "← [00 · One](00_one.ipynb)"
    assert (root / "README.md").read_text(encoding="utf-8") == README


def test_an_address_gives_every_notebook_its_badge_and_goes_without_a_trace(root):
    mirror.sync(root, "")
    before = snapshot(root)
    assert main(["sync", "--repo", "ada/engine", "--ref", "v1"]) == 0
    badges = [mirror.colab(name, "ada/engine", "v1") for name in ("00_one", "01_two")]
    for name, badge in zip(("00_one", "01_two"), badges, strict=True):
        links = cells(root, name)["links"].source
        assert links.startswith(f"{mirror.BADGE}({badge}) · [with outputs](https://github.com/")
        assert f"({name}.ipynb)" not in links
    setup = cells(root)["setup"].source
    assert all(word in setup for word in ('"https://github.com/ada/engine"', '"engine"', '"-bv1"'))
    readme = README.replace("outputs/published/html/index.html", "https://ada.github.io/engine/")
    for badge, link in zip(badges, ("[it]", "[read]"), strict=True):
        readme = readme.replace(link, f"{mirror.BADGE}({badge}) {link}")
    assert (root / "README.md").read_text(encoding="utf-8") == readme
    values = {}
    exec((root / "nanogpt" / "site" / "address.py").read_text(encoding="utf-8"), values)
    assert (values["REPO"], values["REF"]) == ("ada/engine", "v1")
    assert mirror.sync(root, "ada/engine", "v1", check=True) == []
    mirror.sync(root, "")
    after = snapshot(root)
    del before[root / "nanogpt/site/address.py"], after[root / "nanogpt/site/address.py"]
    assert after == before


REPOS = "engine ada/ /engine ada/x/y https://github.com/ada/engine ada/engine.git ada/x.".split()
WORDS = [["--repo", repo] for repo in [*REPOS, "a da/x", 'ada/"x']]
WORDS += [["--repo", "ada/x", f"--ref={ref}"] for ref in ("a b", "-x", "feature/x", '"')]


@pytest.mark.parametrize("words", [*WORDS, ["--check", "--repo", "ada/engine"]], ids=" ".join)
def test_a_bad_address_is_refused_and_nothing_is_written(root, capsys, words):
    before = snapshot(root)
    assert main(["sync", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert snapshot(root) == before


def test_a_write_that_fails_half_way_changes_no_file(tmp_path, monkeypatch):
    for name in ("00_one", "01_two"):
        path = write(
            tmp_path / "notebooks" / f"{name}.ipynb", code("x", "x", outputs=[output("x")])
        )
        nb = nbformat.read(path, 4)
        nb.cells.append(prose("links", "links", nanogpt={"generated": "links"}))
        nbformat.write(nb, path)
    home = tmp_path / "nanogpt" / "site" / "address.py"
    home.parent.mkdir(parents=True)
    home.write_text('REPO = ""\nREF = "main"\n', encoding="utf-8")
    before = contents(tmp_path)

    def full(path):
        if path.name == "01_two.ipynb":
            raise OSError(28, "No space left on device")
        return atomic_path(path)

    monkeypatch.setattr(mirror, "atomic_path", full)
    with pytest.raises(OSError, match="No space left"):
        mirror.set_address("ada/engine", "main", tmp_path)
    assert contents(tmp_path) == before
    monkeypatch.undo()
    assert home in mirror.set_address("ada/engine", "main", tmp_path)
