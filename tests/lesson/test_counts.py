"""Parameters and bytes counted from the config are those of built models.

Those of every DecoderConfig are in tests/decoder/test_config.py.
"""

import itertools

import pytest
import torch
from torch import nn

from nanogpt.cache import kv_cache, measured_bytes
from nanogpt.config import SIZES, GPTConfig
from nanogpt.model import GPT

SHAPES = [
    GPTConfig(vocab_size, block_size, n_layer, n_head, n_embd)
    for vocab_size, block_size, n_layer, (n_head, n_embd) in itertools.product(
        (13, 150), (24, 7), (1, 2), ((4, 8), (1, 5), (3, 96))
    )
]


@pytest.mark.parametrize("config", [*SHAPES, *SIZES.values()])
def test_parameters_are_those_of_the_built_model(config):
    with torch.device("meta"):
        model = GPT(config)
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    in_tables = sum(table.weight.numel() for table in tables)
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2) - in_tables
    assert config.n_params == model.n_params
    assert config.matrix_weights == matrices
    assert config.weight_bytes(2) == 2 * (model.n_params - in_tables)


@pytest.mark.parametrize("config", [*SHAPES, *SIZES.values()])
def test_bytes_of_a_cache_are_those_that_a_model_holds(config):
    model = GPT(config).eval()
    pos = torch.arange(7)
    with kv_cache(model), torch.no_grad():
        model(torch.zeros(3, 7, dtype=torch.long), pos=pos)
        assert measured_bytes(model) == config.cache_bytes(7, batch=3)


def test_bytes_are_those_that_papers_give():
    llama = GPTConfig(n_layer=32, n_head=32, n_embd=4096)
    assert llama.cache_bytes(4096, itemsize=2) == 2 * 2**30
    assert GPTConfig(n_layer=12, n_head=12, n_embd=768).cache_bytes(1024) == 75_497_472
