"""How fast a run was: operations as PyTorch counts them, peaks by a card's name, two clocks."""

import pytest
import torch
from conftest import FORMS, name, tokens
from torch.utils.flop_counter import FlopCounterMode

from nanogpt.bench import throughput
from nanogpt.bench.throughput import flops_per_token, peak_flops
from nanogpt.config import GPTConfig
from nanogpt.device import Device
from nanogpt.model import GPT
from nanogpt.training.loop import Meter
from nanogpt.training.recipes import MODERN

CPU = Device(torch.device("cpu"), torch.float32, "tests")
GPU = Device(torch.device("cuda"), torch.bfloat16, "tests")
SHAPE = {"vocab_size": 13, "block_size": 24, "n_layer": 3, "n_head": 2, "n_embd": 32}


@pytest.mark.parametrize("fields", [{}, MODERN], ids=["lecture", "sprint"])
@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_a_step_has_the_operations_that_pytorch_counts(per_head, fields):
    """All of them for separate heads; all but the attention itself for the packed form."""
    model = GPT(GPTConfig(**SHAPE, **fields, per_head=per_head))
    idx = tokens(2, 24)
    with FlopCounterMode(display=False) as counted:
        model(idx, idx)[1].backward()
    # Without fused attention, which some versions of PyTorch count on a CPU and others do not.
    counts = counted.get_flop_counts()["Global"]
    total = sum(n for operation, n in counts.items() if "attention" not in str(operation))
    # 2 products of 2 T C, each 3 times: once there, twice back
    attention = 0 if per_head else 12 * 3 * 32 * 24
    assert total / idx.numel() == flops_per_token(model.config) - attention


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
