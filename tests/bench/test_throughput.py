"""How fast a run was: operations as PyTorch counts them, peaks by a card's name, two clocks."""

from dataclasses import replace

import pytest
import torch
from conftest import tokens
from shapes import DECODERS, SMALL
from torch.utils.flop_counter import FlopCounterMode

from nanogpt.bench import throughput
from nanogpt.bench.throughput import flops_per_token, peak_flops
from nanogpt.config import GPTConfig
from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import Decoder
from nanogpt.device import Device
from nanogpt.model import GPT
from nanogpt.training.loop import Meter

CPU = Device(torch.device("cpu"), torch.float32, "tests")
GPU = Device(torch.device("cuda"), torch.bfloat16, "tests")
SHAPE = {"vocab_size": 13, "block_size": 24, "n_layer": 3, "n_head": 2, "n_embd": 32}


def operations(model):
    """Those that PyTorch counts for each token of a training step, but for fused attention.

    Some versions of PyTorch count it on a CPU, and others do not.
    """
    idx = tokens(2, model.config.block_size)
    with FlopCounterMode(display=False) as counted:
        model(idx, idx)[1].backward()
    counts = counted.get_flop_counts()["Global"]
    total = sum(n for operation, n in counts.items() if "attention" not in str(operation))
    return total / idx.numel()


def test_a_step_has_the_operations_that_pytorch_counts():
    model = GPT(GPTConfig(**SHAPE))
    assert operations(model) == flops_per_token(model.config)


# Fields that change the number of operations. A window is counted below.
COUNTED = ["plain", "n_kv_head=2", "head_dim=12", "ffn_dim=50", "gated", "tied"]


@pytest.mark.parametrize("row", [*COUNTED, "the keeper", "GPT-2", "Llama 3", "Qwen 3"])
def test_a_step_of_a_decoder_has_them_too(row):
    """Beside the attention: 2 products of 2 T · H · hs, each 3 times, once there and twice back."""
    model = Decoder(DecoderConfig(**SMALL | DECODERS[row]))
    c = model.config
    attention = 12 * c.n_layer * c.n_head * c.head_size * c.block_size
    assert operations(model) == flops_per_token(c) - attention


def test_a_window_is_fewer_operations():
    c = DecoderConfig(n_layer=3, block_size=64)
    windows = replace(c, window=16, full_every=3)
    fewer = flops_per_token(c) - flops_per_token(windows)
    assert fewer == 12 * c.n_embd * 2 * (64 - 16)


def test_attention_of_a_short_window_costs_less():
    config = GPTConfig(block_size=256)
    whole, quarter = (flops_per_token(config, block) for block in (256, 64))
    assert whole == flops_per_token(config)
    assert whole - quarter == pytest.approx(12 * config.n_layer * config.n_embd * 192)


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA RTX A1000", None),  # no A100
        ("NVIDIA L40", None),  # no L4
    ],
)
def test_a_cards_peak_is_found_by_its_name_or_not_at_all(monkeypatch, card, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: card)
    assert peak_flops(GPU) == peak
    assert peak_flops(CPU) > 0, "measured"


def test_training_has_a_clock_that_evaluation_stops(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])
    meter = Meter(CPU)
    assert list(meter.summary().values()) == [0.0, None]
    for trained, seconds, more in 2 * [(True, 4, 800), (False, 1, 0)]:
        now[0] += seconds
        meter.tokens += more
        meter.lap(trained)
    assert list(meter.summary().values()) == [8.0, 200]
