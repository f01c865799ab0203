"""A pretrained model goes back to the folder of its family: transformers gives the same logits."""

from __future__ import annotations

import json

import pytest
import torch
from conftest import tokens
from decoding_fixtures import decoder
from pretrained_fixtures import MODELS, TEXTS, V, change_json, write_folder, write_gguf
from shapes import COMBINED

from nanogpt import Decoder, DecoderConfig, load_pretrained
from nanogpt.cli import main
from nanogpt.pretrained.form import ExportError, family_form
from nanogpt.pretrained.write import write_pretrained

transformers = pytest.importorskip("transformers", reason="it is in requirements-test.txt")
NANOGPT = {"activation": "gelu", "head_bias": False, "tied": True, "vocab_size": V}
NO_BIAS = dict.fromkeys(["norm_bias", "qkv_bias", "proj_bias", "ffn_bias"], False)


@torch.no_grad()
def check_same_logits(model, folder):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    idx = tokens(3, 24)
    logits = theirs(idx).logits
    assert logits.std() > 0.3, "so that a wrong weight would be seen"
    assert float((model(idx)[0] - logits).abs().max()) < 1e-4
    return theirs


@pytest.mark.parametrize("name", MODELS)
def test_transformers_gives_the_same_logits_and_texts(name, kept_folders, tmp_path):
    model, tokenizer = load_pretrained(kept_folders(name))
    config = write_pretrained(model, tokenizer, tmp_path / "out", name)
    theirs = check_same_logits(model, tmp_path / "out")
    assert config["architectures"] == [type(theirs).__name__]
    again, same = load_pretrained(tmp_path / "out")
    assert again.config == model.config
    pairs = zip(again.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert (same.stop, same.template, same.specials) == (
        tokenizer.stop,
        tokenizer.template,
        tokenizer.specials,
    )
    cut = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS.values():
        assert cut(text)["input_ids"] == tokenizer.encode(text).tolist()


@pytest.mark.parametrize("name", ["llama 3.2", "qwen2"])
def test_a_gguf_file_becomes_a_folder(name, tmp_path):
    pre = "qwen2" if name == "qwen2" else "gpt-2"
    model, tokenizer = load_pretrained(write_gguf(tmp_path / "x.gguf", name, pre=pre))
    write_pretrained(model, tokenizer, tmp_path / "out", name)
    check_same_logits(model, tmp_path / "out")


@pytest.mark.parametrize("biases", [{"qkv_bias": True}, NO_BIAS])
def test_nanogpts_form_is_gpt2s_with_zeros_for_biases_that_it_has_not(biases, tmp_path):
    model = decoder(torch.float32, **NANOGPT | biases)
    _, tensors = family_form(model)
    zeros = [name for name, t in tensors.items() if name.endswith("bias") and not t.any()]
    assert bool(zeros) == (biases is NO_BIAS)
    config = family_form(model)[0]
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config)
    )
    theirs.load_state_dict(tensors, strict=False)
    theirs.eval()
    with torch.no_grad():
        idx = tokens(3, 12)
        assert float((model(idx)[0] - theirs(idx).logits).abs().max()) < 1e-4


def test_names_of_special_tokens_that_are_ordinary_text_stay_so(own_folder, tmp_path):
    folder = own_folder("llama")
    change_json(folder / "tokenizer_config.json", split_special_tokens=True)
    model, tokenizer = load_pretrained(folder)
    write_pretrained(model, tokenizer, tmp_path / "out", "llama")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = TEXTS["control tokens"]
    assert theirs(text)["input_ids"] == tokenizer.encode(text).tolist()


def test_a_file_of_another_model_does_not_stay_beside_the_new_one(kept_folders, tmp_path):
    out = write_folder(tmp_path / "out", "llama", max_shard_size="20KB")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    model, tokenizer = load_pretrained(kept_folders("qwen3"))
    with pytest.raises(ExportError, match="has model-00001-of-.* of another model"):
        write_pretrained(model, tokenizer, out, "qwen3")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    for path in out.glob("model*"):
        path.unlink()
    (out / "added_tokens.json").write_text('{"<x>": 0}', encoding="utf-8")
    with pytest.raises(ExportError, match="has added_tokens.json of another model"):
        write_pretrained(model, tokenizer, out, "qwen3")


def test_an_export_replaces_all_files_of_an_earlier_one(kept_folders, tmp_path):
    out = tmp_path / "out"
    assert main(["export", "--out", str(out)]) == 0  # the bundled model of characters
    assert main(["export", "--model", str(kept_folders("llama")), "--out", str(out)]) == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert theirs.generation_config.eos_token_id == [1, 2]
    assert theirs.generation_config.max_length != 256
    assert "character" not in (out / "README.md").read_text(encoding="utf-8")


def test_the_dtype_is_kept(kept_folders, tmp_path):
    model, tokenizer = load_pretrained(kept_folders("llama"), dtype=torch.bfloat16)
    config = write_pretrained(model, tokenizer, tmp_path / "out", "llama")
    assert config["dtype"] == "bfloat16"
    again = load_pretrained(tmp_path / "out", dtype=torch.bfloat16)[0]
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("shape", [COMBINED["Gemma 2"], {"window": 4}])
def test_a_shape_without_a_family_is_refused(shape):
    with pytest.raises(ExportError, match="none of the families llama, .*, nanochat has"):
        family_form(Decoder(DecoderConfig(vocab_size=9, block_size=8, n_layer=1, **shape)))


def test_the_command_writes_the_folder(kept_folders, tmp_path, capsys):
    folder = kept_folders("qwen3")
    out = tmp_path / "out"
    words = ["export", "--model", str(folder), "--out", str(out)]
    assert main(words) == 0
    assert f"written: {out}, for Qwen3ForCausalLM" in capsys.readouterr().out
    check_same_logits(load_pretrained(folder)[0], out)
    assert main(words) == 0, "an earlier export is replaced"
    (out / "nanogpt.json").write_text(json.dumps({}), encoding="utf-8")
    assert main(words) == 2
    assert "this command did not create that folder" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["x"], ["--form", "lecture"], ["--lesson"]])
def test_options_of_checkpoints_are_refused_beside_a_model(more, tmp_path, capsys):
    assert main(["export", "--model", "x", "--out", str(tmp_path / "out"), *more]) == 2
    assert "--model" in capsys.readouterr().err
