"""Timing, on a clock that only the timed systems move."""

import json
from types import SimpleNamespace

import pytest
import torch

from nanogpt import timing
from nanogpt.bench.tables import time_interleaved
from nanogpt.timing import metrics, summary, time_pair, time_tokens


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the iterators below move."""

    clock = SimpleNamespace(now=100.0, devices=[])

    def now(device):
        clock.devices.append(device)
        return clock.now

    monkeypatch.setattr(timing, "clock", now)
    return clock


def system(clock, *costs, log=None, name=None):
    """A token iterator whose tokens cost what is given: a list of costs for each run, repeated."""
    runs = iter(costs * 20)

    def tokens():
        if log is not None:
            log.append(name)
        for cost in next(runs):
            clock.now += cost
            yield cost

    return tokens


def test_gaps_between_tokens_with_a_synchronisation_at_each(clock):
    gpu = torch.device("cuda")
    assert time_tokens(system(clock, [4, 1, 2])(), gpu) == [4, 1, 2]
    assert clock.devices == [gpu] * 4
    with pytest.raises(ValueError, match="yielded no token"):
        time_tokens(iter(()))


def test_clock_synchronises_before_it_reads_the_time(monkeypatch):
    order = []
    monkeypatch.setattr(timing, "synchronize", lambda device: order.append(device.type))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: order.append("read") or 7.0)
    assert timing.clock(torch.device("cuda")) == 7.0
    assert order == ["cuda", "read"]


def test_metrics_and_summary_of_one_run():
    assert metrics([4.0]) == {"ttft": 4.0, "tpot": None, "itl": [], "e2el": 4.0}
    three = {"ttft": 4.0, "tpot": 1.5, "itl": [1.0, 2.0, 1.5], "e2el": 8.5}
    assert metrics([4.0, 1.0, 2.0, 1.5]) == three
    # A summary shows the spread, whatever the order.
    assert summary([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0, "n": 3}
    assert summary(x for x in (4.0, 1.0, 2.0, 3.0))["median"] == 2.5


def test_time_pair_drops_the_warm_up_and_pairs_neighbouring_runs(clock):
    """On a machine that becomes ten times slower from pair to pair, each ratio is still 2."""
    a = system(clock, [900, 900], [2, 2], [20, 20], [200, 200])
    b = system(clock, [100, 100], [1, 1], [10, 10], [100, 100])
    result = time_pair(a, b, repeats=3)
    assert result["speedup"] == {"median": 2.0, "low": 2.0, "high": 2.0, "n": 3}
    assert result["systems"]["uncached"]["ttft"]["high"] == 200
    loses = time_pair(system(clock, [1]), system(clock, [4]), repeats=2)
    assert loses["speedup"]["median"] == 0.25
    assert loses["systems"]["cached"]["tpot"] is None


def test_time_pair_summarises_every_metric(clock):
    runs = [[9, 9, 9], [8, 1, 3], [6, 2, 4], [7, 3, 8]]
    result = time_pair(system(clock, *runs), system(clock, [1, 1, 1]), repeats=3)
    x = result["systems"]["uncached"]
    assert x["ttft"] == {"median": 7, "low": 6, "high": 8, "n": 3}
    assert x["e2el"] == {"median": 12, "low": 12, "high": 18, "n": 3}
    assert x["tpot"] == {"median": 3, "low": 2, "high": 5.5, "n": 3}
    assert x["itl"] == [2, 4]
    assert json.loads(json.dumps(result)) == result


def test_time_pair_refuses_unequal_work(clock):
    log = []
    a = system(clock, [1], log=log)
    with pytest.raises(ValueError, match="repeats=0"):
        time_pair(a, a, repeats=0)
    assert log == [], "nothing was run first"
    with pytest.raises(ValueError, match=r"\[3, 4\] tokens"):
        time_pair(lambda: range(3), lambda: range(4), repeats=1)


def test_interleaved_runs_alternate_and_drop_the_warm_up(clock, monkeypatch):
    log = []
    costs = iter([90, 80, 1, 2, 3, 4])

    def run(name):
        log.append(name)
        clock.now += next(costs)
        return f"{name} {len(log)}"

    monkeypatch.setattr(timing.gc, "collect", lambda: log.append("gc"))  # not within a run
    runs = {name: lambda name=name: run(name) for name in "AB"}
    found = time_interleaved(runs, 2, after_turn=lambda: log.append("turn"))
    assert log == ["gc", "A", "gc", "B", "turn"] * 3
    assert found == ({"A": [1, 3], "B": [2, 4]}, {"A": "A 12", "B": "B 14"})
