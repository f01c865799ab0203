"""A run that was stopped, in any way, resumes to the very weights that it would have had."""

import contextlib
import json
import os
import random
import shutil
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from training_fixtures import (
    CPU,
    contents,
    ctrl_c,
    exit_code,
    fork,
    fresh,
    log_of,
    short_run,
    stop_at,
    wait_for,
    weights,
)

from nanogpt.config import MODERN, TrainConfig
from nanogpt.model.checkpoint import CheckpointError, load_checkpoint, read_tensors
from nanogpt.system.device import Device
from nanogpt.training.loop import train
from nanogpt.training.state import deferred_interrupt, state_path

RECIPE = TrainConfig(steps=20, batch_size=4, eval_every=4, eval_batches=1, warmup=3)
HALF = Device(torch.device("cpu"), torch.float16, "tests")
PLUS = {**MODERN, "ngrams": 3}

# What a run may be: its recipe, its model, its device.
KINDS = {
    "lecture": (RECIPE, {}, CPU),
    "batched, AdamW alone": (replace(RECIPE, muon_lr=None), {"per_head": False}, CPU),
    "sprint+, clipped, in parts": (replace(RECIPE, clip=1.0, accumulate=2), PLUS, CPU),
    "float16": (RECIPE, {}, HALF),
}


@pytest.fixture(scope="module")
def wholes(corpus, tmp_path_factory):
    """Runs that nothing stopped, each made once: (weights, history, where its files are)."""
    made = {}

    def whole(kind="lecture"):
        if kind not in made:
            recipe, fields, device = KINDS[kind]
            model, out = fresh(corpus, **fields), tmp_path_factory.mktemp("whole") / "run"
            history = train(model, corpus, recipe, out=out, device=device)
            made[kind] = weights(model), history, out
        return made[kind]

    return whole


@pytest.fixture
def copy(wholes, tmp_path):
    """A copy of the files of the whole run of the lecture's kind."""
    shutil.copytree(wholes()[2].parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def all_of(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


# ------------------------------------------------------------------ Ctrl-C and resume


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("lecture", 0),
        ("lecture", 3),
        ("lecture", 8),
        ("lecture", 19),
        ("batched, AdamW alone", 7),
        ("sprint+, clipped, in parts", 6),
        ("float16", 4),
    ],
)
def test_ctrl_c_then_resume_gives_the_bits_of_a_whole_run(
    corpus, tmp_path, monkeypatch, wholes, kind, step
):
    (recipe, fields, device), (end, expected, files) = KINDS[kind], wholes(kind)
    model, out = fresh(corpus, **fields), tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, step, ctrl_c)
        advice = f"after {step + 1} steps and saved.*resume=True"
        with pytest.raises(KeyboardInterrupt, match=advice):
            train(model, corpus, recipe, out=out, device=device)
    assert torch.equal(weights(model), end) == (step == 19)
    start = weights(fresh(corpus, **fields))
    assert not torch.equal(weights(model), start), "what it had learnt is lost"
    if device is HALF:
        assert read_tensors(state_path(out))[1]["scaler"]["_growth_tracker"] == 5
    model = fresh(corpus, **fields)
    history = train(model, corpus, recipe, out=out, device=device, resume=True)
    assert torch.equal(weights(model), end)
    assert history == expected
    assert contents(out) == contents(files)


def test_a_run_may_be_stopped_many_times_and_the_log_counts_all_its_seconds(
    corpus, tmp_path, monkeypatch, wholes
):
    for _ in range(10):
        with monkeypatch.context() as patch:
            stop_at(patch, 4, ctrl_c)
            model = fresh(corpus)
            with contextlib.suppress(KeyboardInterrupt):
                train(model, corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
                break
    assert torch.equal(weights(model), wholes()[0])
    seconds = [row["seconds"] for row in log_of(tmp_path / "run")]
    assert seconds == sorted(seconds)
    assert len(seconds) == 6


DAMAGE = {
    "cut": lambda text: text[:-9],
    "not JSON": lambda text: text + "{\n",
    "not text": lambda text: text + "\udcff\n",
    "other kinds": lambda text: text + '{"step": "8", "seconds": [], "evaluation": null}\n',
    "no numbers": lambda text: text + '{"step": 8, "seconds": true, "evaluation": "x"}\n',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_log_stops_no_resume(corpus, tmp_path, monkeypatch, wholes, damage):
    with monkeypatch.context() as patch:
        stop_at(patch, 9, ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU)
    log = tmp_path / "run.jsonl"
    log.write_text(DAMAGE[damage](log.read_text()), errors="surrogateescape")
    train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
    losses = [[row[key] for key in ("step", "train", "val")] for row in log_of(tmp_path / "run")]
    history = wholes()[1]
    assert losses == [list(r) for r in zip(*(history[k] for k in ("step", "train", "val")))]  # noqa: B905


def test_resuming_a_finished_run_changes_nothing(corpus, copy, wholes):
    model, before = fresh(corpus), all_of(copy.parent)
    assert train(model, corpus, RECIPE, out=copy, device=CPU, resume=True) == wholes()[1]
    assert torch.equal(weights(model), wholes()[0])
    assert all_of(copy.parent) == before


def test_resuming_where_nothing_was_begun_begins(corpus, tmp_path, wholes):
    model = fresh(corpus)
    train(model, corpus, RECIPE, out=tmp_path / "run", device=CPU, resume=True)
    assert torch.equal(weights(model), wholes()[0])


def test_a_run_without_a_place_to_save_says_so(corpus, monkeypatch):
    with pytest.raises(ValueError, match="no `out` says where"):
        train(fresh(corpus), corpus, RECIPE, device=CPU, resume=True)
    stop_at(monkeypatch, 3, ctrl_c)
    with pytest.raises(KeyboardInterrupt, match="after 4 steps; nothing was saved"):
        train(fresh(corpus), corpus, RECIPE, device=CPU)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_the_first_evaluation_counts_it_once(corpus, tmp_path):
    out, watch = tmp_path / "run", lambda step, _: step or ctrl_c()
    with pytest.raises(KeyboardInterrupt, match="after 0 steps"):
        train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, watch=watch)
    history = train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, resume=True)
    assert history["step"] == [row["step"] for row in log_of(out)] == [0, 4, 8, 12, 16, 20]


def test_a_new_run_cannot_be_mixed_up_with_the_one_before(corpus, copy, wholes):
    """It is stopped before it has saved a state of its own; the one there was another run's."""

    def stop(step, model):
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(fresh(corpus), corpus, RECIPE, out=copy, device=CPU, watch=stop)
    assert not state_path(copy).exists()
    model = fresh(corpus)
    assert train(model, corpus, RECIPE, out=copy, device=CPU, resume=True) == wholes()[1]
    assert load_checkpoint(f"{copy}-last").meta["step"] == 20


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("recipe", "fields", "words"),
    [
        ({"lr": 1e-3}, {}, "train lr 0.008, not 0.001"),
        ({"steps": 30}, {}, "train steps 20, not 30"),
        ({"seed": 3}, {}, "train seed 1337, not 3"),
        ({"clip": 1.0}, {}, "train clip None, not 1.0"),
        ({"batched": False}, {}, "train batched True, not False"),
        ({}, {"n_layer": 1}, "config n_layer 2, not 1"),
        ({}, {"rope": True}, "config rope False, not True"),
        ({}, {"dtype": torch.float64}, "weights dtype 'torch.float32', not 'torch.float64'"),
    ],
    ids=str,
)
def test_other_settings_are_refused_by_name_before_anything_changes(
    corpus, copy, recipe, fields, words
):
    files, model = all_of(copy.parent), fresh(corpus, **fields)
    before = weights(model)
    with pytest.raises(
        ValueError, match=f"began with {words}: resume with the same .*resume=False"
    ):
        train(model, corpus, replace(RECIPE, **recipe), out=copy, device=CPU, resume=True)
    assert torch.equal(weights(model), before), "zero_init came before the check"
    assert all_of(copy.parent) == files


def test_a_run_may_resume_in_other_parts(corpus, tmp_path, monkeypatch):
    adam, out = replace(RECIPE, muon_lr=None, lr=3e-3, steps=8), tmp_path / "run"
    whole, model = fresh(corpus, dropout=0.0), fresh(corpus, dropout=0.0)
    train(whole, corpus, adam, device=CPU)
    with monkeypatch.context() as patch:
        stop_at(patch, 3, ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            train(fresh(corpus, dropout=0.0), corpus, adam, out=out, device=CPU)
    train(model, corpus, replace(adam, accumulate=4), out=out, device=CPU, resume=True)
    torch.testing.assert_close(weights(model), weights(whole), rtol=0, atol=1e-4)


def test_a_checkpoint_is_not_a_state(corpus, copy):
    state_path(copy).write_bytes(copy.with_name("run.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="format 'nanogpt-notebooks checkpoint 1'"):
        train(fresh(corpus), corpus, RECIPE, out=copy, device=CPU, resume=True)


def test_the_state_is_plain_tensors_and_json(wholes):
    with safe_open(state_path(wholes()[2]), framework="pt") as file:
        meta = json.loads(file.metadata()["nanogpt"])
        kinds = {key.split(".")[0] for key in file.keys()}  # noqa: SIM118
    assert meta["step"] == 20
    assert kinds - {"cuda"} == {"model", "optimizer", "batch_loss", "batches", "cpu"}


# ------------------------------------------------------------------ killed


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_the_bits_are_those_of_a_whole_run(tmp_path):
    pick, kills = random.Random(7), 0
    for i in range(4):
        process = fork(tmp_path / f"log{i}", short_run, tmp_path / "killed")
        wait_for("step", tmp_path / f"log{i}.out", process)
        time.sleep(pick.uniform(0.0, 0.12))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        kills += exit_code(process) == -signal.SIGKILL
    assert kills >= 2
    for out in ("killed", "whole"):
        assert exit_code(fork(tmp_path / out, short_run, tmp_path / out)) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


# ------------------------------------------------------------------ Ctrl-C itself


def test_the_second_ctrl_c_is_raised_and_the_handler_put_back():
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupt() as asked:
        ctrl_c()
        assert asked == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_ctrl_c_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupt() as asked:
            ctrl_c()
        assert not asked
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_deferred_and_nothing_breaks():
    given = []

    def work():
        with deferred_interrupt() as asked:
            given.append(asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert given == [[]]
