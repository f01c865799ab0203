"""Checkpoints: back to the bit, and a file of any content ends in our own error.

That each is whole or absent: tests/test_files.py.
"""

import json

import pytest
import torch
from checkpoint_fixtures import CHARS, meta_of
from conftest import FORMS, name, tiny_model, tokens
from decoding_fixtures import decoder
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from shapes import COMBINED, DECODERS, ROPE

from nanogpt import files
from nanogpt.decoder import checkpoint
from nanogpt.decoder.checkpoint import (
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
    write_checkpoint,
)
from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import CausalSelfAttention, Decoder
from nanogpt.files import sha256
from nanogpt.model import Head


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
    save_file(state, path, metadata={"nanogpt": json.dumps(meta)})


# ------------------------------------------------------------------ there and back


def assert_comes_back(path, model, meta):
    """Saved, and loaded to the class, config, names and bits that it had."""
    save_checkpoint(path, model, meta)
    back = load_checkpoint(path)
    state = model.state_dict()
    assert type(back.model) is type(model)
    assert back.model.config == model.config
    assert list(back.model.state_dict()) == list(state)
    for key, tensor in back.model.state_dict().items():
        assert tensor.dtype == state[key].dtype
        assert torch.equal(tensor, state[key])
    assert back.model.n_params == model.n_params
    assert not back.model.training
    assert back.meta == json.loads(json.dumps(meta))
    return back


@pytest.mark.parametrize("shape", [{}, {"n_layer": 1}, {"n_head": 1}, {"n_embd": 20}], ids=str)
@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_a_model_of_either_class_comes_back_to_the_bit(tmp_path, per_head, shape, ambient_rng):
    model = tiny_model(per_head, **shape)
    back = assert_comes_back(tmp_path / "fox", model, meta_of(model))
    assert back.tokenizer.chars == CHARS
    assert back.origin == "fox.safetensors"
    assert back.sha256 == sha256(tmp_path / "fox.safetensors")
    assert torch.equal(back.model(tokens(2, 9))[0], model(tokens(2, 9))[0])


@torch.no_grad()
@pytest.mark.parametrize("row", ["tied", "vocab_size=14", *COMBINED])
def test_a_decoder_comes_back_to_the_bit(tmp_path, row):
    model = decoder(torch.float32, **DECODERS[row])
    chars = CHARS + "n" * (model.config.vocab_size == 14)
    back = assert_comes_back(tmp_path / "fox", model, meta_of(model, vocabulary=chars)).model
    assert torch.equal(back(tokens(2, 9))[0], model(tokens(2, 9))[0])
    if model.config.tied:
        assert back.lm_head.weight is back.token_embedding_table.weight
        names = safe_open(tmp_path / "fox.safetensors", framework="pt").keys()
        assert "lm_head.weight" not in names, "the numbers are in the file once"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=name)
def test_each_tensor_comes_back_in_its_own_dtype(tmp_path, dtype):
    for row in ("plain", "tied"):
        model = decoder(dtype, **DECODERS[row])
        assert_comes_back(tmp_path / "fox", model, meta_of(model))


# ------------------------------------------------------------------ two files


def test_two_files_are_written_and_readers_find_the_same_metadata_in_json(saved):
    assert sorted(p.name for p in saved.parent.iterdir()) == ["fox.json", "fox.safetensors"]
    card = json.loads(saved.with_suffix(".json").read_text(encoding="utf-8"))
    assert card == load_checkpoint(saved).meta


@pytest.mark.parametrize("ending", [".safetensors", ".json"])
def test_a_file_of_somebody_else_is_not_replaced(tmp_path, ending):
    model = tiny_model()
    path = tmp_path / f"fox{ending}"
    path.write_text('{"my": "notes"}', encoding="utf-8")
    with pytest.raises(ValueError, match="fox.* already exists, and this command did not write it"):
        save_checkpoint(tmp_path / "fox", model, meta_of(model))
    assert [(file.name, file.read_text(encoding="utf-8")) for file in tmp_path.iterdir()] == [
        (f"fox{ending}", '{"my": "notes"}')
    ]


@pytest.mark.parametrize("ending", ["", ".safetensors", ".json"])
def test_a_path_is_taken_with_any_ending_or_none(saved, ending):
    assert load_checkpoint(str(saved.with_suffix("")) + ending).meta["step"] == 1200
    save_checkpoint(str(saved.with_suffix("")) + ending, tiny_model(), meta_of(tiny_model()))
    assert sorted(p.name for p in saved.parent.iterdir()) == ["fox.json", "fox.safetensors"]


# ------------------------------------------------------------------ damaged and foreign files


def test_a_missing_checkpoint_says_what_to_do(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint at .*fox.safetensors: train one"):
        load_checkpoint(tmp_path / "fox")
    (tmp_path / "fox.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="fox.safetensors is a folder without checkpoints"):
        load_checkpoint(tmp_path / "fox")


def flip(data, place):
    """The data with one other bit, at a share of its length."""
    at = int(place * (len(data) - 1))
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES = {
    "a bit of the header's length": lambda data: flip(data, 0.0),
    "a bit of the header": lambda data: flip(data, 0.02),
    "a bit of a tensor": lambda data: flip(data, 0.9),
    "the last bit": lambda data: flip(data, 1.0),
    "cut in the header": lambda data: data[:300],
    "cut in a tensor": lambda data: data[:-9],
    "something behind it": lambda data: data + b"more",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_its_name(saved, damage):
    saved.write_bytes(DAMAGES[damage](saved.read_bytes()))
    with pytest.raises(CheckpointError, match=f"{saved.name} (is damaged|holds tensors but not)"):
        load_checkpoint(saved)


config = vars(tiny_model().config)
# What a later version may write, and what a caller may pass. Files that somebody edited, and whose
# digest still matches, are outside of what is supported.
CHANGES = [
    {"format": "nanogpt-notebooks checkpoint 9"},
    {"config": config | {"n_experts": 8}},
    {"config": config | {"block_size": 25}},
    {"config": config | {"n_layer": 10**9}},  # beyond all memory
    {"vocabulary": CHARS[:-1]},
    {"step": "many"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_metadata_of_another_version_end_in_our_error(tmp_path, changes):
    raw(tmp_path / "fox.safetensors", meta_of(tiny_model()) | changes)
    with pytest.raises(CheckpointError, match="not our metadata|has format|do not fit"):
        load_checkpoint(tmp_path / "fox")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"nanogpt": "[" * 100_000}])
def test_foreign_weights_say_how_to_load_them(tmp_path, metadata):
    save_file(tiny_model().state_dict(), tmp_path / "fox.safetensors", metadata=metadata)
    with pytest.raises(CheckpointError, match="not our metadata .*model.load_state_dict"):
        load_checkpoint(tmp_path / "fox")


SPOILS = {
    "NaN": lambda t: t.index_fill(0, torch.tensor([0]), float("nan")),
    "infinity": lambda t: t.index_fill(0, torch.tensor([0]), float("-inf")),
    "too large": lambda t: t.double() * 1e300,
    "integers": lambda t: t.long(),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize("key", ["token_embedding_table.weight", "ln_f.bias", "lm_head.weight"])
def test_a_tensor_that_holds_no_finite_numbers_is_named_and_is_not_saved(saved, key, spoil):
    model = tiny_model(n_layer=1, n_head=1)
    before = saved.read_bytes()
    state = model.state_dict()
    raw(saved.with_name("raw.safetensors"), meta_of(model), state | {key: spoil(state[key])})
    with pytest.raises(CheckpointError, match=f"raw.safetensors: {key} holds NaN.*: train"):
        load_checkpoint(saved.with_name("raw"))
    state[key].fill_(float("nan"))
    with pytest.raises(ValueError, match=f"not saved, .*{key}"):
        save_checkpoint(saved, model, meta_of(model))
    assert saved.read_bytes() == before


@pytest.mark.parametrize(
    "changes",
    [*CHANGES, {"losses": {"val": float("nan")}}, {"notes": "\ud800"}],
    ids=str,
)
def test_metadata_that_could_not_be_read_are_not_saved(saved, changes):
    before = saved.read_bytes(), saved.with_suffix(".json").read_bytes()
    with pytest.raises(ValueError, match="not saved|JSON|surrogates"):
        save_checkpoint(saved, tiny_model(), meta_of(tiny_model()) | changes)
    assert (saved.read_bytes(), saved.with_suffix(".json").read_bytes()) == before


WIDE = {"vocab_size": 13, "block_size": 24, "n_layer": 2, "n_head": 4, "n_embd": 32}


class Doubled(Head):
    def forward(self, x, pos):
        return 2 * super().forward(x, pos)


class DoubledAttention(CausalSelfAttention):
    def attend(self, q, k, v, mask, dropout=0.0):
        return 2 * super().attend(q, k, v, mask, dropout)


class Renamed(CausalSelfAttention):
    """Another class, the same function."""


OWN = {
    "Doubled as blocks.0.sa.heads.0": lambda: tiny_model(head=Doubled),
    "DoubledAttention as blocks.0.sa": lambda: Decoder(
        DecoderConfig(**WIDE, qk_norm=True), attention=DoubledAttention
    ),
}


@pytest.mark.parametrize("what", OWN)
def test_a_model_with_an_attention_of_one_s_own_is_not_loaded_as_another_function(tmp_path, what):
    model = OWN[what]()
    with pytest.raises(ValueError, match=f"not saved: .*{what}"):
        save_checkpoint(tmp_path / "fox", model, meta_of(model))
    assert not list(tmp_path.iterdir())
    write_checkpoint(tmp_path / "fox", model, meta_of(model))  # as a training run keeps it
    with pytest.raises(CheckpointError, match="Doubled.*: build the model"):
        load_checkpoint(tmp_path / "fox")
    state = load_file(tmp_path / "fox.safetensors")
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_a_class_of_one_s_own_that_computes_the_same_is_saved(tmp_path):
    config = DecoderConfig(**WIDE, **ROPE, n_kv_head=2)
    model = Decoder(config, attention=Renamed)
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    found = load_checkpoint(tmp_path / "fox").model.state_dict()
    assert all(torch.equal(tensor, found[key]) for key, tensor in model.state_dict().items())


def test_without_a_path_it_is_the_best_model_that_ships():
    saved = load_checkpoint()
    assert saved.meta == load_checkpoint(files.KEEPER).meta
    assert saved.model.n_params == saved.model.config.n_params > 200_000
