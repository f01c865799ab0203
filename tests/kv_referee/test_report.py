"""What a report says: known bugs, strict JSON, the exceptions of assert_sound."""

import json
import math

import pytest
from parts import Tiny
from wrong_models import wrong_where

from nanogpt import referee
from nanogpt.kv_referee import assert_sound
from nanogpt.kv_referee.report import (
    CODES,
    CacheBug,
    Judgement,
    LogitTurn,
    Report,
    Verdict,
)


def test_assert_sound_raises_the_report():
    assert assert_sound(Tiny(), tokens=0).verdict in ("equal", "rounding")
    with pytest.raises(CacheBug, match="chunks after a prompt|a prompt of"):
        assert_sound(wrong_where(lambda cache, k: cache.t + k.shape[2] > 20))


def test_a_known_failure_is_no_bug_and_never_makes_a_verdict_sound():
    model = wrong_where(lambda cache, k: cache.t and k.shape[2] == 13)
    (bug,) = referee(model, tokens=0).bugs
    report = referee(model, tokens=0, known=[bug.name])
    assert report.verdict is Verdict.KNOWN
    assert (report.verdict.sound, report.code, report.bugs) == (False, 0, [])
    assert "known bug: " + bug.way in str(report)
    report.raise_unless_sound()


def test_a_known_failure_names_a_whole_scenario():
    report = referee(
        wrong_where(lambda cache, k: cache.t + k.shape[2] > 5),
        tokens=0,
        known=["its cache", "requests"],
    )
    assert report.verdict is Verdict.BUG
    assert "the known failure 'its cache' did not occur" in str(report)
    assert "'no such way' did not occur" in str(referee(Tiny(), tokens=0, known=["no such way"]))


def test_json_is_strict():
    turn = LogitTurn([1], [2], [math.nan])
    finding = Judgement("a way", Verdict.BUG, "it stops", math.inf, turn=turn)
    report = Report("m", [finding])
    (written,) = json.loads(report.to_json())["findings"]
    assert (written["way"], written["size"], written["mistake"]) == ("a way", "inf", None)
    assert written["turn"] == [[1], [2], ["nan"]]
    assert json.loads(report.to_json())["verdict"] == "bug"
    assert CODES == {"equal": 0, "rounding": 0, "known bugs": 0, "bug": 1, "undecided": 3}
