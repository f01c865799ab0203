"""The time that a referee is given is kept, set-up included: by a clock that only passes tell."""

import pytest
from other_library import Adapter, Net

from nanogpt import referee
from nanogpt.kv_referee.report import Verdict


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


# Seconds of a pass, and of the referee; the verdict of a sound model.
TIMES = {
    "no time": (1.0, 0, Verdict.UNDECIDED),
    "time for half of the set-up": (1.0, 20, Verdict.UNDECIDED),
    "time for some paths": (0.2, 60, None),
    "time for most": (0.01, 60, None),
}


@pytest.mark.parametrize("how", TIMES)
def test_no_pass_begins_after_the_end(how, clock):
    each, seconds, verdict = TIMES[how]
    report = referee(slow(clock, each), seconds=seconds)
    assert report.seconds <= seconds + 2 * each, report
    assert report.unreached or how == "time for most"
    assert report.verdict is verdict if verdict else report.verdict.sound, report


def test_a_pass_that_slows_down_ends_its_scenario(clock):
    """What later tokens cost cannot be told from the first ones."""

    class Slower(Net):
        def forward(self, ids, store=None):
            clock.now += 20 if store is not None and store.length > 12 else 0.001
            return super().forward(ids, store)

    report = referee(type("Slow", (Adapter,), {"net_type": Slower})(), seconds=60)
    assert report.seconds <= 60 + 2 * 20, report
    assert report.unreached


def test_a_slow_model_gets_short_texts(clock):
    report = referee(slow(clock, 0.6), seconds=60)
    assert "a slow model: its short texts have 24 tokens" in str(report)
    assert report.seconds <= 62


def test_a_fast_one_does_not(clock):
    assert "a slow model" not in str(referee(slow(clock, 0.001), seconds=60, requests=2))
