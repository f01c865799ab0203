"""Parameters and bytes counted from the config are those of built models of every architecture."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from nanogpt.cache import kv_cache, measured_bytes
from nanogpt.config import SIZES, GPTConfig
from nanogpt.model import GPT

SWITCHES = [
    dict(zip(("rms_norm", "rope", "bias"), values, strict=True))
    for values in itertools.product([True, False], repeat=3)
]
HEADS = [{"per_head": True}, {"per_head": False}]
HEADS += [{"per_head": False, "n_kv_head": n, "window": 5} for n in (1, 2, None)]
VOCABULARIES = [{"vocab_size": 13}, {"vocab_size": 150}]
SHAPES = [
    GPTConfig(**{"block_size": 24, "n_layer": 2, "n_head": 4, "n_embd": 8, **a, **b, **c})
    for a, b, c in itertools.product(SWITCHES, HEADS, VOCABULARIES)
]


def build(config: GPTConfig) -> GPT:
    with torch.device("meta"):
        return GPT(config)


@pytest.mark.parametrize("config", [*SHAPES[::7], *SIZES.values()])
def test_parameters_are_those_of_the_built_model(config):
    model = build(config)
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    in_tables = sum(table.weight.numel() for table in tables)
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2) - in_tables
    assert config.n_params == model.n_params
    assert config.matrix_weights == matrices
    assert config.weight_bytes(2) == 2 * (model.n_params - in_tables)


@pytest.mark.parametrize("config", [*SHAPES[::11], *SIZES.values()])
def test_bytes_of_a_cache_are_those_that_a_model_holds(config):
    model = GPT(replace(config, dropout=0.0)).eval()
    pos = torch.arange(7)
    with kv_cache(model), torch.no_grad():
        model(torch.zeros(3, 7, dtype=torch.long), pos=pos)
        assert measured_bytes(model) == config.cache_bytes(7, batch=3)


def test_bytes_are_those_that_papers_give():
    llama = {"n_layer": 32, "n_head": 32, "n_embd": 4096, "per_head": False}
    assert GPTConfig(**llama).cache_bytes(4096, itemsize=2) == 2 * 2**30
    assert GPTConfig(**llama, n_kv_head=8).cache_bytes(4096, itemsize=2) == 2**29
    assert GPTConfig(n_layer=12, n_head=12, n_embd=768).cache_bytes(1024) == 75_497_472
