"""Faults that are really caused.

After each one: an error that names the thing, what was there before still there to the byte,
nothing half-written beside it, and a next plain attempt that works.
"""

import contextlib
import json
import os
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from fault_fixtures import CPU, alter, backwards, read_only
from fault_fixtures import contents as all_files
from training_fixtures import ctrl_c, fresh, stop_at

from nanogpt.config import TrainConfig
from nanogpt.model.checkpoint import CheckpointError, load_checkpoint, read_tensors, write_tensors
from nanogpt.system.files import ROOT
from nanogpt.training.loop import train
from nanogpt.training.state import state_path

pytestmark = pytest.mark.usefixtures("little_corpus")


RECIPE = TrainConfig(steps=12, batch_size=4, eval_every=4, eval_batches=1, warmup=3)


def contents(folder) -> dict[str, bytes]:
    """All files but the lock of a run that goes on, or that could not remove it."""
    return {name: data for name, data in all_files(folder).items() if name != ".fox.lock"}


def untimed(files: dict[str, bytes]) -> dict:
    """The same, of each line of a log only what does not depend on the clock."""
    keys = ("step", "train", "val")
    return files | {
        name: [{key: line[key] for key in keys} for line in map(json.loads, log.splitlines())]
        for name, log in files.items()
        if name.endswith(".jsonl")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpus):
    """The files of a run that nothing stopped."""
    out = tmp_path_factory.mktemp("whole") / "fox"
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    return contents(out.parent)


STAGES = {"no room at all": 0.5, "room for the checkpoints, not for the state": 1.5}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_training_whose_disk_fills_up_resumes_to_the_same_bits(
    disk, corpus, monkeypatch, whole, stage
):
    before, out = {}, disk.mine / "fox"
    leave = int(STAGES[stage] * len(whole["fox.safetensors"])) // 4096 * 4096

    def fill():
        before.update(contents(disk.mine))
        disk.fill(leave)

    model = fresh(corpus)
    with monkeypatch.context() as patch:
        stop_at(patch, 6, fill)
        with pytest.raises(OSError, match="make room"):
            train(model, corpus, RECIPE, out=out, device=CPU)
    after = contents(disk.mine)
    assert sorted(after) == sorted(whole)
    assert after["fox-last.state.safetensors"] == before["fox-last.state.safetensors"]
    if stage == "no room at all":
        assert after == before
    assert {load_checkpoint(disk.mine / name).meta["step"] for name in ("fox", "fox-last")} <= {
        4,
        8,
    }
    disk.clear()
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, resume=True)
    assert untimed(contents(disk.mine)) == untimed(whole)


@pytest.mark.parametrize("step", [0, 6])
def test_a_training_whose_folder_is_closed_resumes_to_the_same_bits(
    tmp_path, corpus, monkeypatch, whole, step
):
    """At step 0 an earlier, whole run lies there; it is not touched."""
    folder = tmp_path / "run"
    folder.mkdir()
    if step == 0:
        for name, content in whole.items():
            (folder / name).write_bytes(content)
    with contextlib.ExitStack() as closed:
        close = partial(closed.enter_context, read_only(folder))
        if step == 0:
            close()
        else:
            stop_at(closed.enter_context(monkeypatch.context()), step, close)
        with pytest.raises(OSError, match="cannot write into .*run.*choose another folder"):
            train(fresh(corpus), corpus, RECIPE, out=folder / "fox", device=CPU)
        after = contents(folder)
    assert sorted(after) == sorted(whole)
    assert step or after == whole
    train(fresh(corpus), corpus, RECIPE, out=folder / "fox", device=CPU, resume=True)
    assert untimed(contents(folder)) == untimed(whole)


@pytest.fixture
def state(tmp_path, corpus):
    """A state of two steps of a tiny run: (bytes, path, the call that resumes it)."""
    small = {"n_layer": 1, "n_head": 1, "n_embd": 4}
    recipe = replace(RECIPE, steps=2)

    def again(resume=True):
        train(
            fresh(corpus, **small), corpus, recipe, out=tmp_path / "fox", device=CPU, resume=resume
        )

    again(resume=False)
    path = state_path(tmp_path / "fox")
    return path.read_bytes(), path, again


def test_a_state_cut_at_some_byte_is_refused(state):
    whole, path, again = state
    for size in range(len(whole) - 10, -1, -90):
        os.truncate(path, size)
        with pytest.raises(CheckpointError, match="state.safetensors is damaged"):
            read_tensors(path)
    everything = contents(path.parent)
    with pytest.raises(CheckpointError, match="state.safetensors is damaged"):
        again()
    assert contents(path.parent) == everything
    again(resume=False)
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_a_state_with_a_byte_altered_is_refused_or_the_same(state):
    whole, path, again = state
    (tensors, meta), passed = read_tensors(path), []
    for n, i in enumerate(alter(path, whole)):
        if n % 6:
            continue
        try:
            found, known = read_tensors(path)
        except CheckpointError as error:
            assert path.name in str(error)  # noqa: PT017
            continue
        passed.append(i)
        assert known == meta
        assert all(torch.equal(tensor, tensors[key]) for key, tensor in found.items())
    assert len(passed) < 3
    assert path.read_bytes() == whole
    again()


def test_a_state_of_a_newer_version_is_named_and_left_alone(state):
    whole, path, again = state
    tensors, meta = read_tensors(path)
    write_tensors(path, tensors, meta | {"format": "nanogpt-notebooks training state 3"})
    before = contents(path.parent)
    with pytest.raises(
        CheckpointError, match=r"has format '.* training state 3', this version reads '.* 2'"
    ):
        again()
    assert contents(path.parent) == before
    again(resume=False)
    assert path.read_bytes() == whole


def test_nothing_in_the_package_asks_what_time_it_is():
    """Durations are those of a clock that only goes forward. An answer of the server has a date."""
    dates = r"\bdatetime\b(?! import timedelta\n)"  # a length of time is none
    asks = re.compile(rf"\btime\.time\b|\bfrom time import\b|{dates}|\blocaltime\b|\bgmtime\b")
    found = {
        str(path): asks.findall(path.read_text("utf-8").replace("int(time.time())", ""))
        for path in sorted((ROOT / "nanogpt").rglob("*.py"))
    }
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_a_clock_that_goes_backwards_changes_no_bit_of_a_training(
    tmp_path, corpus, monkeypatch, whole
):
    """Neither does a state from the future."""
    backwards(monkeypatch)
    out = tmp_path / "fox"
    with monkeypatch.context() as patch:
        stop_at(patch, 6, ctrl_c)
        with pytest.raises(KeyboardInterrupt, match="saved"):
            train(fresh(corpus), corpus, RECIPE, out=out, device=CPU)
    for path in tmp_path.iterdir():
        os.utime(path, (4e9, 4e9))
    train(fresh(corpus), corpus, RECIPE, out=out, device=CPU, resume=True)
    assert untimed(contents(tmp_path)) == untimed(whole)
