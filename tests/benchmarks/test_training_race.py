"""The race: runs in turns, each with a clock of its own, and a table that compares equal blocks only."""

import json
from dataclasses import replace

import pytest
import torch

from nanogpt.benchmarks import training as benchmarks_training
from nanogpt.benchmarks.training import (
    HEADS,
    IDEAS,
    KINDS,
    RACE,
    Entry,
    Runner,
    chosen,
    panels,
    published,
    race,
    steps_for,
    table,
)
from nanogpt.cli.bench_train import main
from nanogpt.config import MODERN, RECIPES, SIZES, TrainConfig
from nanogpt.data.corpus import practice_corpus
from nanogpt.data.tokenizer import CharTokenizer
from nanogpt.model.gpt import GPT
from nanogpt.system.device import Device
from nanogpt.training.evaluate import full_loss
from nanogpt.training.loop import train

CPU = Device(torch.device("cpu"), torch.float32, "tests")
SMALL = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 8}
QUICK = {"steps": 40, "batch_size": 4}
ENTRIES = (
    Entry("lecture", "lecture", None, SMALL, QUICK),
    Entry("fast", "fast", 2.0, SMALL, QUICK),
    Entry("sprint+", "sprint+", 2.0, {**SMALL, "block_size": 16}, {**QUICK, "steps": 80}),
)


@pytest.fixture(scope="module")
def text():
    return practice_corpus()


@pytest.fixture(scope="module")
def runs(text):
    return race(ENTRIES, text, seed=1, device=CPU)


def test_every_entry_is_trained_to_its_end_and_looked_at_on_the_way(runs):
    assert [run["steps"] for run in runs] == [40, 40, 80]
    for run in runs:
        seconds, losses = zip(*run["curve"], strict=True)
        assert len(run["curve"]) == 21
        assert list(seconds) == sorted(seconds)
        assert seconds[-1] == run["seconds"]
        assert losses[-1] < losses[0]
    json.dumps(runs, allow_nan=False)


def test_a_run_of_the_race_is_the_run_of_train(runs, text):
    """The same batches, rates and updates: only the clock is another."""
    config, shape = ENTRIES[1].configs(len(set(text.text)), 1)
    model = GPT(shape, generator=torch.Generator().manual_seed(1))
    assert round(train(model, text, config, device=CPU)["full_val"], 4) == runs[1]["loss"]


def test_evaluation_is_not_on_the_clock(text, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(benchmarks_training.time, "process_time", lambda: now[0])
    monkeypatch.setattr(
        benchmarks_training, "estimate_loss", lambda *_: now.__setitem__(0, now[0] + 100) or 1.0
    )
    runner = Runner(ENTRIES[0], text, 1, CPU)
    monkeypatch.setattr(runner.trainer, "step", lambda step: now.__setitem__(0, now[0] + 1))
    for until in (3, 7):
        runner.advance(until)
        runner.look()
    assert runner.curve == [[3.0, 1.0], [7.0, 1.0]]


def test_the_loss_is_that_of_the_whole_validation_text(text):
    runner = Runner(ENTRIES[0], text, 1, CPU)
    runner.advance(2)
    assert runner.result()["loss"] == round(full_loss(runner.model, runner.val), 4)


def made(name, seed, seconds, loss, block=32, goal=None):
    plain = {"n_params": 9, "steps": 5, "chars": 8, "curve": [[0, 4.0], [seconds, loss]]}
    facts = {
        "name": name,
        "goal": goal,
        "block_size": block,
        "seed": seed,
        "seconds": seconds,
        "loss": loss,
    }
    return facts | plain


def test_the_ratio_is_seed_by_seed_and_only_for_a_loss_as_low_at_the_same_block():
    rows = table(
        [
            made("lecture", 1, 100.0, 1.8),
            made("lecture", 2, 120.0, 1.82),
            made("lecture", 3, 90.0, 1.81),
            made("a", 1, 10.0, 1.8),
            made("a", 2, 10.0, 1.9),
            made("a", 3, 10.0, 1.7),
            made("worse", 1, 10.0, 1.9),
            made("other block", 1, 10.0, 1.5, block=64),
        ]
    )
    assert [row["name"] for row in rows] == ["lecture", "a", "worse", "other block"]
    assert rows[1]["sooner"] == {"median": 10.0, "low": 9.0, "high": 12.0, "n": 3}
    assert "sooner" not in rows[2]
    assert "sooner" not in rows[3]
    assert "sooner" not in table([made("a", 1, 10.0, 1.8)])[0]


def test_a_panel_holds_one_block_and_of_every_entry_the_run_in_the_middle():
    runs = [made("a", seed, 10.0, loss) for seed, loss in ((1, 1.9), (2, 1.7), (3, 1.8))]
    found = panels(
        {"runs": [*runs, made("b", 1, 9.0, 1.5, block=64), made("a", 1, 9.0, 1.6, goal=1.6)]}
    )
    assert [panel["title"] for panel in found] == ["block 32", "block 64"]
    assert [line["loss"] for line in found[0]["lines"]] == [1.8, 1.6]


def test_rungs_with_the_same_seconds_get_steps_by_their_speed(text, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(benchmarks_training.time, "process_time", lambda: now[0])

    def fake(self, until):
        now[0] += (until - self.done) * (0.5 if self.entry.name == "fast" else 0.1)
        self.seconds, self.done = (
            self.seconds + (until - self.done) * (0.5 if self.entry.name == "fast" else 0.1),
            until,
        )

    monkeypatch.setattr(Runner, "advance", fake)
    assert steps_for(ENTRIES[:2], text, 50.0, CPU) == [500, 100]


def test_each_rung_of_the_ideas_adds_to_the_one_before():
    """What a rung changes is said by its name, and all of them have one shape."""
    made = [entry.configs(65, 1) for entry in IDEAS]
    assert (
        len({(shape.n_layer, shape.n_head, shape.n_embd, shape.block_size) for _, shape in made})
        == 1
    )
    first, batched, rate, fast, sprint, pairs, triples = made
    assert (first[0].batched, batched[0].batched) == (False, True)
    assert (batched[0].decay, rate[0].decay) == (False, True)
    assert rate[0].muon_lr is None
    assert fast[0] == RECIPES["fast"].train.__class__(
        **{**vars(RECIPES["fast"].train), "batch_size": 32, "seed": 1}
    )
    assert [shape.ngrams for _, shape in made] == [1, 1, 1, 1, 1, 2, 3]
    assert all(getattr(sprint[1], key) == value for key, value in MODERN.items())
    assert pairs[0] == triples[0]


def test_all_entries_can_be_built():
    for entry in (*RACE, *IDEAS):
        config, shape = entry.configs(65, 3)
        assert isinstance(config, TrainConfig)
        assert config.seed == 3
        assert shape.vocab_size == 65
    assert RACE[0].configs(65, 1)[1].block_size == SIZES["article"].block_size


WRONG = ["--seeds 0", "--only fats", "--only=", "--seconds 0", "--seconds nan", "--data /nowhere"]


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_measured_is_refused_before_it_begins(words, capsys):
    assert main(words.split()) == 2
    assert "error: " in capsys.readouterr().err


def test_seconds_too_short_for_the_slowest_rung_are_refused(text, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(benchmarks_training.time, "process_time", lambda: now[0])

    def fake(self, until):
        now[0] += until - self.done
        self.seconds, self.done = self.seconds + until - self.done, until

    monkeypatch.setattr(Runner, "advance", fake)
    with pytest.raises(ValueError, match="20 seconds are 20 steps of .*take 40 seconds"):
        steps_for(ENTRIES[:1], text, 20.0, CPU)


def test_only_some_recipes_and_the_lectures():
    assert [entry.name for entry in chosen(IDEAS, "sprint+")] == [IDEAS[0].name, IDEAS[-1].name]
    assert {entry.recipe for entry in chosen(RACE, "fast")} == {"lecture", "fast"}
    assert chosen(RACE, None) == RACE


def test_the_command_prints_a_table_and_writes_after_each_seed(tmp_path, monkeypatch, capsys, text):
    monkeypatch.setitem(KINDS, "race", ENTRIES)
    path, data = tmp_path / "race.json", tmp_path / "text.txt"
    data.write_text(text.text[:20_000], encoding="utf-8")
    written, plain = [], benchmarks_training.write_json
    monkeypatch.setattr(
        benchmarks_training, "write_json", lambda *a: written.append(len(a[1]["runs"])) or plain(*a)
    )
    assert main(["--seeds", "2", "--data", str(data), "--json", str(path)]) == 0
    assert written == [3, 6]
    result = json.loads(path.read_text())
    assert result["what"] == "race"
    assert [row["name"] for row in result["rows"]] == ["lecture", "fast", "sprint+"]
    said = capsys.readouterr().out
    assert "sooner" in said
    assert "at its own block" in said


def test_a_stop_keeps_the_seeds_that_were_complete(tmp_path, monkeypatch, capsys, text):
    monkeypatch.setattr(benchmarks_training, "load_corpus", lambda _: text)
    path, seeds = tmp_path / "race.json", []

    def one(entries, corpus, *, seed, device, steps):
        seeds.append(seed)
        if len(seeds) == 2:
            raise KeyboardInterrupt
        return [made("lecture", seed, 10.0, 1.8)]

    monkeypatch.setattr(benchmarks_training, "race", one)
    assert main(["--json", str(path)]) == 130
    assert len(json.loads(path.read_text())["runs"]) == 1
    assert f"are in {path}" in capsys.readouterr().err


@pytest.mark.parametrize("name", KINDS)
def test_the_published_figures_are_of_the_real_corpus_and_these_entries(name):
    result = published(name)
    assert result["corpus"] == "Tiny Shakespeare"
    assert result["what"] == name
    entries = KINDS[name]
    assert [(row["name"], row["goal"]) for row in result["rows"]] == [
        (e.name, e.goal) for e in entries
    ]
    assert result["rows"] == table(result["runs"])
    assert {run["seed"] for run in result["runs"]} == {1337, 1338, 1339}
    tokenizer = CharTokenizer("".join(chr(33 + i) for i in range(65)))
    for row, entry in zip(result["rows"], entries, strict=True):
        config, shape = entry.configs(len(tokenizer), 1)
        assert row["n_params"] == GPT(shape).n_params
        assert row["chars"] == config.batch_size * shape.block_size
        if name != "ideas":
            assert row["steps"] == config.steps


def test_figures_that_are_missing_are_an_error_that_says_how_to_make_them(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmarks_training, "ROOT", tmp_path)
    with pytest.raises(
        ValueError, match="is missing: measure it with python -m nanogpt.bench train"
    ):
        published("race")
    with pytest.raises(ValueError, match=r"nanogpt.bench train --heads --json"):
        published("heads")
    with pytest.raises(ValueError, match=r"nanogpt.bench speculate --json"):
        published("speculate")


def test_what_shared_keys_and_windows_cost_is_measured_with_equal_training():
    configs = [entry.configs(65, 1) for entry in HEADS]
    assert len({train for train, _ in configs}) == 1
    shapes = {entry.name: shape for entry, (_, shape) in zip(HEADS, configs, strict=True)}
    base = shapes["rotary positions"]
    assert replace(shapes["1 head of keys"], n_kv_head=None) == base
    assert replace(shapes["window 16, every 2nd layer full"], window=None, full_every=0) == base
    assert replace(shapes["a table of positions"], rope=True) == base
