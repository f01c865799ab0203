"""Faults that are really caused.

After each one: an error that names the thing, what was there before still there to the byte,
nothing half-written beside it, and a next plain attempt that works.
"""

import os
import re
from pathlib import Path

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from fault_fixtures import alter, contents, read_only

from nanogpt.model.checkpoint import (
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
    write_tensors,
)
from nanogpt.system.files import write_json

pytestmark = pytest.mark.usefixtures("little_corpus")


def save(path: Path, step: int) -> None:
    model = tiny_model()
    save_checkpoint(path, model, meta_of(model, step=step))


def test_a_disk_that_is_full_keeps_the_checkpoint_before(disk):
    save(disk.mine / "fox", 1200)
    before = contents(disk.mine)
    disk.fill(16_384)  # half of what it needs
    with pytest.raises(OSError, match="make room"):
        save(disk.mine / "fox", 2400)
    assert contents(disk.mine) == before
    assert load_checkpoint(disk.mine / "fox").meta["step"] == 1200
    disk.clear()
    save(disk.mine / "fox", 2400)
    assert load_checkpoint(disk.mine / "fox").meta["step"] == 2400
    assert sorted(contents(disk.mine)) == ["fox.json", "fox.safetensors"]


def test_a_disk_with_room_for_the_weights_alone_holds_them_whole(tmp_path, disk):
    """The JSON is for readers: what is loaded needs the one file only."""
    save(tmp_path / "fox", 1200)
    size = (tmp_path / "fox.safetensors").stat().st_size
    if disk.limit is not None:
        pytest.skip("a limit on each file cannot stop the smaller one")
    disk.fill(-(-size // 4096) * 4096)
    with pytest.raises(OSError, match="space|write"):
        save(disk.mine / "fox", 1200)
    assert sorted(contents(disk.mine)) == ["fox.safetensors"]
    assert load_checkpoint(disk.mine / "fox").meta["step"] == 1200
    disk.clear()
    save(disk.mine / "fox", 1200)
    assert contents(disk.mine)["fox.json"] == (tmp_path / "fox.json").read_bytes()


def test_a_folder_that_was_closed_keeps_the_checkpoint_before(tmp_path):
    save(tmp_path / "run" / "fox", 1200)
    before = contents(tmp_path)
    with (
        read_only(tmp_path / "run"),
        pytest.raises(
            OSError, match=f"cannot write into {tmp_path / 'run'} .*choose another folder"
        ),
    ):
        save(tmp_path / "run" / "fox", 2400)
    assert contents(tmp_path) == before
    save(tmp_path / "run" / "fox", 2400)
    assert load_checkpoint(tmp_path / "run" / "fox").meta["step"] == 2400


def write_weights(path):
    write_tensors(path, tiny_model().state_dict(), {"step": 1})


def write_card(path):
    write_json(path, {"text": "x" * 40_000})


@pytest.mark.parametrize("kind", [write_weights, write_card], ids=["weights", "JSON"])
def test_a_full_disk_is_told_with_the_name_of_the_file(disk, kind):
    disk.fill(16_384)
    with pytest.raises(
        OSError, match=f"{re.escape(str(disk.mine / 'small'))}.*(space|large).*room"
    ):
        kind(disk.mine / "small")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """One small checkpoint, to be damaged: its bytes, and a path for the copies."""
    path = tmp_path_factory.mktemp("cuts") / "fox.safetensors"
    model = tiny_model(n_layer=1, n_head=1, n_embd=4, block_size=8)
    save_checkpoint(path, model, meta_of(model))
    return path.read_bytes(), path


def test_a_checkpoint_cut_at_any_tenth_byte_is_refused(kept):
    whole, path = kept
    for size in range(len(whole) - 10, -1, -10):
        os.truncate(path, size)
        with pytest.raises(
            CheckpointError, match="fox.safetensors is damaged or no safetensors file"
        ):
            load_checkpoint(path)
        assert path.read_bytes() == whole[:size], "it is the reader's file: nobody deletes it"
    path.write_bytes(whole)
    assert load_checkpoint(path).meta["step"] == 1200


def test_a_checkpoint_with_any_tenth_byte_altered_is_refused_or_the_same(kept):
    """The same: where it is a space, or the name of a part that nobody asks for."""
    whole, path = kept
    state, passed = load_checkpoint(path).model.state_dict(), []
    for i in alter(path, whole):
        try:
            found = load_checkpoint(path).model.state_dict()
        except CheckpointError as error:
            assert path.name in str(error)  # noqa: PT017
            continue
        passed.append(i)
        assert all(torch.equal(tensor, state[key]) for key, tensor in found.items())
    assert len(passed) < 5
    assert path.read_bytes() == whole
    load_checkpoint(path)


def test_a_checkpoint_of_a_newer_version_is_named_and_left_alone(tmp_path):
    model = tiny_model()
    save_checkpoint(
        tmp_path / "fox", model, meta_of(model, format="nanogpt-notebooks checkpoint 2")
    )
    before = contents(tmp_path)
    with pytest.raises(
        CheckpointError, match="fox.* has format '.* checkpoint 2', this version reads"
    ):
        load_checkpoint(tmp_path / "fox")
    assert contents(tmp_path) == before
