"""Published models made narrow and shallow, all other fields kept, against transformers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import transformers
from conftest import seeded
from pretrained_fixtures import ON_THE_HUB, draw_weights
from torch import Tensor

from nanogpt import (
    CharTokenizer,
    Decoder,
    DynamicCache,
    Native,
    PagedCache,
    RollingCache,
    SamplingParams,
    StaticCache,
    complete,
    load_pretrained,
)

N_NEW = 200
GREEDY = SamplingParams(greedy=True)
# Sizes whose proportions are the published ones: groups of heads, heads wider than their share.
SHRUNK = {
    "SmolLM2-135M": {"hidden_size": 144, "intermediate_size": 384},
    "TinyLlama-1.1B": {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 8}
    | {"num_key_value_heads": 1},
    "Llama-3.2-1B": {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 8}
    | {"num_key_value_heads": 2},
    "Qwen2.5-0.5B": {"hidden_size": 112, "intermediate_size": 608, "num_attention_heads": 7}
    | {"num_key_value_heads": 1},
    "Qwen3-0.6B": {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4}
    | {"num_key_value_heads": 2},
    "GPT-2": {"n_embd": 96},
    "OPT-125M": {"hidden_size": 96, "word_embed_proj_dim": 96, "ffn_dim": 384},
    "nanochat-d32": {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4}
    | {"num_key_value_heads": 4},
}
SHARDED = ("Llama-3.2-1B", "TinyLlama-1.1B", "GPT-2", "OPT-125M")  # tied, untied, transposed
NOT_ARGUMENTS = ("transformers_version", "torch_dtype", "dtype")


def shrunk(name: str) -> dict:
    """The published config.json with fewer layers and smaller sizes."""
    fields = ON_THE_HUB[name][0]
    layers = "n_layer" if name == "GPT-2" else "num_hidden_layers"
    return {**fields, **SHRUNK[name], layers: 3}


class Published(NamedTuple):
    theirs: transformers.PreTrainedModel
    ours: Decoder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A model of transformers in bfloat16 as its folder holds it, and ours, both in float32."""

    @functools.cache
    def pair(name: str) -> Published:
        folder = tmp_path_factory.mktemp("published")
        write(folder, name)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        ours = load_pretrained(folder, tokenizer=CharTokenizer("abc"))[0]
        return Published(theirs.eval(), ours)

    return pair


def write(folder: Path, name: str) -> None:
    """A folder of that model, with random weights."""
    fields = shrunk(name)
    arguments = {key: value for key, value in fields.items() if key not in NOT_ARGUMENTS}
    config = transformers.AutoConfig.for_model(**arguments)
    model = transformers.AutoModelForCausalLM.from_config(config)
    draw_weights(model, 0.15)
    size = "5MB" if name in SHARDED else "1GB"
    model.bfloat16().save_pretrained(folder, max_shard_size=size)
    assert (len(list(folder.glob("*.safetensors"))) > 1) is (name in SHARDED)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")


def prompts(name: str) -> Tensor:
    """Two prompts of 9 tokens."""
    return torch.randint(3, shrunk(name)["vocab_size"], (2, 9), generator=seeded(1))


@pytest.mark.release  # small models of each family are compared in every run
@pytest.mark.parametrize("name", SHRUNK)
def test_logits_are_those_of_transformers(name, published):
    theirs, ours = published(name)
    with torch.no_grad():
        expected = theirs(prompts(name)).logits
        found = ours(prompts(name))[0]
    assert (found - expected).abs().max() < 1e-3
    assert expected.std() > 0.5  # so that a wrong weight would be seen


@pytest.fixture(scope="module")
def their_tokens(published):
    """Their greedy text of 200 tokens, by their own loop and cache."""

    @functools.cache
    def tokens(name: str) -> Tensor:
        vocab_size = shrunk(name)["vocab_size"]
        with torch.no_grad():
            return published(name).theirs.generate(
                prompts(name),
                max_new_tokens=N_NEW,
                do_sample=False,
                eos_token_id=vocab_size,  # never
                pad_token_id=0,
            )

    return tokens


CACHES = (DynamicCache, StaticCache, PagedCache, RollingCache)
PATHS = {cache.__name__: {"cache": cache} for cache in CACHES}
PATHS["Native"] = {"engine": Native}


@pytest.mark.release
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", SHRUNK)
def test_greedy_tokens_are_those_of_transformers(name, path, published, their_tokens):
    expected = their_tokens(name)
    tokens = complete(published(name).ours, prompts(name), N_NEW, GREEDY, **PATHS[path])
    assert torch.equal(tokens, expected)
    assert len(set(expected.flatten().tolist())) > 20  # a text that does not repeat itself


def test_every_published_model_is_compared():
    assert SHRUNK.keys() == ON_THE_HUB.keys()
