"""The ladder's figures belong together, its rungs agree, and a rung that cannot be built says so."""

import json
import os

import pytest
import torch
from conftest import tiny_model

from nanogpt.benchmarks import decoding as benchmarks_decoding
from nanogpt.benchmarks.decoding import ladder, rungs, throughput
from nanogpt.cli import bench
from nanogpt.cli.bench import main
from nanogpt.config import SIZES
from nanogpt.engines.eager import Flat
from nanogpt.engines.toolchain import CannotBuild, kept

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    return tiny_model(n_embd=64, n_head=4, vocab_size=65)


@pytest.fixture(scope="module")
def result(model):
    return ladder(model, n_new=8, repeats=3, only="1234578", progress=False)


def test_each_rung_gives_the_tokens_of_the_first(result):
    assert [row["rung"] for row in result["rungs"]] == list("1234578")
    assert all(row["equal"] for row in result["rungs"] if row["rung"] != "8")


def test_the_figures_belong_together(result):
    for row in result["rungs"]:
        assert row["seconds"]["n"] == row["speedup"]["n"] == 3
        assert row["tokens_per_second"]["median"] == pytest.approx(8 / row["seconds"]["median"])
        assert sum(row["split"].values()) == pytest.approx(row["seconds"]["median"] / 8)
        assert row["build_seconds"] >= 0
    assert result["rungs"][0]["speedup"]["median"] == 1.0
    limits = result["limits"]
    assert limits["floor"]["median"] == limits["read"]["median"] / limits["weight_bytes"]
    assert limits["floor"]["n"] == result["best"]["share_of_bound"]["n"] == 3
    assert result["best"]["rung"] in "1234578"
    json.dumps(result, allow_nan=False)  # plain data


def test_a_rung_that_cannot_be_built_says_why_and_the_others_go_on(model, monkeypatch, capsys):
    def fail(self):
        raise CannotBuild("no C++ compiler (c++)")

    monkeypatch.setattr(Flat, "build", fail)
    result = ladder(model, n_new=4, repeats=1, only="145", progress=False)
    assert result["rungs"][2] == {
        "rung": "5",
        "label": "flat step, eager",
        "unavailable": "no C++ compiler (c++)",
    }
    assert result["rungs"][1]["equal"]
    print("\n".join(bench._lines(result)))
    assert "not here: no C++ compiler (c++)" in capsys.readouterr().out


def test_many_texts_are_not_timed_under_the_name_of_a_rung_that_cannot_be_built(model):
    class Broken(Flat):
        fallback = Flat

        def build(self):
            raise CannotBuild("no C++ compiler (c++)")

    chosen = [
        benchmarks_decoding.Rung("5", "flat", Flat),
        benchmarks_decoding.Rung("7", "native", Broken),
    ]
    with pytest.warns(UserWarning, match="Broken cannot be built here, Flat decodes instead"):
        cells = throughput(model, [1, 2], chosen, n_new=4, repeats=1)
    assert [(cell["label"], cell["batch"]) for cell in cells] == [("flat", 1), ("flat", 2)]


def test_tokens_that_differ_are_called_different(model, monkeypatch, capsys):
    class Wrong(Flat):
        def tokens(self, *args):
            yield from (token * 0 for token in super().tokens(*args))

    wrong = [*rungs(CPU)[:1], benchmarks_decoding.Rung("5", "wrong", Wrong)]
    monkeypatch.setattr(benchmarks_decoding, "rungs", lambda device: wrong)
    result = ladder(model, n_new=8, repeats=1, progress=False)
    assert not result["rungs"][1]["equal"]
    assert result["best"]["rung"] == "1"
    print("\n".join(bench._lines(result)))
    assert "differ" in capsys.readouterr().out


def test_the_cache_folder_of_the_user_is_left_alone(model, tmp_path, monkeypatch):
    built = []

    class Kept(Flat):
        def build(self):
            built.append(kept("thing", "key", ".so", lambda path: path.write_bytes(b"built")))

    monkeypatch.setenv("NANOGPT_CACHE", str(tmp_path / "mine"))
    engine, said = benchmarks_decoding._build(Kept, model)
    assert isinstance(engine, Kept)
    assert set(said) == {"build_seconds", "again_seconds"}
    assert len(built) == 2
    assert not any(path.exists() for path in built), "the folder it was built into is gone again"
    assert not (tmp_path / "mine").exists()
    assert os.environ["NANOGPT_CACHE"] == str(tmp_path / "mine")


def test_peers_are_timed_beside_the_rungs(model):
    result = ladder(
        model,
        n_new=4,
        repeats=1,
        only="1",
        peers={"theirs": lambda: torch.zeros(1, 4)},
        progress=False,
    )
    (row,) = result["peers"]
    assert row["label"] == "theirs"
    assert "equal" not in row


def test_throughput_of_several_batches(model):
    chosen = [rung for rung in rungs(CPU) if rung.number in "45"]
    cells = throughput(model, [1, 3], chosen, n_new=4, repeats=1)
    assert [(cell["batch"], cell["equal"]) for cell in cells] == [
        (1, True),
        (1, True),
        (3, True),
        (3, True),
    ]
    for cell in cells:
        speed, step = cell["tokens_per_second"]["median"], cell["step"]["median"]
        assert speed == pytest.approx(cell["batch"] / step)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_new": 1}, "n_new=1: must be an integer of at least 2"),
        ({"n_new": 25}, r"n_new=25: must be an integer in \[2, 24\]"),
        ({"only": "9"}, "rungs=.9.: choose from 12345"),
    ],
)
def test_what_cannot_be_measured_is_refused(model, settings, words):
    with pytest.raises(ValueError, match=words):
        ladder(model, progress=False, **({"n_new": 4} | settings))


def test_every_device_has_a_ladder_that_ends_in_a_loop():
    for device in (CPU, torch.device("cuda")):
        numbers = [rung.number for rung in rungs(device)]
        assert numbers[:7] == list("1234567")
        assert not rungs(device)[0].cached


# ------------------------------------------------------------------ the program


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(SIZES, "article", tiny_model().config)


def test_the_program_prints_a_table_and_writes_json(small, tmp_path, capsys):
    path = tmp_path / "l.json"
    threads = torch.get_num_threads()
    assert main(["--size", "article", "--repeats", "1", "--rungs", "15", "--json", str(path)]) == 0
    torch.set_num_threads(threads)
    said = capsys.readouterr().out
    assert "per-Head, no cache" in said
    assert "roofline bound, where every weight is read once" in said
    written = json.loads(path.read_text())
    assert written["model"] == "article"
    assert written["environment"]["threads"] == 1
    assert [row["rung"] for row in written["rungs"]] == ["1", "5"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--repeats", "0"],
        ["--tokens", "1"],
        ["--rungs", "9"],
        ["--checkpoint", "/nowhere"],
        ["--threads", "0"],
    ],
)
def test_the_program_ends_with_2_and_one_line(small, arguments, capsys):
    assert main(["--size", "article", "--repeats", "1", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert "\n" not in said
