"""The sweep counts what it finds, and finds what is there."""

import json
from dataclasses import replace

import pytest
import torch

from nanogpt.cli import main
from nanogpt.engines.eager import Flat
from nanogpt.files import ROOT
from nanogpt.sampling import PLAIN
from nanogpt.verify.sweep import WAYS, describe, draw_case, passed, run_case, sweep

CACHES = {name: how["cache"] for name, (_, how) in WAYS.items() if "cache" in how}


@pytest.mark.parametrize(
    ("dtype", "in_exact", "seed", "n"),  # another seed means other texts
    [
        ("float64", 0, 0, 40),
        pytest.param("float32", 0, 1, 40, marks=pytest.mark.release),
        pytest.param("float32", 1, 2, 20, marks=pytest.mark.release),
        pytest.param("bfloat16", 1, 3, 20, marks=pytest.mark.release),
    ],
)
def test_texts_of_many_models_have_no_mismatch(dtype, in_exact, seed, n):
    result = sweep(n, seed=seed, dtype=dtype, in_exact=bool(in_exact))
    assert passed(result), describe(result)
    assert result["sequences"] >= n
    assert sum(result["ways"].values()) == result["sequences"]
    assert (result["differing_logits"] == 0) == in_exact


def test_cases_reach_every_way_and_every_edge():
    for dtype, in_exact, without in (("float32", False, set()), ("float64", True, {"Native"})):
        ways = {draw_case(0, i, dtype, in_exact).way for i in range(100)}
        assert ways == {*WAYS} - without
    cases = [draw_case(0, i, "float32", True) for i in range(400)]
    assert {c.prompt - c.config.block_size for c in cases} >= {0, -1}
    assert 1 in {c.prompt for c in cases}
    ends = {c.prompt + c.n_new - 1 - c.config.block_size for c in cases}
    assert {0, 1} <= ends, "to the last row of the table, and past it"
    assert {c.batch for c in cases} == {1, 2, 3, 4, 5, 6}
    assert draw_case(0, 7, "float32", True) == cases[7] != draw_case(1, 7, "float32", True)


class Broken(Flat):
    """An engine that gives another token than it should at one step."""

    def tokens(self, *arguments):
        for i, token in enumerate(super().tokens(*arguments)):
            yield (token + 1) % 65 if i == 2 else token


def test_a_mismatch_is_found_counted_and_not_explained_away(monkeypatch, tmp_path):
    monkeypatch.setitem(WAYS, "Flat", (True, {"engine": Broken}))
    cases = (draw_case(0, i, "float32", False) for i in range(500))
    case = next(c for c in cases if c.way == "Flat" and c.n_new > 4)
    result = sweep(0, dtype="float32")
    run_case(result, replace(case, batch=3, sampling=PLAIN))
    found = result["mismatches"]
    assert [(m["text"], m["step"], m["explained"]) for m in found] == [
        (i, 2, False) for i in range(3)
    ]
    assert found[0]["margin"] > 2 * found[0]["logit_diff"]
    path = tmp_path / "r.json"
    words = ["verify", "sweep", "--sequences", "30", "--dtype", "float64", "--json", str(path)]
    assert main(words) == 1
    result = json.loads(path.read_text(encoding="utf-8"))
    assert not passed(result)
    assert result["mismatched"] > result["explained"]


def halved(k, v, pos):
    return k / 2, v, pos


def one_lost(k, v, pos):  # an old one: the last is the query's own
    return k, v, torch.where(pos == 1, -1, pos) if pos[-1] > 1 else pos


def one_late(k, v, pos):  # a mask that is off by one
    return k, v, torch.where(pos == pos[-1], pos + (len(pos) > 1), pos)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.release)])
@pytest.mark.parametrize("fault", [None, halved, one_lost, one_late])
def test_a_broken_cache_is_not_explained_by_its_own_differences(monkeypatch, fault, dtype):
    for name, cache in CACHES.items():
        if fault:

            def store(self, k, v, pos, cache=cache):
                return fault(*cache.store(self, k, v, pos))

            faulty = type("Faulty", (cache,), {"store": store})
            monkeypatch.setitem(WAYS, name, (WAYS[name][0], {"cache": faulty}))
    cases = (draw_case(0, i, dtype, False) for i in range(20))
    result = sweep(0, dtype=dtype)
    for case in cases:
        if case.way in CACHES:
            run_case(result, case)
    assert (result["mismatched"] > result["explained"]) == bool(fault)
    assert "bfloat16" in str(dtype) or (result["too_close"] > 0) == bool(fault)


def test_a_mismatch_within_rounding_is_explained_in_float32_alone():
    sound = {"dtype": "float32", "exact": False, "differing_logits": 1}
    result = sound | {"mismatched": 1, "explained": 1}
    assert passed(result)
    assert not passed(result | {"explained": 0})
    assert not passed(result | {"dtype": "float64"})
    assert not passed(result | {"exact": True})
    assert not passed(sound | {"exact": True, "mismatched": 0})


@pytest.mark.parametrize(
    ("words", "message"),
    [("--dtype bfloat16", "needs --exact"), ("--json .", "is a folder: name a file")],
)
def test_a_sweep_that_cannot_be_run_or_written_is_refused(words, message, capsys):
    assert main(["verify", "sweep", *words.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["float32", "float64", "float32-exact", "bfloat16-exact"])
def test_the_ten_thousand_that_are_published(name):
    result = json.loads((ROOT / "outputs" / "sweeps" / f"{name}.json").read_text(encoding="utf-8"))
    assert result["sequences"] >= 10_000
    assert passed(result)
