"""What is planned: the part of the work that fits a machine, whose turn it is, how far it is."""

import threading

import pytest
import torch
from notebook_fixtures import NOTEBOOKS

from nanogpt.benchmarks.timing import seconds_of_work
from nanogpt.cli import run
from nanogpt.config.profiles import PARTS
from nanogpt.publishing import plan
from nanogpt.publishing.plan import LIMIT, WORK, choose_pace
from nanogpt.publishing.progress import Screen
from nanogpt.publishing.runner import Turns

REAL_CORPUS = True  # whose weights are published, so that no notebook trains some first
NAMES = [path.stem for path in NOTEBOOKS]


@pytest.fixture
def machine(monkeypatch):
    """Sets the speed and the CPUs of this machine; the published run notes its own as WORK."""

    def make(speed: float, cpus: int = 2):
        entries = [{"notebook": name, "seconds": 80.0} for name in NAMES]
        manifest = {"work_seconds": WORK, "notebooks": entries}
        monkeypatch.setattr(plan, "read_manifest", lambda _: manifest)
        monkeypatch.setattr(plan, "seconds_of_work", lambda: WORK / speed)
        monkeypatch.setattr(plan, "cpus", lambda: cpus)

    return make


@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.parametrize("speed", [4.0, 2.0, 1.0, 0.5, 0.3])
def test_a_machine_is_given_the_most_work_that_fits_into_six_minutes(machine, speed, cpus):
    machine(speed, cpus)
    pace = choose_pace("cpu", NAMES)
    part = int(pace.profile.partition("/")[2] or 1)
    assert pace.total <= LIMIT or part == PARTS[-1]
    assert part == 1 or choose_pace(f"cpu/{PARTS[PARTS.index(part) - 1]}", NAMES).total > LIMIT
    assert choose_pace("cpu", NAMES[:1]).profile == pace.profile, "alone as among all"


def test_a_slow_machine_does_less_and_what_is_asked_for_is_done(machine):
    machine(0.1)
    assert choose_pace("cpu", NAMES).profile == "cpu/16"
    full = choose_pace("cpu", NAMES, full=True)
    assert (full.profile, full.lanes) == ("cpu", 1)
    assert full.total == pytest.approx(80 * len(NAMES) / 0.1, rel=0.01)
    assert choose_pace("cpu/2", NAMES).profile == "cpu/2"
    assert choose_pace("gpu", NAMES).card == {"profile": "gpu"}


def test_a_dry_run_prints_the_part_and_the_minutes(machine, capsys):
    machine(1.0)
    assert run.main(["--profile", "cpu", "--plan"]) == 0
    said = capsys.readouterr().out
    assert "1.00 times the speed" in said
    assert "profile cpu/" in said
    assert "two notebooks at a time" in said
    assert all(name in said for name in [*NAMES, "in all, about"])


def test_the_measurement_leaves_the_threads_as_they_were():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert seconds_of_work() > 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_who_measures_is_alone_and_is_let_in_between_the_cells_of_the_others():
    """The other notebook gives way at its next cell, or who measures would wait for its end."""
    turns, order = Turns(), []

    def measure():
        with turns.taken(alone=True):
            assert turns.running == 1
            order.append("alone")

    with turns.taken(alone=False):
        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        while not turns.waiting:  # until it waits for this one
            pass
        order.append("a cell of mine")
    with turns.taken(alone=False):
        order.append("my next")
    thread.join(30)
    assert order == ["a cell of mine", "alone", "my next"]
    assert (turns.running, turns.waiting, turns.alone) == (0, 0, False)


def test_a_run_says_how_far_it_is(tmp_path, capsys):
    """What a kernel tells of a long cell; of the next cell nothing that was told before."""
    told, screen = tmp_path / "told", Screen(expected=90)
    screen.at("00_a", "cell 3 of 7, train", told)
    told.write_text("train 400 of 3,000, loss 2.31, 1:05 left\n")
    screen.tick()
    screen.at("00_a", "cell 4 of 7, next", told)
    screen.tick()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("  00_a: cell 3 of 7, train, train 400 of 3,000, loss 2.31, 1:05 left;")
    assert first.endswith("of about 1:30")
    assert second.startswith("  00_a: cell 4 of 7, next, 0:00;")
