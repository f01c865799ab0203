"""The ladder's figures fit together, its rungs agree, and a rung that cannot be built says so."""

import json

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from decoding_fixtures import decoder
from shapes import COMBINED

from nanogpt.bench import ladder as decoding
from nanogpt.bench import roofline
from nanogpt.bench.ladder import Rung, ladder, rungs
from nanogpt.bench.peers import transformers_peers
from nanogpt.bench.reports import ladder_text
from nanogpt.bench.shapes import RANDOM_SHAPES
from nanogpt.bench.tables import shown_label
from nanogpt.cli import main
from nanogpt.decoder.checkpoint import load_checkpoint, save_checkpoint
from nanogpt.decoder.config import decoder_config
from nanogpt.decoder.pack import pack_heads
from nanogpt.engines.decoder_library import decoder_library
from nanogpt.engines.eager import Flat, PerHead
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.training.recipes import MODERN

CPU = torch.device("cpu")


class Unbuildable(Flat):
    """An engine that this machine has no compiler for."""

    fallback = Flat

    def build(self):
        raise CannotBuild("no C++ compiler (c++)")


@pytest.fixture(scope="module")
def model():
    return tiny_model(n_embd=64, n_head=4, vocab_size=65)


@pytest.fixture
def limits(monkeypatch):
    """Limits of the machine that take no time to measure: a new value for each turn."""
    turns = iter(range(1, 99))
    monkeypatch.setattr(
        roofline, "read_bandwidth", lambda *_, **__: {"median": 1e9 * next(turns), "how": "test"}
    )
    monkeypatch.setattr(roofline, "peak_arithmetic", lambda **_: {"median": 1e12, "how": "test"})


def test_the_figures_fit_together(model, limits):
    result = ladder(model, n_new=8, repeats=3, only="1234")
    assert [row["rung"] for row in result["rungs"]] == list("1234")
    for device in (CPU, torch.device("cuda")):
        assert [rung.number for rung in rungs(device)][:6] == list("123456")
    for row in result["rungs"]:
        assert row["equal"]
        assert row["speedup"]["n"] == 3
        assert sum(row["split"].values()) == pytest.approx(1 / row["tokens_per_second"]["median"])
    assert result["rungs"][0]["speedup"]["median"] == 1.0
    found = result["limits"]
    n_bytes = roofline.work(model.config, 8, cached=True)["bytes"]
    # The first turn, which measured 1e9, was a warm-up.
    assert found["read"] == {"median": 3e9, "low": 2e9, "high": 4e9, "n": 3, "how": "test"}
    assert found["roofline"] == {
        key: pytest.approx(found["read"][key] / n_bytes) for key in ("median", "low", "high")
    } | {"n": 3}
    assert found["step_bytes"] == n_bytes
    best = next(row for row in result["rungs"] if row["rung"] == result["best"]["rung"])
    share = result["best"]["share_of_bound"]
    speeds = best["tokens_per_second"]
    assert share["low"] >= speeds["low"] / found["roofline"]["high"]
    assert share["high"] <= speeds["high"] / found["roofline"]["low"]
    json.dumps(result, allow_nan=False)  # plain data


def test_a_native_rung_gives_the_same_tokens(model, limits):
    decoder_library()  # skipped without a compiler
    native = ladder(model, n_new=8, repeats=1, only="16")["rungs"][1]
    assert native["equal"]
    assert native["build_seconds"] > 0


def test_the_best_rung_has_full_weights_and_equal_tokens(model, limits, monkeypatch):
    class Different(Flat):
        def tokens(self, *args):
            yield from (token * 0 for token in super().tokens(*args))

    slow = rungs(CPU)[0]
    chosen = slow, Rung("5", "different", Different), Rung("8", "8-bit", Flat, itemsize=1)
    monkeypatch.setattr(decoding, "rungs", lambda device: chosen)
    result = ladder(model, n_new=8, repeats=1)
    assert [row["equal"] for row in result["rungs"]] == [True, False, True]
    assert result["best"]["rung"] == slow.number
    assert "differ" in ladder_text(result)


def test_a_rung_that_cannot_be_built_says_why_and_the_others_run(model, limits, monkeypatch):
    chosen = Rung("4", "flat", Flat), Rung("7", "native", Unbuildable)
    monkeypatch.setattr(decoding, "rungs", lambda device: chosen)
    result = ladder(model, n_new=4, repeats=1)
    why = "no C++ compiler (c++)"
    assert result["rungs"][1] == {"rung": "7", "label": "native", "unavailable": why}
    assert result["rungs"][0]["equal"]
    assert f"unavailable: {why}" in ladder_text(result)
    with pytest.raises(ValueError, match="n_new=25"):
        ladder(model, n_new=25)
    with pytest.raises(ValueError, match="nothing to time: rungs 7 cannot be built here .no C"):
        ladder(model, n_new=4, repeats=1, only="7")


def test_transformers_with_our_weights_and_noise_gives_our_tokens(model, limits):
    peers = transformers_peers(pack_heads(model))
    result = ladder(model, n_new=16, repeats=1, only="2", peers=peers)
    ours, *theirs = result["rungs"]
    assert theirs
    assert all(row["equal"] for row in theirs)
    assert [row["rung"] for row in (result["best"], ours)] == ["2", "2"], "the best is ours"
    assert all(row["label"] in ladder_text(result) for row in theirs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--tokens 99", "--tokens 99: must be an integer in [2, 24]"),
        ("--rungs 90", "no rungs 90"),
    ],
)
def test_the_command_refuses_in_its_own_words(words, said, capsys, monkeypatch):
    monkeypatch.setitem(RANDOM_SHAPES, "article", decoder_config(tiny_model().config))
    assert main(["bench", "ladder", "--size", "article", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_the_command_prints_the_rungs_and_writes_json(limits, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(RANDOM_SHAPES, "article", decoder_config(tiny_model().config))
    path = tmp_path / "l.json"
    words = "--size article --repeats 1 --rungs 14 --json"
    assert main(["bench", "ladder", *words.split(), str(path)]) == 0
    said = capsys.readouterr().out
    written = json.loads(path.read_text(encoding="utf-8"))
    assert "roofline bound" in said
    assert all(shown_label(row["label"]) in said for row in written["rungs"])
    assert (written["model"], written["environment"]["threads"]) == ("article", 1)


@pytest.mark.parametrize("row", ["the keeper", "Llama 3", "Gemma 2"])
def test_a_decoder_climbs_the_ladder_but_for_the_rung_of_the_lectures_heads(row, limits):
    model = decoder(torch.float32, **COMBINED[row])
    result = ladder(model, n_new=12, repeats=1, only="1234")
    absent = [row for row in result["rungs"] if "unavailable" in row]
    assert [row["rung"] for row in absent] == ["2"]
    why = str(PerHead.refuses(model.config))
    assert absent[0]["unavailable"] == why
    assert f"unavailable: {why}" in ladder_text(result)
    assert [row["rung"] for row in result["rungs"] if row.get("equal")] == ["1", "3", "4"]
    with pytest.raises(ValueError, match="nothing to time: rungs 2 cannot be built here"):
        ladder(model, n_new=12, repeats=1, only="2")


@pytest.mark.release
def test_groups_gates_and_rotations_are_compiled_and_native_too(limits):
    result = ladder(decoder(torch.float32, **COMBINED["Llama 3"]), n_new=12, repeats=1)
    assert [row["rung"] for row in result["rungs"] if "unavailable" not in row] == list("134567")
    assert all(row["equal"] for row in result["rungs"] if row["rung"] in "13456")


def test_a_trained_model_of_the_newer_form_climbs_the_ladder(limits, tmp_path, capsys):
    fox = tiny_model(**MODERN)
    save_checkpoint(tmp_path / "fox", fox, meta_of(fox))
    path = tmp_path / "l.json"
    words = ["--checkpoint", str(tmp_path / "fox"), *"--repeats 1 --rungs 134 --json".split()]
    assert main(["bench", "ladder", *words, str(path)]) == 0
    written = json.loads(path.read_text(encoding="utf-8"))
    assert [row["equal"] for row in written["rungs"]] == [True] * 3
    assert (written["model"], written["n_params"]) == ("fox", fox.n_params)
    assert written["checkpoint"] == load_checkpoint(tmp_path / "fox").sha256
