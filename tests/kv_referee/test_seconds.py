"""The budget is in tokens; seconds only cut a run off, and say what is missing then.

The clock of these tests is one that only the model's passes move.
"""

import pytest
from other_library import Adapter, Net

from nanogpt.kv_referee import Verdict, referee


class Clock:
    """Seconds that go by with each pass of the model alone."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    return clock


def slow(clock, seconds):
    """A model whose pass takes so long."""

    class SlowNet(Net):
        def forward(self, ids, store=None):
            clock.now += seconds
            return super().forward(ids, store)

    return type("Slow", (Adapter,), {"net_type": SlowNet})()


def test_the_same_scenarios_are_tried_on_a_slow_machine_and_on_a_fast_one(clock):
    reports = [referee(slow(clock, each), tokens=5_000) for each in (0.0001, 0.01, 0.3)]
    assert len({report.tokens for report in reports}) == 1
    assert len({tuple(finding.way for finding in report.findings) for report in reports}) == 1
    assert len({tuple(report.unreached) for report in reports}) == 1


def test_a_larger_budget_reads_more_and_the_same_first():
    few, many = (referee(Adapter(), tokens=n) for n in (0, 8_000))
    ways = [finding.way for finding in many.findings]
    assert [finding.way for finding in few.findings] == ways[: len(few.findings)]
    assert few.reach.longest == 24 < many.reach.longest
    assert few.verdict.sound
    assert many.verdict.sound


# Seconds of a pass, and of the referee.
TIMES = {"no time": (1.0, 0), "time for the plain pass": (1.0, 30), "time for some": (0.5, 40)}


@pytest.mark.parametrize("how", TIMES)
def test_a_kind_that_was_not_reached_leaves_the_verdict_open(how, clock):
    each, seconds = TIMES[how]
    report = referee(slow(clock, each), seconds=seconds, say=lambda line: None)
    assert report.seconds <= seconds + 2 * each, report
    assert report.verdict is Verdict.UNDECIDED
    assert report.unreached
    if how == "time for some":
        assert "sessions in two threads" in str(report)
        assert "Pass more `seconds`, or judge the same architecture, small" in str(report)


def test_without_time_for_damages_the_verdict_is_left_open(clock):
    """What each kind of scenario needs is measured first, then given."""
    lines = []
    whole = referee(slow(clock, 0.1), tokens=0, say=lambda line: lines.append((clock.now, line)))
    assert whole.verdict.sound
    damaged = next(now for now, line in lines if "damaged: " in line)
    start = lines[0][0]
    report = referee(slow(clock, 0.1), tokens=0, seconds=damaged - start + 1, say=print)
    assert report.verdict is Verdict.UNDECIDED
    assert "no time was left to show that this test can fail" in str(report)


def test_a_pass_that_slows_down_ends_its_scenario(clock):
    """What later tokens cost cannot be told from the first ones."""

    class Slower(Net):
        def forward(self, ids, store=None):
            clock.now += 20 if store is not None and store.length > 12 else 0.001
            return super().forward(ids, store)

    report = referee(type("Slow", (Adapter,), {"net_type": Slower})(), seconds=60, say=print)
    assert report.seconds <= 60 + 2 * 20, report
    assert report.unreached


def test_the_reach_of_a_slow_model_is_said_before_it_starts(clock, capsys):
    report = referee(slow(clock, 1.0), tokens=0, seconds=100)
    said = capsys.readouterr().err
    assert "Net: a pass of 24 tokens takes 1.0 s in torch.float64; 60 s reach" in said
    assert "of 12 kinds; 300 s reach 12 of 12 kinds" in said or "300 s reach" in said
    assert "the same architecture, small" in said
    assert report.seconds <= 102


def test_nothing_is_said_of_a_fast_model(capsys):
    referee(Adapter(), tokens=0)
    assert capsys.readouterr().err == ""
