"""nanoGPT's ckpt.pt: the same function, and nothing in it is ever run."""

from __future__ import annotations

import os
import random
import zipfile

import pytest
import torch
from pretrained_fixtures import V_TOKENIZER, V, transformers, write_tokenizer

from nanogpt import CharTokenizer, complete, load_pretrained
from nanogpt.pretrained.needs import PretrainedError

SIZES = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 64, "vocab_size": V}
ALPHABET = CharTokenizer("".join(map(chr, range(200, 200 + V))))


def their_gpt():
    """nanoGPT's model as transformers computes it: GPT-2 with the exact GELU."""
    sizes = {"n_positions" if name == "block_size" else name: n for name, n in SIZES.items()}
    config = transformers.GPT2Config(**sizes, activation_function="gelu")
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


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_logits_are_those_of_the_model_that_was_saved(prefix, tmp_path):
    theirs = their_gpt()
    torch.save(checkpoint(theirs, prefix), tmp_path / "ckpt.pt")
    model, tokenizer = load_pretrained(tmp_path / "ckpt.pt", tokenizer=ALPHABET)
    assert tokenizer is ALPHABET
    idx = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert (model(idx)[0] - theirs(idx).logits).abs().max() < 1e-3
    assert complete(model, idx, 5).shape == (1, 42)


def test_without_biases_there_are_none(tmp_path):
    theirs = their_gpt()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
    torch.save(checkpoint(theirs, bias=False), tmp_path / "ckpt.pt")
    model = load_pretrained(tmp_path / "ckpt.pt", tokenizer=ALPHABET)[0]
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    idx = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert (model(idx)[0] - theirs(idx).logits).abs().max() < 1e-3


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
    "code": (lambda path: torch.save({"model": Runs()}, path), "more than tensors and plain data"),
    "a whole model": (lambda path: torch.save(their_gpt(), path), "more than tensors"),
    "compressed": (write_compressed, "is compressed"),
    "an old format": (
        lambda path: torch.save({}, path, _use_new_zipfile_serialization=False),
        "not a file written by torch.save of version 1.6",
    ),
    "another text": (lambda path: path.write_bytes(b"hello"), "not a file written by torch.save"),
    "empty": (lambda path: path.write_bytes(b""), "is an empty file"),
    "a list": (lambda path: torch.save([1], path), "a list, not a dictionary"),
    "other data": (lambda path: torch.save({"x": 1}, path), "no model_args"),
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
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
def test_random_damage_is_refused_in_one_line(tmp_path):
    path = tmp_path / "ckpt.pt"
    torch.save(checkpoint(their_gpt()), path)
    data = path.read_bytes()
    end = data.index(b"PK\x01\x02")  # of the tensors: the list of entries begins
    dice = random.Random(5)
    refused = 0
    for _ in range(300):
        changed = bytearray(data)
        low, high = dice.choice([(0, 6000), (end, len(data)), (0, len(data))])
        for _ in range(dice.randint(1, 5)):
            place = dice.randrange(low, high)
            wrong = [dice.randbytes(1), b"\xff" * 8, bytes(8), b""]
            changed[place : place + dice.choice([1, 8])] = dice.choice(wrong)
        path.write_bytes(changed)
        try:
            load_pretrained(path, tokenizer=ALPHABET)
        except PretrainedError as error:
            refused += 1
            lines = str(error).splitlines()
            assert len(lines) == 1, lines
    assert refused > 200
