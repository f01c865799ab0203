"""Counts of parameters and bytes, against built models.

Those of every DecoderConfig are in tests/decoder/test_config.py.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nanogpt.cache import kv_cache, measured_bytes
from nanogpt.config import SIZES, GPTConfig
from nanogpt.model import GPT

SMALL = GPTConfig(vocab_size=13, block_size=24, n_layer=1, n_head=4, n_embd=8)
SHAPES = [  # one field at a time, so that a wrong term of a sum shows
    SMALL,
    replace(SMALL, vocab_size=150),
    replace(SMALL, block_size=7),
    replace(SMALL, n_layer=2),
    replace(SMALL, n_head=1, n_embd=5),
]


@pytest.mark.parametrize("config", [*SHAPES, *SIZES.values()])
def test_parameter_counts_match_the_built_model(config):
    with torch.device("meta"):
        model = GPT(config)
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    in_tables = sum(table.weight.numel() for table in tables)
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2) - in_tables
    assert config.n_params == model.n_params
    assert config.matrix_weights == matrices
    assert config.weight_bytes(2) == 2 * (model.n_params - in_tables)


@pytest.mark.parametrize("config", [*SHAPES, SIZES["article"]])
def test_cache_bytes_match_the_tensors_held(config):
    model = GPT(config).eval()
    pos = torch.arange(7)
    with kv_cache(model), torch.no_grad():
        model(torch.zeros(3, 7, dtype=torch.long), pos=pos)
        assert measured_bytes(model) == config.cache_bytes(7, batch=3)


def test_cache_bytes_match_published_sizes():
    llama = GPTConfig(n_layer=32, n_head=32, n_embd=4096)
    assert llama.cache_bytes(4096, itemsize=2) == 2 * 2**30
    assert GPTConfig(n_layer=12, n_head=12, n_embd=768).cache_bytes(1024) == 75_497_472
