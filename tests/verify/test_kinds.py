"""The survey's table, its verdicts by hand, and the reports on real defects."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from nanogpt.cli import main
from nanogpt.files import read_json, write_json
from nanogpt.verify import survey
from nanogpt.verify.by_hand import BY_HAND, ByHand, Hand, report_name

FOLDER = Path(survey.__file__).parents[2] / "outputs" / "kinds"
REAL = [kind for kind, hand in BY_HAND.items() if hand.verdict is Hand.REAL]
SHOWN = [kind for kind in REAL if not BY_HAND[kind].report]
VERSIONS = {"transformers": "5.24.0", "torch": "2.14.1"}
ROW = {"verdict": "bug", "ways": 5, "left": 0, "way": "its cache", "size": 1.0, "code": "pass\n"}


def cells(kind, rows, versions=VERSIONS, scripts=None):
    """Text of the kind's row by column."""
    lines = survey.table(rows, versions, 4000, scripts or {}).splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {kind} |"))
    return dict(zip(survey.SURVEY_COLUMNS, (x.strip() for x in row.split("|")[1:-1]), strict=True))


def folder_with(path, *rows):
    write_json(path / "kinds.json", {"what": "kinds", **VERSIONS, "tokens": 4000, "rows": rows})
    return path


@pytest.mark.parametrize(
    ("made_with", "found"),
    [("5.24.0", "real: a reason"), ("6.0.0", "real, examined in 5.24.0: a reason")],
)
def test_the_column_says_if_transformers_has_changed(monkeypatch, made_with, found):
    hand = ByHand(Hand.REAL, "a reason", transformers="5.24.0")
    monkeypatch.setitem(BY_HAND, "mamba", hand)
    rows = [{"kind": "mamba", **ROW}, {"kind": "gpt2", **ROW}]
    versions = VERSIONS | {"transformers": made_with}
    row = cells("mamba", rows, versions)
    assert (row["verdict"], row["by hand"]) == ("bug", found)
    assert cells("gpt2", rows, versions)["by hand"] == ""


def test_the_page_counts_verdicts_by_hand():
    page = survey.table([{"kind": "mamba", **ROW}, {"kind": "xlstm", **ROW}], VERSIONS, 4000, {})
    assert "1 real, 1 artefact" in page


def test_a_report_stands_in_for_the_generated_script(tmp_path):
    folder_with(tmp_path, {"kind": "mamba", **ROW}, {"kind": "gpt2", **ROW})
    (tmp_path / "mamba_report.py").write_text("by hand\n", encoding="utf-8")
    survey.render(tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "(mamba_report.py)" in page
    assert "(gpt2_shown.py)" in page
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["README.md", "gpt2_shown.py", "kinds.json", "mamba_report.py"]
    assert (tmp_path / "mamba_report.py").read_text(encoding="utf-8") == "by hand\n"


def test_render_judges_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(survey, "survey", None)
    monkeypatch.setattr(survey, "kinds", None)
    command = ["verify", "kinds", "--render", "--folder", str(tmp_path)]
    assert main(command) == 2
    assert "has no kinds.json" in capsys.readouterr().err
    folder_with(tmp_path, {"kind": "mamba", **ROW})
    assert main(command) == 0
    assert BY_HAND["mamba"].reason in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_the_published_page_is_the_one_of_its_data(tmp_path):
    (tmp_path / "kinds.json").write_bytes((FOLDER / "kinds.json").read_bytes())
    for path in FOLDER.glob("*_report.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    survey.render(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == (FOLDER / "README.md").read_text(
        encoding="utf-8"
    )


def test_by_hand_names_kinds_of_the_survey_and_has_their_reports():
    rows = read_json(FOLDER / "kinds.json")["rows"]
    assert set(BY_HAND) <= {row["kind"] for row in rows}
    reports = {path.name for path in FOLDER.glob("*_report.py")}
    assert reports == {report_name(kind) for kind in REAL}


def test_lfm2_is_built_with_convolutions():
    pytest.importorskip("transformers")
    assert set(survey.small("lfm2").config.layer_types) == {"conv", "full_attention"}


def test_xlstm_is_built_as_wide_as_its_cache():
    pytest.importorskip("transformers")
    subject = survey.small("xlstm")
    ids = torch.randint(3, 97, (1, 6))
    with torch.no_grad():
        session = subject.start(1)
        cached = torch.cat([session.read(piece) for piece in ids.split(2, 1)], 1)
        torch.testing.assert_close(cached, subject.plain(ids).logits, atol=1e-3, rtol=0)


@pytest.mark.release
@pytest.mark.parametrize("kind", SHOWN)
def test_the_report_shows_its_difference(kind, capsys):
    transformers = pytest.importorskip("transformers")
    hand = BY_HAND[kind]
    if transformers.__version__ != hand.transformers:
        pytest.skip(f"examined with transformers {hand.transformers}")
    path = FOLDER / report_name(kind)
    with torch.random.fork_rng(), pytest.raises(AssertionError):
        runpy.run_path(str(path))
    printed = capsys.readouterr().out.splitlines()
    kept = [
        line[6:]
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("#     ")
    ]
    assert [masked(line) for line in printed] == [masked(line) for line in kept]


def masked(line):
    """The line without its measured numbers, which other machines round differently."""
    return re.sub(r"\d\.\de[-+]\d\d", "X", line)
