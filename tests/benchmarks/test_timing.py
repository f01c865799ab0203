"""The stopwatch, with a clock that the tests wind: no test here depends on how fast anything is."""

import json

import pytest
import torch

from nanogpt.benchmarks import timing
from nanogpt.benchmarks.timing import duel, metrics, summary, time_in_turns, time_tokens


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when a system works: clock.now is moved by the iterators below."""

    class Clock:
        now = 100.0
        devices = []

    clock = Clock()
    clock.devices = []

    def now(device):
        clock.devices.append(device)
        return clock.now

    monkeypatch.setattr(timing, "clock", now)
    monkeypatch.setattr(timing.gc, "collect", lambda: None)  # slow beside a heap of tests
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


def test_gaps_are_the_time_to_each_token(clock):
    assert time_tokens(system(clock, [4, 1, 2])()) == [4, 1, 2]
    assert time_tokens(system(clock, [3])()) == [3]


def test_the_device_is_waited_for_once_before_and_once_after_each_token(clock):
    gpu = torch.device("cuda")
    time_tokens(system(clock, [4, 1, 2])(), gpu)
    assert clock.devices == [gpu] * 4


def test_a_reading_waits_for_the_device_first(monkeypatch):
    order = []
    monkeypatch.setattr(timing, "synchronize", lambda device: order.append(device.type))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: order.append("read") or 7.0)
    assert timing.clock(torch.device("cuda")) == 7.0
    assert order == ["cuda", "read"]


def test_an_iterator_without_tokens_cannot_be_timed(clock):
    with pytest.raises(ValueError, match="gave no token.*at least 1"):
        time_tokens(iter(()))


@pytest.mark.parametrize("gaps", [[4.0], [4.0, 1.0], [4.0, 1.0, 2.0, 1.5]])
def test_the_four_terms_belong_together(gaps):
    m = metrics(gaps)
    assert m["ttft"] == gaps[0]
    assert m["itl"] == gaps[1:]
    assert m["e2el"] == sum(gaps) == m["ttft"] + sum(m["itl"])
    assert (
        m["tpot"] is None
        if len(gaps) == 1
        else m["tpot"] * (len(gaps) - 1) == pytest.approx(sum(gaps[1:]))
    )


def test_a_summary_shows_the_spread_whatever_the_order():
    assert summary([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0, "n": 3}
    assert summary(x for x in (4.0, 1.0, 2.0, 3.0)) == {
        "median": 2.5,
        "low": 1.0,
        "high": 4.0,
        "n": 4,
    }
    with pytest.raises(ValueError, match="no median"):
        summary([])


@pytest.mark.parametrize(("warmup", "repeats"), [(0, 1), (1, 3), (2, 2)])
def test_the_two_systems_take_turns(clock, warmup, repeats):
    log = []
    a, b = (system(clock, [1, 1], log=log, name=name) for name in "AB")
    result = duel(a, b, warmup=warmup, repeats=repeats)
    assert log == ["A", "B"] * (warmup + repeats)
    assert result["speedup"]["n"] == repeats


def test_the_first_turn_warms_up_and_is_not_counted(clock):
    a = system(clock, [900, 900], [4, 2], [4, 2])
    b = system(clock, [500, 500], [2, 1], [2, 1])
    result = duel(a, b, repeats=2)
    assert result["speedup"] == {"median": 2.0, "low": 2.0, "high": 2.0, "n": 2}
    assert result["systems"]["uncached"]["ttft"]["high"] == 4
    assert result["systems"]["cached"]["e2el"]["high"] == 3


def test_a_ratio_is_taken_between_neighbours_in_time(clock):
    """A machine that slows down by ten from one pair to the next: each pair still says 2."""
    a = system(clock, [2, 2], [20, 20], [200, 200])
    b = system(clock, [1, 1], [10, 10], [100, 100])
    result = duel(a, b, warmup=0, repeats=3)
    assert result["speedup"] == {"median": 2.0, "low": 2.0, "high": 2.0, "n": 3}


def test_a_cache_that_loses_has_a_ratio_below_1(clock):
    assert duel(system(clock, [1]), system(clock, [4]), repeats=2)["speedup"]["median"] == 0.25


def test_each_system_is_described_by_every_term_and_the_gap_at_each_token(clock):
    runs = [[8, 1, 3], [6, 2, 4], [7, 3, 8]]
    result = duel(
        system(clock, *runs), system(clock, [1, 1, 1]), warmup=0, repeats=3, names=("x", "y")
    )
    assert list(result["systems"]) == ["x", "y"]
    x = result["systems"]["x"]
    assert x["ttft"] == {"median": 7, "low": 6, "high": 8, "n": 3}
    assert x["e2el"] == {"median": 12, "low": 12, "high": 18, "n": 3}
    assert x["tpot"] == {"median": 3, "low": 2, "high": 5.5, "n": 3}
    assert x["itl"] == [2, 4]
    assert x["tokens_per_second"] == {"median": 3 / 12, "low": 3 / 18, "high": 3 / 12, "n": 3}
    assert json.loads(json.dumps(result)) == result


def test_one_token_has_no_time_between_tokens(clock):
    x = duel(system(clock, [5]), system(clock, [1]), repeats=1)["systems"]["uncached"]
    assert x["tpot"] is None
    assert x["itl"] == []
    assert x["ttft"] == x["e2el"]


@pytest.mark.parametrize(("repeats", "warmup"), [(0, 1), (-1, 1), (1, -1)])
def test_turns_that_measure_nothing_are_refused(clock, repeats, warmup):
    log = []
    a = system(clock, [1], log=log)
    with pytest.raises(ValueError, match="must be an integer of at least"):
        duel(a, a, repeats=repeats, warmup=warmup)
    assert log == [], "nothing was run first"


def test_a_system_that_fails_stops_the_duel_with_its_own_error(clock):
    def broken():
        yield 1
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        duel(system(clock, [1]), broken)


def test_the_rubbish_is_collected_before_a_run_and_not_within(clock, monkeypatch):
    order = []
    monkeypatch.setattr(timing.gc, "collect", lambda: order.append("collect"))
    a = system(clock, [1, 1], log=order, name="run")
    duel(a, a, warmup=0, repeats=1)
    assert order == ["collect", "run"] * 2


def test_several_runs_take_turns_and_the_first_turn_is_not_counted(clock):
    log, costs = [], iter([90, 80, 1, 2, 3, 4])

    def run(name):
        log.append(name)
        clock.now += next(costs)
        return f"{name} {len(log)}"

    runs = {name: lambda name=name: run(name) for name in "AB"}
    found = time_in_turns(runs, 2, after_turn=lambda: log.append("turn"))
    assert log == ["A", "B", "turn"] * 3
    assert found == ({"A": [1, 3], "B": [2, 4]}, {"A": "A 7", "B": "B 8"})


def test_unequal_work_is_not_compared(clock):
    with pytest.raises(ValueError, match="3 and 4 tokens"):
        duel(lambda: range(3), lambda: range(4), repeats=1)


def test_one_long_run_holds_all_shorter_ones(clock, monkeypatch):
    """a needs 2 s for each token, b 1 s, then 3 s: the ratio depends on where one stops."""
    moments = iter([0, 2, 4, 6, 100, 101, 104, 107])
    monkeypatch.setattr(timing, "clock", lambda device: float(next(moments)))
    found = timing.speedups_by_length(
        lambda: range(3), lambda: range(3), [1, 2, 3], repeats=1, warmup=0
    )
    assert [found[n]["median"] for n in (1, 2, 3)] == [2.0, 1.0, 6 / 7]


def test_a_length_that_was_not_run_is_named(clock):
    with pytest.raises(ValueError, match=r"length=9: must be an integer in \[1, 3\]"):
        timing.speedups_by_length(lambda: range(3), lambda: range(3), [9], repeats=1)
