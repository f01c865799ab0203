"""The sweep counts what it finds, finds what is there, and resumes where it was stopped."""

import json
from dataclasses import replace

import pytest
import torch

from nanogpt.cli.verify_sweep import main
from nanogpt.decoding.sampling import PLAIN
from nanogpt.engines.eager import Flat
from nanogpt.system.files import ROOT
from nanogpt.verify import sweep as module
from nanogpt.verify.cases import CACHES, ENGINES, draw_case, run_case
from nanogpt.verify.sweep import describe, new_result, passed, sweep


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "in_exact", "seed", "n"),
    [
        # Another seed means other texts.
        ("float64", False, 0, 40),
        pytest.param("float32", False, 1, 40, marks=pytest.mark.slow),  # builds native engines
        ("float32", True, 2, 20),
        ("bfloat16", True, 3, 20),
    ],
)
def test_texts_of_many_models_have_no_mismatch(dtype, in_exact, seed, n):
    result = sweep(n, seed=seed, dtype=dtype, in_exact=in_exact)
    assert passed(result), describe(result)
    assert result["sequences"] >= n
    assert sum(result["ways"].values()) == result["sequences"]
    assert (result["differing_logits"] == 0) is in_exact


@pytest.mark.parametrize(
    ("dtype", "in_exact", "without"),
    [("float32", False, set()), ("float32", True, {"Native"}), ("float64", False, {"Native"})],
)
def test_cases_reach_every_way(dtype, in_exact, without):
    ways = {draw_case(0, i, dtype, in_exact).way for i in range(100)}
    assert ways == {*CACHES, *ENGINES} - without


def test_cases_reach_every_edge():
    cases = [draw_case(0, i, "float32", True) for i in range(400)]
    gaps = {(c.prompt - c.config.block_size, c.prompt == 1) for c in cases}
    assert {gap for gap, _ in gaps} >= {0, -1}
    assert any(one for _, one in gaps)
    ends = {c.prompt + c.n_new - 1 - c.config.block_size for c in cases}
    assert {0, 1} <= ends, "to the last row of the table, and past it"
    assert {c.batch for c in cases} == {1, 2, 3, 4, 5, 6}
    assert draw_case(0, 7, "float32", True) == cases[7]
    assert draw_case(1, 7, "float32", True) != cases[7]


def broken(**wrong):
    """An engine that gives another token than it should at one step."""

    class Broken(Flat):
        def tokens(self, *arguments):
            for i, token in enumerate(super().tokens(*arguments)):
                yield (token + 1) % 65 if i == wrong["at"] else token

    return Broken


def test_a_mismatch_is_found_counted_and_not_explained_away(monkeypatch, tmp_path):
    monkeypatch.setitem(ENGINES, "Flat", broken(at=2))
    case = next(
        c
        for c in (draw_case(0, i, "float32", False) for i in range(500))
        if c.way == "Flat" and c.n_new > 4
    )
    case = replace(case, batch=3, sampling=PLAIN)
    found = run_case(0, case, False)
    assert [(m["text"], m["step"], m["explained"]) for m in found["mismatches"]] == [
        (i, 2, False) for i in range(3)
    ]
    assert found["mismatches"][0]["margin"] > 2 * found["mismatches"][0]["logit_diff"]
    result = sweep(30, dtype="float64", path=tmp_path / "r.json")
    assert not passed(result)
    assert result["mismatched"] > result["explained"]
    assert (
        main(["--sequences", "30", "--dtype", "float64", "--json", str(tmp_path / "r.json")]) == 1
    )


def test_a_mismatch_within_rounding_is_explained_in_float32_alone():
    result = new_result(0, "float32", False) | {"mismatched": 1, "explained": 1}
    assert passed(result)
    assert not passed(result | {"dtype": "float64"})
    assert not passed(result | {"exact": True})
    assert not passed(new_result(0, "float32", True) | {"differing_logits": 1})


@pytest.mark.slow
def test_a_sweep_that_was_stopped_resumes_and_counts_the_same(tmp_path, monkeypatch):
    whole = sweep(20, in_exact=True, path=tmp_path / "whole.json")
    calls, plain = [], module.run_case

    def stop(*arguments):
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return plain(*arguments)

    path = tmp_path / "part.json"
    with monkeypatch.context() as patch:
        patch.setattr(module, "run_case", stop)
        assert main(["--sequences", "20", "--exact", "--json", str(path)]) == 130
    assert json.loads(path.read_text())["cases"] == 3
    assert main(["--sequences", "20", "--exact", "--json", str(path)]) == 0
    part = json.loads(path.read_text())
    assert {key: part[key] for key in whole} == whole
    before = path.read_bytes()
    assert main(["--sequences", "20", "--exact", "--json", str(path)]) == 0
    assert json.loads(path.read_bytes())["cases"] == json.loads(before)["cases"], (
        "nothing was left to do"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sequences", "0"], "--sequences=0"),
        (["--dtype", "bfloat16"], "needs --exact"),
        (["--seed", "2"], "was started with seed 0, and this is 2"),
        (["--dtype", "float64"], "was started with dtype float32"),
        (["--json", "."], "this is a folder"),
    ],
)
def test_what_cannot_resume_is_refused(tmp_path, capsys, words, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep(5, path=tmp_path / "r.json")
    before = (tmp_path / "r.json").read_bytes()
    assert main(["--sequences", "9", "--json", "r.json", *words]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "r.json").read_bytes() == before


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"seed": 0}', "\x00"], ids=repr)
def test_another_file_is_left_alone(tmp_path, capsys, content):
    path = tmp_path / "r.json"
    path.write_text(content)
    assert main(["--sequences", "9", "--json", str(path)]) == 2
    assert "is not a result of a sweep" in capsys.readouterr().err
    assert path.read_text() == content


def test_results_are_of_one_torch(tmp_path):
    sweep(5, path=tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    found["environment"]["torch"] = "1.0"
    (tmp_path / "r.json").write_text(json.dumps(found))
    with pytest.raises(
        ValueError, match=f"started with torch 1.0, and this is {torch.__version__.split('+')[0]}"
    ):
        sweep(9, path=tmp_path / "r.json")


@pytest.mark.parametrize("name", ["float32", "float64", "float32-exact", "bfloat16-exact"])
def test_the_ten_thousand_that_are_published(name):
    result = json.loads((ROOT / "outputs" / "sweeps" / f"{name}.json").read_text())
    assert result["sequences"] >= 10_000
    assert passed(result)


def test_a_second_sweep_into_one_file_is_refused(tmp_path, monkeypatch):
    def again(*words):
        return sweep(1, path=tmp_path / "a.json")

    monkeypatch.setattr(module, "run_case", again)
    with pytest.raises(ValueError, match="another run is writing to .*a.json: wait for it"):
        sweep(1, path=tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
