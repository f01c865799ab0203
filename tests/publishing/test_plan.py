"""The row that fits a machine, the plan that is printed, and the lines while it runs."""

import re

import pytest
import torch
from notebook_fixtures import NOTEBOOKS, code, write

from nanogpt.benchmarks.machine import measure_speed
from nanogpt.cli import run
from nanogpt.config import PROFILES
from nanogpt.config.rows import FULL, LIMIT, ROWS, Cost, Row, Speed, choose_row
from nanogpt.publishing import plan
from nanogpt.publishing.plan import Pace, choose_pace, ordered
from nanogpt.publishing.progress import Screen

REAL_CORPUS = True  # whose weights are published, so that no notebook trains some first
NAMES = [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize(
    ("ratio", "row", "most"),
    [("1", "cpu-fast", 360), ("1/3", "cpu-least", 360), ("1/8", "cpu-least", 750)],
)
def test_a_dry_run_prints_the_row_and_the_minutes(capsys, ratio, row, most, monkeypatch):
    monkeypatch.setattr(plan, "cpus", lambda: 2)
    assert run.main(["--profile", "cpu", "--plan", "--ratio", ratio]) == 0
    said = capsys.readouterr().out
    assert f"profile {row}" in said
    assert all(name in said for name in NAMES)
    minutes, seconds = re.search(r"in all, about +(\d+):(\d\d)", said).groups()
    assert 60 * int(minutes) + int(seconds) < most


@pytest.mark.parametrize("together", [1.2, 2.0])
@pytest.mark.parametrize("ratio", [2.0, 1.0, 0.6, 0.3, 0.25])
def test_a_machine_is_given_the_most_work_that_fits_into_six_minutes(ratio, together):
    speed = Speed(ratio, ratio, together)
    row = choose_row(speed, 2)
    more = ROWS[: ROWS.index(row)]
    assert all(other.total(NAMES, speed, 2) > LIMIT for other in more)
    assert row.total(NAMES, speed, 2) < 360 or row is ROWS[-1]


def test_the_table_names_every_notebook_and_rows_do_less_and_less():
    for row in (FULL, *ROWS):
        assert {name[:2] for name in NAMES} <= set(row.costs), row.profile
    found = [PROFILES[row.profile] for row in (FULL, *ROWS)]
    for amount in (lambda p: p.train.steps, lambda p: p.seeds, lambda p: p.repeats.most):
        assert [amount(p) for p in found] == sorted((amount(p) for p in found), reverse=True)


@pytest.mark.parametrize("ratio", ["0", "-1", "1/0", "soon"])
def test_a_speed_that_is_none_is_refused(capsys, ratio):
    with pytest.raises(SystemExit) as stop:
        run.main(["--plan", f"--ratio={ratio}"])
    assert stop.value.code == 2
    assert "--ratio: invalid ratio value" in capsys.readouterr().err


def test_the_published_run_keeps_its_amounts_and_its_order():
    pace = choose_pace("cpu", Speed(1 / 8, 1 / 8), full=True)
    assert (pace.profile, pace.lanes) == ("cpu", 1)
    assert choose_pace("cpu-slow", Speed(1, 1)).profile == "cpu-slow", "a row that was named"
    gpu = choose_pace("gpu", Speed(1, 1))
    assert (gpu.profile, gpu.lanes, gpu.card) == ("gpu", 1, {})


def test_time_is_what_measures_alone_and_half_of_the_rest():
    row = Row("x", {"00": Cost(10, 20, 4), "01": Cost(6)})
    assert row.total(["00_a", "01_b"], Speed(1, 1, together=2.0), 2) == 4 + 32 / 2
    assert row.total(["00_a", "01_b"], Speed(1, 2), 1) == 10 + 20 / 2 + 6
    assert row.total(["00_a", "01_b"], Speed(1, 1, together=1.25), 2) == 4 + 32 / 1.25
    assert row.cost("09_unknown") == Cost(8, 10, 2), "the mean of the others"
    assert Speed(0.5, 0.5).ratio == pytest.approx(0.5)


def test_side_by_side_those_that_measure_nothing_begin(tmp_path, monkeypatch):
    measures = write(tmp_path / "00_a.ipynb", code("1", "one", tags=["timing"]))
    short, long = (write(tmp_path / f"0{i}_b.ipynb", "1") for i in (1, 2))
    monkeypatch.setattr(plan, "cpus", lambda: 2)
    row = Row("cpu-fast", {"00": Cost(9), "01": Cost(1), "02": Cost(2)})
    sources = [measures, short, long]
    assert ordered(sources, Pace("cpu", row, Speed(1, 1), 2)) == [long, short, measures]
    assert ordered(sources, Pace("cpu", row, Speed(1, 1), 1)) == sources


def test_a_run_says_now_and_then_how_far_it_is(tmp_path, capsys):
    """What a kernel tells of a long cell; of the next cell nothing that was told before."""
    told, screen = tmp_path / "told", Screen(expected=90, every=0.01)
    with screen.shown(), screen.watch("00_a", 7, told) as at:
        at(2, {"id": "train"})
        told.write_text("train 400 of 3,000, loss 2.31, 1:05 left\n")
        while "loss" not in (said := capsys.readouterr().out):
            pass
        at(3, {"id": "next"})
        assert not told.exists()
    lines = [line for line in said.splitlines() if "loss" in line]
    assert lines[-1].startswith("  00_a: cell 3 of 7, train, train 400 of 3,000, loss 2.31, 1:05")
    assert lines[-1].endswith("of about 1:30")


def test_the_measurement_gives_two_speeds_and_leaves_the_threads_as_they_were():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        speed = measure_speed()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert min(speed.calls, speed.arithmetic) > 0
