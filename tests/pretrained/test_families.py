"""Each family computes what transformers computes, and writes its tokens with every cache."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from conftest import seeded
from pretrained_fixtures import MODELS, V, gguf_tensors, their_model, write_folder, write_gguf
from safetensors.torch import load_file, save_file
from shapes import DECODERS, SMALL
from torch import Tensor

from nanogpt import (
    Decoder,
    DecoderConfig,
    DynamicCache,
    Flat,
    Native,
    PagedCache,
    SamplingParams,
    StaticCache,
    complete,
    load_pretrained,
)
from nanogpt.decoder.standard import not_standard
from nanogpt.pretrained.parameters import layout

N_NEW = 40
PROMPT = torch.randint(3, V, (1, 9), generator=seeded(1))
GREEDY = SamplingParams(greedy=True)


@functools.cache
def their_tokens(name: str) -> Tensor:
    """Their greedy text, by their own loop and cache."""
    model = their_model(name)
    with torch.no_grad():
        return model.generate(PROMPT, max_new_tokens=N_NEW, do_sample=False, eos_token_id=V)


def check_logits(model: Decoder, name: str) -> None:
    with torch.no_grad():
        theirs = their_model(name)(PROMPT).logits
        ours = model(PROMPT)[0]
    assert (ours - theirs).abs().max() < 1e-3
    assert theirs.std() > 0.3  # so that a wrong weight would be seen


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name, kept_folders):
    model = load_pretrained(kept_folders(name))[0]
    check_logits(model, name)
    assert not_standard(model) is None
    unread = 2 * 32 if name.startswith("opt") else 0  # rows of OPT's positions
    assert model.n_params + unread == their_model(name).num_parameters()


@pytest.mark.parametrize("cache", [DynamicCache, StaticCache, PagedCache, None])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_transformers(name, cache, kept_folders):
    model = load_pretrained(kept_folders(name))[0]
    assert torch.equal(complete(model, PROMPT, N_NEW, GREEDY, cache=cache), their_tokens(name))


@pytest.mark.parametrize("engine", [Flat, Native])
@pytest.mark.parametrize("name", MODELS)
def test_engines_write_the_tokens_of_transformers(name, engine, kept_folders):
    model = load_pretrained(kept_folders(name))[0]
    assert torch.equal(complete(model, PROMPT, N_NEW, GREEDY, engine=engine), their_tokens(name))


def test_the_models_of_this_test_write_different_texts():
    assert len({tuple(their_tokens(name)[0].tolist()) for name in MODELS}) == len(MODELS)


# ------------------------------------------------------------------ forms on disk


def test_shards_are_one_model(tmp_path, kept_folders):
    folder = write_folder(tmp_path, "llama", max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    check_logits(load_pretrained(folder)[0], "llama")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_file_of_the_base_model_has_no_prefix(name, own_folder):
    folder = own_folder(name)
    state = load_file(folder / "model.safetensors")
    prefix = {"llama": "model.", "gpt2": "transformer."}[name]
    state = {key.removeprefix(prefix): tensor for key, tensor in state.items()}
    if name == "gpt2":  # causal masks, which older files hold
        state["h.0.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
        state["h.1.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, folder / "model.safetensors")
    check_logits(load_pretrained(folder)[0], name)


def test_a_head_beside_a_tied_embedding_may_be_that_embedding_or_another(own_folder):
    folder = own_folder("qwen3")
    state = load_file(folder / "model.safetensors")
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    save_file(state, folder / "model.safetensors")
    check_logits(load_pretrained(folder)[0], "qwen3")
    state["lm_head.weight"][5, 5] += 1
    save_file(state, folder / "model.safetensors")
    with pytest.warns(UserWarning, match=r"lm_head\.weight differs from the embedding"):
        model = load_pretrained(folder)[0]
    assert torch.equal(model.lm_head.weight, state["lm_head.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_are_kept_in_the_dtype_asked_for(dtype, own_folder):
    folder = own_folder("llama")
    state = load_file(folder / "model.safetensors")
    state = {key: tensor.to(dtype) for key, tensor in state.items()}
    save_file(state, folder / "model.safetensors")
    model = load_pretrained(folder, dtype=dtype)[0]
    assert {weight.dtype for weight in model.parameters()} == {dtype}
    assert torch.equal(model.lm_head.weight, state["lm_head.weight"])
    assert complete(model, PROMPT, 3, GREEDY).shape == (1, 12)


def test_tensors_of_one_file_may_have_different_dtypes(own_folder):
    folder = own_folder("llama")
    path = folder / "model.safetensors"
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    mixed = {
        name: tensor.to(dtypes[i % len(dtypes)])
        for i, (name, tensor) in enumerate(load_file(path).items())
    }
    save_file(mixed, path)
    found = load_pretrained(folder)[0].state_dict()
    save_file({name: tensor.float() for name, tensor in mixed.items()}, path)
    for name, tensor in load_pretrained(folder)[0].state_dict().items():
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("row", DECODERS)
def test_the_layout_lists_the_parameters_of_every_decoder(row):
    """It is arithmetic, so that a hostile config builds no module."""
    config = DecoderConfig(**SMALL | DECODERS[row])
    expected = {name: tuple(p.shape) for name, p in Decoder(config).named_parameters()}
    found = {}
    for part in layout(config):
        rows = sum(shape[0] for shape in part.shapes)
        found[part.path] = (rows, *part.shapes[0][1:])
    assert found == expected


# ------------------------------------------------------------------ GGUF


# llama.cpp has one activation a family, Llama 3's original context, and neither OPT nor nanochat.
NOT_IN_GGUF = ("relu", "gelu", "early", "opt", "nanochat")
IN_GGUF = [name for name in MODELS if not any(x in name for x in NOT_IN_GGUF)]


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_file_holds_the_same_model(name, tmp_path, kept_folders):
    from_file = load_pretrained(write_gguf(tmp_path / "x.gguf", name))[0]
    from_folder = load_pretrained(kept_folders(name))[0]
    assert from_file.config == from_folder.config
    theirs = from_folder.state_dict()
    for key, tensor in from_file.state_dict().items():
        assert torch.equal(tensor, theirs[key]), key
    check_logits(from_file, name)
    assert torch.equal(complete(from_file, PROMPT, N_NEW, GREEDY), their_tokens(name))


@pytest.mark.parametrize("layers", [(0,), (0, 1)])
@pytest.mark.parametrize("name", ["llama", "llama, tied, biases, wide heads", "qwen2", "qwen3"])
def test_queries_keys_and_values_may_be_one_tensor(name, layers, tmp_path):
    """As llama.cpp's converter writes them with --fuse-qkv, where they have one type."""
    tensors = gguf_tensors(name)
    for i in layers:
        for kind in ("weight", "bias"):
            parts = [f"blk.{i}.attn_{x}.{kind}" for x in "qkv"]
            if parts[0] in tensors:
                rows = [tensors.pop(part) for part in parts]
                tensors[f"blk.{i}.attn_qkv.{kind}"] = np.concatenate(rows)
    model = load_pretrained(write_gguf(tmp_path / "x.gguf", name, tensors=tensors))[0]
    check_logits(model, name)


@pytest.mark.parametrize(
    ("kind", "apart"), {"F16": 1e-3, "BF16": 5e-3, "Q8_0": 1e-2, "Q4_1": 0.12, "Q5_0": 0.1}.items()
)
def test_a_quantized_gguf_file_is_near(kind, apart, tmp_path):
    exact = gguf_tensors("llama")
    model = load_pretrained(write_gguf(tmp_path / "x.gguf", "llama", kind))[0]
    expected = torch.from_numpy(exact["blk.1.ffn_down.weight"])
    error = (model.blocks[1].ffwd.down.weight - expected).abs().max() / expected.abs().max()
    assert 0 < error < apart
    kept = torch.from_numpy(exact["blk.1.ffn_norm.weight"])
    assert torch.equal(model.blocks[1].ln2.weight, kept)
