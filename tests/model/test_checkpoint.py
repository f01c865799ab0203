"""Checkpoints: back to the bit, whole or absent; a file of any content ends in our own error."""

import json
import struct

import pytest
import torch
from checkpoint_fixtures import CHARS, meta_of
from conftest import FORMS, tiny_model, tokens
from safetensors.torch import load_file, save_file

from nanogpt.config import SIZES
from nanogpt.model import checkpoint
from nanogpt.model.checkpoint import FORMAT, CheckpointError, load_checkpoint, save_checkpoint
from nanogpt.model.gpt import Head
from nanogpt.system import files
from nanogpt.system.files import sha256


@pytest.fixture
def saved(tmp_path):
    model = tiny_model()
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    return tmp_path / "fox.safetensors"


def raw(path, meta, state=None):
    """A safetensors file with any metadata at all."""
    state = tiny_model().state_dict() if state is None else state
    if isinstance(meta, dict):
        meta = {**meta, "digest": checkpoint._digest(json.dumps(meta), state)}
    save_file(state, path, metadata=None if meta is None else {"nanogpt": json.dumps(meta)})


# ------------------------------------------------------------------ there and back


@pytest.mark.parametrize("shape", [{}, {"n_layer": 1}, {"n_head": 1}, {"n_embd": 20}], ids=str)
def test_a_model_of_either_form_comes_back_to_the_bit_under_the_names_of_the_lecture(
    tmp_path, shape, ambient_rng
):
    for per_head in FORMS:
        model = tiny_model(per_head, **shape)
        save_checkpoint(tmp_path / "fox", model, meta_of(model))
        back = load_checkpoint(tmp_path / "fox")
        expected = tiny_model(**shape).state_dict()
        assert list(back.model.state_dict()) == list(expected)
        assert all(torch.equal(t, expected[key]) for key, t in back.model.state_dict().items())
        assert not back.model.training
        assert back.tokenizer.chars == CHARS
        assert back.meta == meta_of(model)
        assert back.sha256 == sha256(tmp_path / "fox.safetensors")
        close = {"rtol": 0, "atol": 1e-4}
        torch.testing.assert_close(back.model(tokens(2, 9))[0], model(tokens(2, 9))[0], **close)


def test_equal_models_are_equal_bytes(tmp_path):
    for copy in "ab":
        model = tiny_model()
        save_checkpoint(tmp_path / copy, model, meta_of(model))
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_two_files_are_written_and_readers_find_the_same_metadata_in_json(saved):
    assert sorted(p.name for p in saved.parent.iterdir()) == ["fox.json", "fox.safetensors"]
    card = json.loads(saved.with_suffix(".json").read_text())
    assert card.pop("sha256") == sha256(saved)
    assert card == load_checkpoint(saved).meta


@pytest.mark.parametrize("ending", ["", ".safetensors", ".json"])
def test_a_path_is_taken_with_any_ending_or_none(saved, ending):
    assert load_checkpoint(str(saved.with_suffix("")) + ending).meta["step"] == 1200
    save_checkpoint(str(saved.with_suffix("")) + ending, tiny_model(), meta_of(tiny_model()))
    assert sorted(p.name for p in saved.parent.iterdir()) == ["fox.json", "fox.safetensors"]


def test_a_checkpoint_introduces_itself(saved, monkeypatch):
    found = load_checkpoint(saved)
    line = (
        f"fox.safetensors: {found.model.n_params:,} parameters, block 24, trained for 1,200 steps "
    )
    assert str(found) == line + f"on fox, val loss 1.750, sha256 {found.sha256[:12]}…"
    assert str(load_checkpoint(saved, origin="yours")).startswith("yours: ")
    monkeypatch.setattr(checkpoint, "ROOT", saved.parent.parent)
    assert load_checkpoint(saved).origin == f"{saved.parent.name}/fox.safetensors"


# ------------------------------------------------------------------ whole or absent


def no_space(*args, **kwargs):
    raise OSError(28, "No space left on device")


def dies(*args, **kwargs):
    raise SystemExit


@pytest.mark.parametrize(("place", "error"), [("save_file", no_space), ("replace", dies)])
@pytest.mark.parametrize("there_before", [True, False])
def test_a_failure_while_saving_leaves_the_checkpoint_before_it(
    tmp_path, monkeypatch, place, error, there_before
):
    path, model = tmp_path / "fox", tiny_model()
    if there_before:
        save_checkpoint(path, model, meta_of(model))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    room = checkpoint if place == "save_file" else files.os
    monkeypatch.setattr(room, place, error)
    with pytest.raises((OSError, SystemExit)):
        save_checkpoint(path, model, meta_of(model, step=2400))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert not there_before or load_checkpoint(path).meta["step"] == 1200


def test_a_folder_that_cannot_be_written_is_named_with_advice(tmp_path):
    (tmp_path / "file").write_text("I am no folder")
    model = tiny_model()
    with pytest.raises(OSError, match="cannot write into .*file.*choose another folder"):
        save_checkpoint(tmp_path / "file" / "fox", model, meta_of(model))


# ------------------------------------------------------------------ damaged and foreign files


def test_a_missing_checkpoint_says_what_to_do(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint at .*fox.safetensors: train one"):
        load_checkpoint(tmp_path / "fox")
    (tmp_path / "fox.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "fox")


def header_size(data: bytes) -> int:
    return 8 + struct.unpack("<Q", data[:8])[0]


def test_a_checkpoint_cut_anywhere_is_damaged(saved):
    whole = saved.read_bytes()
    end = header_size(whole)
    for size in {0, 1, 7, 8, 9, end // 2, end - 1, end, end + 1, len(whole) // 2, len(whole) - 1}:
        saved.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="is damaged or no safetensors file"):
            load_checkpoint(saved)
    saved.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(saved)


def test_other_files_are_no_checkpoints_and_nothing_is_ever_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    path = tmp_path / "fox.safetensors"
    torch.save({"model": Bomb()}, path)
    for content in (path.read_bytes(), b"", b"\xff" * 100, b"{}"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="no safetensors file"):
            load_checkpoint(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_foreign_weights_say_how_to_load_them(tmp_path, metadata):
    save_file(tiny_model().state_dict(), tmp_path / "fox.safetensors", metadata=metadata)
    with pytest.raises(CheckpointError, match="not our metadata .*model.load_state_dict"):
        load_checkpoint(tmp_path / "fox")


@pytest.mark.parametrize("rest", [meta_of(tiny_model()), {}, {"config": {"n_experts": 8}}])
def test_another_format_is_named_whatever_else_it_holds(tmp_path, rest):
    raw(tmp_path / "fox.safetensors", rest | {"format": "nanogpt-notebooks checkpoint 9"})
    with pytest.raises(CheckpointError, match="has format '.* checkpoint 9', this version reads"):
        load_checkpoint(tmp_path / "fox")


config = vars(tiny_model().config)
WHOLE = [[], 7, None, "nanogpt", {}]
CHANGES = [
    {"format": [FORMAT]},
    {"config": [1, 2, 3]},
    {"config": None},
    {"config": config | {"n_experts": 8}},
    {"config": config | {"n_layer": "2"}},
    {"config": config | {"dropout": "0.2"}},
    {"config": config | {"n_head": 3}},
    {"config": config | {"n_layer": 10**9}},  # beyond all memory
    {"config": config | {"n_embd": 2 * 10**9}},
    {"config": config | {"block_size": 10**15}},
    {"config": config | {"n_layer": 3}},
    {"config": config | {"n_head": 4}},
    {"config": config | {"block_size": 25}},
    {"config": config | {"per_head": False}},
    {"vocabulary": 5},
    {"vocabulary": list(CHARS)},
    {"vocabulary": ""},
    {"vocabulary": CHARS[:-1]},
    {"vocabulary": CHARS + "z"},
    {"vocabulary": CHARS[:-1] + "a"},
    {"losses": [1.5, 1.7]},
    {"losses": {}},
    {"losses": {"val": "low"}},
    {"losses": {"val": None}},
    {"corpus": "fox"},
    {"corpus": {}},
    {"step": "many"},
    {"step": [1]},
]


@pytest.mark.parametrize("meta", [*WHOLE, *(meta_of(tiny_model()) | c for c in CHANGES)])
def test_metadata_of_a_wrong_kind_ends_in_our_error(tmp_path, meta):
    raw(tmp_path / "fox.safetensors", meta)
    with pytest.raises(CheckpointError, match="not our metadata|has format|do not fit"):
        load_checkpoint(tmp_path / "fox")


@pytest.mark.parametrize("text", ["not json", "", "[" * 100_000, '{"format": NaN}', "\x00"])
def test_metadata_that_is_no_json_ends_in_our_error(tmp_path, text):
    save_file(tiny_model().state_dict(), tmp_path / "fox.safetensors", metadata={"nanogpt": text})
    with pytest.raises(CheckpointError, match="not our metadata|has format nan"):
        load_checkpoint(tmp_path / "fox")


WEIGHT = tiny_model().state_dict()["lm_head.weight"]


@pytest.mark.parametrize(
    "changes",
    [
        {"lm_head.weight": None},
        {"lm_head.more": WEIGHT.clone()},
        {"lm_head.weight": WEIGHT.T.contiguous()},
        {"lm_head.weight": None, "lm_head.wait": WEIGHT},
        dict.fromkeys(tiny_model().state_dict()),
    ],
    ids=["missing", "extra", "other shape", "renamed", "none at all"],
)
def test_tensors_that_do_not_fit_the_config_are_named_as_such(tmp_path, changes):
    state = tiny_model().state_dict() | changes
    state = {key: tensor for key, tensor in state.items() if tensor is not None}
    raw(tmp_path / "fox.safetensors", meta_of(tiny_model()), state)
    with pytest.raises(CheckpointError, match="tensors do not fit its own config"):
        load_checkpoint(tmp_path / "fox")


@pytest.mark.parametrize("share", [0.3, 0.95])
def test_one_flipped_bit_in_the_weights_is_noticed(saved, share):
    """Such a file is a valid safetensors file; only its digest tells."""
    data = bytearray(saved.read_bytes())
    header = header_size(data)
    data[header + int(share * (len(data) - header))] ^= 4
    saved.write_bytes(data)
    with pytest.raises(CheckpointError, match="digest"):
        load_checkpoint(saved)


class Doubled(Head):
    """A head of the reader's own, with the same parameters."""

    def forward(self, x, pos):
        return 2 * super().forward(x, pos)


def test_a_model_with_a_head_of_one_s_own_is_not_loaded_as_another_function(tmp_path):
    model = tiny_model(head=Doubled)
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    with pytest.raises(
        CheckpointError, match="Doubled.* another function: build the model with that class"
    ):
        load_checkpoint(tmp_path / "fox")
    state = load_file(tmp_path / "fox.safetensors")
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_without_a_path_it_is_the_small_model_that_ships():
    saved = load_checkpoint()
    assert saved.meta == load_checkpoint(files.WEIGHTS / "small").meta
    assert saved.model.n_params == SIZES["small"].n_params
