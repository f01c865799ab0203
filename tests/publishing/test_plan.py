"""What is planned: the part of the work that fits a machine, and how far it is."""

import time
from pathlib import Path

import pytest
import torch
from notebook_fixtures import NOTEBOOKS, write

from nanogpt.benchmarks.timing import seconds_of_work
from nanogpt.cli import run
from nanogpt.config.profiles import PARTS
from nanogpt.publishing import plan, runner
from nanogpt.publishing.plan import LIMIT, WORK, choose_pace
from nanogpt.system.console import PROGRESS

REAL_CORPUS = True  # whose weights are published, so that no notebook trains some first
NAMES = [path.stem for path in NOTEBOOKS]


@pytest.fixture
def machine(monkeypatch):
    """Sets the speed of this machine; the published run notes its own as WORK."""

    def make(speed: float):
        entries = [{"notebook": name, "seconds": 80.0} for name in NAMES]
        manifest = {"work_seconds": WORK, "notebooks": entries}
        monkeypatch.setattr(plan, "read_manifest", lambda _: manifest)
        monkeypatch.setattr(plan, "seconds_of_work", lambda: WORK / speed)

    return make


@pytest.mark.parametrize("speed", [4.0, 2.0, 1.0, 0.5, 0.3])
def test_a_machine_is_given_the_most_work_that_fits_into_six_minutes(machine, speed):
    machine(speed)
    pace = choose_pace("cpu", NAMES)
    part = int(pace.profile.partition("/")[2] or 1)
    assert pace.total <= LIMIT or part == PARTS[-1]
    assert part == 1 or choose_pace(f"cpu/{PARTS[PARTS.index(part) - 1]}", NAMES).total > LIMIT
    assert choose_pace("cpu", NAMES[:1]).profile == pace.profile, "alone as among all"


def test_a_slow_machine_does_less_and_what_is_asked_for_is_done(machine):
    machine(0.1)
    assert choose_pace("cpu", NAMES).profile == "cpu/16"
    full = choose_pace("cpu", NAMES, full=True)
    assert full.profile == "cpu"
    assert full.total == pytest.approx(80 * len(NAMES) / 0.1, rel=0.01)
    assert choose_pace("cpu/2", NAMES).profile == "cpu/2"
    assert choose_pace("gpu", NAMES).card == {"profile": "gpu"}


def test_a_dry_run_prints_the_part_and_the_minutes(machine, capsys):
    machine(1.0)
    assert run.main(["--profile", "cpu", "--plan"]) == 0
    said = capsys.readouterr().out
    assert "1.00 times the speed" in said
    assert "profile cpu/" in said
    assert all(name in said for name in [*NAMES, "in all, about"])


def test_the_measurement_leaves_the_threads_as_they_were():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert seconds_of_work() > 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_run_says_how_far_it_is(sources, tmp_path, monkeypatch, capsys):
    """What a kernel tells of a long cell; of the next cell nothing that was told before."""
    write(sources / "00_a.ipynb", "1", "2")

    def execute(*_, variables, before_cell, **__):
        before_cell(2, {"id": "train"})
        Path(variables[PROGRESS]).write_text("train 400 of 3,000, loss 2.31, 1:05 left\n")
        series._tick()
        before_cell(3, {"id": "next"})
        series._tick()

    monkeypatch.setattr(runner.execute, "execute", execute)
    series = runner.Series(runner.RunPlan(profile="smoke", source=sources, out=tmp_path / "out"))
    series.begun = time.monotonic()
    assert series._execute(sources / "00_a.ipynb", tmp_path) is None
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("00_a: cell 3 of 4, train, train 400 of 3,000, loss 2.31, 1:05 left")
    assert second.endswith("00_a: cell 4 of 4, next, 0:00")
