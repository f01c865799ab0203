"""A claim is printed where the run supports it; elsewhere the published one stands beside it."""

import json
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nanogpt.series import findings, session
from nanogpt.series.findings import Finding, published_findings
from nanogpt.series.profiles import PROFILES, beside_published
from nanogpt.series.runner import findings_line

CLAIM = ("muon", "Muon lowers the loss by more than a seed does")


@pytest.fixture
def run(tmp_path, monkeypatch):
    InteractiveShell.instance()
    text = tmp_path / "mine.txt"
    text.write_text("to be or not to be, " * 200, encoding="utf-8")
    monkeypatch.setenv("NANOGPT_DATA", str(text))
    monkeypatch.setenv("NANOGPT_OUT", str(tmp_path / "out"))
    monkeypatch.setattr(findings, "PUBLISHED", tmp_path / "published")
    published_findings.cache_clear()
    yield session.open_run("07", profile="smoke", seed=3)
    published_findings.cache_clear()


def publish(tmp_path, **row):
    path = tmp_path / "published" / "json" / "07.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"findings": [row]}), encoding="utf-8")


def test_a_claim_that_holds_is_printed_with_its_numbers_and_saved(run, capsys):
    assert run.finding(*CLAIM, True, "−0.12, a seed 0.01") is True
    assert capsys.readouterr().out == f"{CLAIM[1]}: −0.12, a seed 0.01\n"
    run.save()
    (saved,) = json.loads((run.out / "json" / "07.json").read_text(encoding="utf-8"))["findings"]
    assert Finding(**saved).supported


@pytest.mark.parametrize("enough", [True, False])
def test_an_unsupported_finding_is_printed_beside_the_published_one(run, capsys, tmp_path, enough):
    row = {"name": "muon", "claim": CLAIM[1], "numbers": "−0.12", "holds": True}
    publish(tmp_path, **row)
    assert run.finding(*CLAIM, False, "+0.03", enough=enough, needs="5 seeds, here 2") is False
    first, second = capsys.readouterr().out.splitlines()
    cannot = f"this run is too short to tell whether {CLAIM[1]}: it takes 5 seeds, here 2"
    assert first == (f"not supported by this run (+0.03): {CLAIM[1]}" if enough else cannot)
    assert second.strip() == f"published, not from this run: {CLAIM[1]}: −0.12"


def test_a_run_names_the_findings_that_it_does_not_support(run):
    run.finding("muon", "it lowers the loss", False, "+0.03")
    run.finding("warm-up", "it helps", True, "−0.12")
    run.finding("epochs", "they help", True, "−0.12", enough=False, needs="5 seeds, here 2")
    run.save()
    line = findings_line(run.out, [Path("07_past.ipynb"), Path("08_never_run.ipynb")])
    assert line == "findings: 1 supported by this run, 1 not (muon of 07), 1 need a longer run"


def test_numbers_of_too_short_a_run_are_not_a_finding_even_if_they_fit(run, capsys):
    assert run.finding(*CLAIM, True, "−0.12", enough=False, needs="5 seeds, here 2") is False
    assert "−0.12" not in capsys.readouterr().out


def test_a_cell_that_runs_again_replaces_its_finding(run):
    run.finding(*CLAIM, True, "1")
    run.finding(*CLAIM, False, "2")
    assert [(one.holds, one.numbers) for one in run.findings] == [(False, "2")]


def test_each_profile_says_in_a_line_how_it_differs_from_the_published_one():
    said = {name: beside_published(profile) for name, profile in PROFILES.items()}
    assert said["full"] == "the published run used this profile"
    assert "size small instead of medium, steps 1700 instead of" in said["laptop"]
    assert "repeats 2 instead of 5" in said["smoke"]
    assert all("\n" not in line for line in said.values())
