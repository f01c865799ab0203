"""Karpathy's checkpoints: the same functions as those programs, and nothing in them is ever run."""

from __future__ import annotations

import json
import os
import sys
import types
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import seeded, tiny_model
from pretrained_fixtures import V_TOKENIZER, V, their_model, transformers, write_tokenizer

from nanogpt import CharTokenizer, complete, load_pretrained
from nanogpt.pretrained.lecture import lecture_state_dict
from nanogpt.pretrained.needs import PretrainedError

SIZES = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 64, "vocab_size": V}
ALPHABET = CharTokenizer("".join(map(chr, range(200, 200 + V))))


def their_gpt(activation: str = "gelu"):
    """nanoGPT's model as transformers computes it: GPT-2 with the exact GELU."""
    sizes = {"n_positions" if name == "block_size" else name: n for name, n in SIZES.items()}
    config = transformers.GPT2Config(**sizes, activation_function=activation)
    model = transformers.GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def checkpoint(gpt, prefix: str = "", bias: bool = True, **changes) -> dict:
    """What nanoGPT's train.py saves: linear layers are (out, in), unlike GPT-2's."""
    state = {}
    for name, tensor in gpt.state_dict().items():
        linear = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        if bias or not name.endswith(".bias"):
            state[prefix + name] = tensor.t().contiguous() if linear else tensor
    arguments = SIZES | {"bias": bias, "dropout": 0.2}
    optimizer = {"state": {0: {"step": torch.tensor(5.0)}}, "param_groups": [{"lr": 6e-4}]}
    rest = {"model_args": arguments, "optimizer": optimizer, "iter_num": 5, "config": {"seed": 1}}
    return {"model": state, "best_val_loss": torch.tensor(1.5), **rest} | changes


WRAPPED = ["", "_orig_mod.", "module._orig_mod."]


@pytest.mark.parametrize("prefix", WRAPPED)
def test_logits_are_those_of_the_model_that_was_saved(prefix, tmp_path):
    theirs = their_gpt()
    torch.save(checkpoint(theirs, prefix), tmp_path / "ckpt.pt")
    model, tokenizer = load_pretrained(tmp_path / "ckpt.pt", tokenizer=ALPHABET)
    assert tokenizer is ALPHABET
    idx = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert (model(idx)[0] - theirs(idx).logits).abs().max() < 1e-3
    assert complete(model, idx, 5).shape == (1, 42)


def test_a_checkpoint_without_bias_has_the_activation_of_its_time(tmp_path):
    theirs = their_gpt("gelu_new")
    saved = checkpoint(theirs)
    del saved["model_args"]["bias"]
    torch.save(saved, tmp_path / "ckpt.pt")
    model = load_pretrained(tmp_path / "ckpt.pt", tokenizer=ALPHABET)[0]
    idx = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert (model(idx)[0] - theirs(idx).logits).abs().max() < 1e-4


# ------------------------------------------------------------------ build-nanogpt


@dataclass
class GPTConfig:
    """The class of the config in build-nanogpt's train_gpt2.py."""

    block_size: int = 64
    vocab_size: int = V
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 32


def save_build_nanogpt(path, monkeypatch, gpt, module: str = "__main__", **fields) -> None:
    """What train_gpt2.py saves into log/: its config is an object of the script's own class."""
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(GPTConfig=GPTConfig))
    monkeypatch.setattr(GPTConfig, "__module__", module)
    config = GPTConfig()
    vars(config).update(fields)
    state = checkpoint(gpt)["model"] | {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 64, 64).tril()
    }
    torch.save({"model": state, "config": config, "step": 5, "val_loss": 3.2}, path)


@pytest.mark.parametrize("module", ["__main__", "train_gpt2"])
def test_a_checkpoint_of_build_nanogpt_is_gpt2(module, tmp_path, monkeypatch):
    theirs = their_gpt("gelu_new")
    with monkeypatch.context() as patch:
        save_build_nanogpt(tmp_path / "model_00005.pt", patch, theirs, module)
    model = load_pretrained(tmp_path / "model_00005.pt", tokenizer=ALPHABET)[0]
    idx = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert (model(idx)[0] - theirs(idx).logits).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"n_expert": 4}, "n_expert=4 is not supported"), ({"n_head": "x" * 9999}, "n_head='xxx")],
)
def test_a_changed_config_of_build_nanogpt_is_refused(fields, words, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        save_build_nanogpt(tmp_path / "model.pt", patch, their_gpt(), **fields)
    with pytest.raises(PretrainedError, match=words) as caught:
        load_pretrained(tmp_path / "model.pt", tokenizer=ALPHABET)
    assert len(str(caught.value)) < 500


# ------------------------------------------------------------------ nanochat

NANOCHAT = {"sequence_len": 64, "vocab_size": V, "n_layer": 2, "n_head": 4, "n_kv_head": 2}
NANOCHAT |= {"n_embd": 32}
OWN_NAMES = {"model.embed_tokens": "transformer.wte", "model.layers.": "transformer.h."}
OWN_NAMES |= {f"self_attn.{x}_proj": f"attn.c_{x}" for x in "qkv"}
OWN_NAMES |= {"self_attn.o_proj": "attn.c_proj", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}


def save_nanochat(folder, theirs, prefix: str = "", **config):
    """What nanochat saves: a state_dict, and its config in a file beside it."""
    state = {}
    for name, tensor in theirs.state_dict().items():
        for long, short in OWN_NAMES.items():
            name = name.replace(long, short)
        state[prefix + name] = tensor
    path = folder / "model_000123.pt"
    torch.save(state, path)
    meta = {"step": 123, "val_bpb": 0.9, "model_config": NANOCHAT | config}
    (folder / "meta_000123.json").write_text(json.dumps(meta), encoding="utf-8")
    return path


def their_nanochat():
    """A nanochat of transformers whose feed-forward layers are as wide as in nanochat itself."""
    plain = their_model("nanochat").config.to_dict()
    config = transformers.NanoChatConfig(**plain | {"intermediate_size": 128})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=seeded(2)) * 0.3)
    return model


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_a_checkpoint_of_nanochat_is_that_of_transformers(prefix, tmp_path):
    theirs = their_nanochat()
    model = load_pretrained(save_nanochat(tmp_path, theirs, prefix), tokenizer=ALPHABET)[0]
    idx = torch.arange(3, 40)[None]
    with torch.no_grad():
        logits = theirs(idx).logits
        assert (model(idx)[0] - logits).abs().max() < 1e-3
        assert logits.std() > 0.3


def test_a_nanochat_that_is_not_computed_is_refused(tmp_path):
    theirs = their_nanochat()
    path = save_nanochat(tmp_path, theirs, window_pattern="SSSL")
    with pytest.raises(PretrainedError, match="window_pattern='SSSL' is not supported"):
        load_pretrained(path, tokenizer=ALPHABET)
    theirs.register_parameter("resid_lambdas", torch.nn.Parameter(torch.ones(2)))
    path = save_nanochat(tmp_path, theirs, window_pattern="L")
    with pytest.raises(PretrainedError, match="the tensor resid_lambdas"):
        load_pretrained(path, tokenizer=ALPHABET)
    path.rename(tmp_path / "d32.pt")
    with pytest.raises(PretrainedError, match="is nanochat's: give it back its name"):
        load_pretrained(tmp_path / "d32.pt", tokenizer=ALPHABET)
    (tmp_path / "d32.pt").rename(path)
    (tmp_path / "meta_000123.json").unlink()
    with pytest.raises(PretrainedError, match=r"its config is in meta_000123\.json, which is not"):
        load_pretrained(path, tokenizer=ALPHABET)


# ------------------------------------------------------------------ the lecture


@pytest.mark.parametrize("key", [None, "model", "model_state_dict", "state_dict"])
def test_a_state_dict_of_the_lecture_is_loaded(key, tmp_path):
    theirs = tiny_model()
    state = lecture_state_dict(theirs)
    assert any(name.endswith(".tril") for name in state)
    torch.save(state if key is None else {key: state, "epoch": 3}, tmp_path / "weights.pt")
    letters = CharTokenizer("abcdefghijklm")
    model, tokenizer = load_pretrained(tmp_path / "weights.pt", tokenizer=letters)
    assert tokenizer is letters
    idx = torch.arange(12)[None] % 13
    with torch.no_grad():
        assert (model(idx)[0] - theirs.eval()(idx)[0]).abs().max() < 1e-5
    again = lecture_state_dict(model)
    assert all(torch.equal(again[name], state[name]) for name in state)


@pytest.mark.parametrize("extra", ["0.sa.heads.7", "0.sa.heads.999999999", "77777777.sa.heads.0"])
def test_a_lecture_whose_heads_do_not_fit_is_refused(extra, tmp_path):
    state = lecture_state_dict(tiny_model())
    state[f"blocks.{extra}.key.weight"] = state["blocks.0.sa.heads.0.key.weight"]
    torch.save(state, tmp_path / "weights.pt")
    words = "no tensor blocks|has the shape|not describe a lecture"
    with pytest.raises(PretrainedError, match=words):
        load_pretrained(tmp_path / "weights.pt", tokenizer=CharTokenizer("abcdefghijklm"))


def test_the_cure_for_a_state_dict_without_its_config_works(tmp_path):
    theirs = their_gpt()
    path = tmp_path / "weights.pt"
    torch.save(checkpoint(theirs)["model"], path)
    with pytest.raises(PretrainedError, match=r"no config: .* torch\.save\(\{'model'") as caught:
        load_pretrained(path, tokenizer=ALPHABET)
    cure = "torch.save(" + str(caught.value).partition("torch.save(")[2]
    for name, value in (SIZES | {"bias": True}).items():
        cure = cure.replace(f"'{name}': …", f"'{name}': {value}")
    state_dict = torch.load(path)
    eval(cure, {"torch": torch, "PATH": path, "state_dict": state_dict})
    idx = torch.arange(3, 40)[None]
    model = load_pretrained(path, tokenizer=ALPHABET)[0]
    with torch.no_grad():
        assert (model(idx)[0] - theirs(idx).logits).abs().max() < 1e-3


# ------------------------------------------------------------------ biases, tokenizers, bad files


def test_a_tokenizer_is_given_or_beside_it(tmp_path):
    torch.save(checkpoint(their_gpt()), tmp_path / "ckpt.pt")
    with pytest.raises(PretrainedError, match=r"no tokenizer\.json.*CharTokenizer\(text\)"):
        load_pretrained(tmp_path / "ckpt.pt")
    too_many = CharTokenizer("".join(map(chr, range(200, 600))))
    with pytest.raises(PretrainedError, match="400 tokens, the model has 320"):
        load_pretrained(tmp_path / "ckpt.pt", tokenizer=too_many)
    write_tokenizer(tmp_path)
    assert len(load_pretrained(tmp_path / "ckpt.pt")[1]) == V_TOKENIZER


class Runs:
    """What a hostile file holds: unpickling it would run a command."""

    def __reduce__(self):
        return os.mkdir, ("was-run",)


def write_compressed(path) -> None:
    torch.save(checkpoint(their_gpt()), path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


BAD = {
    "code": (lambda path: torch.save({"model": Runs()}, path), "needs the code of .*mkdir, and no"),
    "a whole model": (
        lambda path: torch.save(their_gpt(), path),
        r"needs the code of transformers\..*: in the program .* torch\.save\(model\.state_dict\(\)",
    ),
    "compressed": (write_compressed, "is compressed"),
    "an old format": (
        lambda path: torch.save({}, path, _use_new_zipfile_serialization=False),
        "not a file written by torch.save of version 1.6",
    ),
    "a list": (lambda path: torch.save([1], path), "a list, not a dictionary"),
    "other data": (lambda path: torch.save({"x": 1}, path), "has x: neither a checkpoint of"),
    "transformers' GPT-2": (
        lambda path: torch.save(their_gpt().state_dict(), path),
        "save a transformers model with save_pretrained, and name its folder",
    ),
    "a number of NumPy's": (
        lambda path: torch.save(checkpoint(their_gpt(), best_val_loss=np.float64(1.5)), path),
        r"needs the code of numpy\..*'model_args': c\['model_args'\]",
    ),
    "no tensors": (
        lambda path: torch.save(checkpoint(their_gpt(), model=3), path),
        "no state_dict under 'model'",
    ),
    "a number among tensors": (
        lambda path: torch.save(checkpoint(their_gpt(), model={"x": 3, "y": 3}), path),
        "'x' is a int, not a tensor",
    ),
    "a sparse tensor": (
        lambda path: torch.save(
            checkpoint(their_gpt(), model={"x": torch.eye(3).to_sparse(), "y": torch.eye(3)}), path
        ),
        "x is not a plain tensor|more than tensors",
    ),
    "integers": (
        lambda path: torch.save(
            checkpoint(
                their_gpt(),
                model={name: t.int() for name, t in checkpoint(their_gpt())["model"].items()},
            ),
            path,
        ),
        "wte.weight is int32",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_and_nothing_in_it_runs(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write, words = BAD[case]
    write(tmp_path / "ckpt.pt")
    with pytest.raises(PretrainedError, match=words) as caught:
        load_pretrained(tmp_path / "ckpt.pt", tokenizer=ALPHABET)
    assert str(caught.value).isprintable()
    assert not (tmp_path / "was-run").exists()
