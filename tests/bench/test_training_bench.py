"""Interleaved training runs, each with its own clock, and rows that compare equal blocks only."""

import json

import pytest
import torch

from nanogpt.bench import training
from nanogpt.bench.entries import KINDS
from nanogpt.bench.training import Entry, Runner, compared, train_interleaved
from nanogpt.cli import bench, main
from nanogpt.data import practice_corpus
from nanogpt.device import Device
from nanogpt.model import GPT
from nanogpt.training.evaluation import full_loss
from nanogpt.training.loop import train

CPU = Device(torch.device("cpu"), torch.float32, "tests")
TINY = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 8}
QUICK = {"steps": 40, "batch_size": 4}
ENTRIES = (
    Entry("lecture", "lecture", None, TINY, QUICK),
    Entry("fast", "fast", 2.0, TINY, QUICK),
    Entry("sprint", "sprint", 2.0, {**TINY, "block_size": 16}, {**QUICK, "steps": 80}),
)


@pytest.fixture(scope="module")
def runs(corpus):
    return train_interleaved(ENTRIES, corpus, seed=1, device=CPU)


@pytest.fixture
def now(monkeypatch):
    """The time on the clock of the runs, moved by hand."""
    now = [0.0]
    monkeypatch.setattr(training.time, "process_time", lambda: now[0])
    return now


def made(name, seed, seconds, loss, block=32, goal=None):
    facts = {"n_params": 9, "steps": 5, "chars": 8, "curve": [[0, 4.0], [seconds, loss]]}
    facts |= {"name": name, "goal": goal, "block_size": block}
    return facts | {"seed": seed, "seconds": seconds, "loss": loss}


def test_every_entry_is_trained_to_its_end_and_evaluated_on_the_way(runs):
    assert [run["steps"] for run in runs] == [40, 40, 80]
    for run in runs:
        seconds, losses = zip(*run["curve"], strict=True)
        assert len(run["curve"]) == 11
        assert list(seconds) == sorted(seconds)
        assert seconds[-1] == run["seconds"]
        assert losses[-1] < losses[0]
    json.dumps(runs, allow_nan=False)


def test_a_run_is_the_run_of_train(runs, corpus):
    """The same batches, rates and updates, and the loss of the whole validation text."""
    config, shape = ENTRIES[1].configs(len(set(corpus.text)), 1)
    model = GPT(shape, generator=torch.Generator().manual_seed(1))
    assert round(train(model, corpus, config, device=CPU)["full_val"], 4) == runs[1]["loss"]
    runner = Runner(ENTRIES[0], corpus, 1, CPU)
    runner.advance(2)
    assert runner.result()["loss"] == round(full_loss(runner.model, runner.val), 4)


def test_evaluation_is_not_on_the_clock(corpus, now, monkeypatch):
    def slow(*_, **how):
        now[0] += 100
        return 1.0

    monkeypatch.setattr(training, "full_loss", slow)
    runner = Runner(ENTRIES[0], corpus, 1, CPU)
    monkeypatch.setattr(runner.trainer, "step", lambda step: now.__setitem__(0, now[0] + 1))
    for until in (3, 7):
        runner.advance(until)
        runner.evaluate()
    assert runner.curve == [[3.0, 1.0], [7.0, 1.0]]


def test_the_ratio_is_seed_by_seed_and_only_for_a_loss_as_low_at_the_same_block():
    baseline = [made("lecture", *facts) for facts in [(1, 100, 1.8), (2, 120, 1.82), (3, 90, 1.81)]]
    others = [made("a", *facts) for facts in [(1, 10, 1.8), (2, 10, 1.9), (3, 10, 1.7)]]
    others += [made("worse", 1, 10, 1.9), made("other block", 1, 10, 1.5, block=64)]
    rows = compared(baseline + others)
    assert [row["name"] for row in rows] == ["lecture", "a", "worse", "other block"]
    assert rows[1]["sooner"] == {"median": 10.0, "low": 9.0, "high": 12.0, "n": 3}
    assert "sooner" not in rows[2]
    assert "sooner" not in rows[3]
    assert "sooner" not in compared([made("a", 1, 10.0, 1.8)])[0]


# ------------------------------------------------------------------ python -m nanogpt bench train


def test_the_command_prints_rows_and_writes_them(runs, tmp_path, monkeypatch, capsys):
    path = tmp_path / "race.json"
    data = tmp_path / "text.txt"
    data.write_text(practice_corpus().text[:20_000], encoding="utf-8")
    monkeypatch.setitem(KINDS, "race", ENTRIES)
    monkeypatch.setattr(
        bench, "train_interleaved", lambda *_, seed, **__: [run | {"seed": seed} for run in runs]
    )
    assert main(["bench", "train", "--seeds", "2", "--data", str(data), "--json", str(path)]) == 0
    result = json.loads(path.read_text(encoding="utf-8"))
    said = capsys.readouterr().out
    assert len(result["runs"]) == 6
    assert all(row["name"] in said for row in result["rows"])


def test_a_stop_keeps_the_complete_seeds(tmp_path, monkeypatch, capsys, corpus):
    monkeypatch.setattr(bench, "load_corpus", lambda _: corpus)
    path = tmp_path / "race.json"
    seeds = []

    def stopped_at_the_second(entries, corpus, *, seed, device):
        seeds.append(seed)
        if len(seeds) == 2:
            raise KeyboardInterrupt
        return [made("lecture", seed, 10.0, 1.8)]

    monkeypatch.setattr(bench, "train_interleaved", stopped_at_the_second)
    assert main(["bench", "train", "--json", str(path)]) == 130
    assert len(json.loads(path.read_text(encoding="utf-8"))["runs"]) == 1
    assert f"what was measured is in {path}" in capsys.readouterr().err
