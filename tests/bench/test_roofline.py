"""Counted work against counting by hand and by torch; measured limits, never by a clock."""

import pytest
import torch
from conftest import tiny_model
from torch.utils.flop_counter import FlopCounterMode

from nanogpt.bench import roofline
from nanogpt.config import GPTConfig
from nanogpt.engines.toolchain import CannotBuild


def test_operations_of_a_cached_token_are_those_that_torch_counts():
    model = tiny_model(per_head=False, n_embd=32, n_head=4)
    c = model.config
    n = 9
    total = 0
    for place in range(1, n + 1):  # one row through the matrices, and attention to `place` rows
        with FlopCounterMode(display=False) as counter:
            x = torch.zeros(1, c.n_embd)
            for block in model.blocks:
                block.sa.proj(block.sa.qkv(x)[:, : c.n_embd])
                block.ffwd.net(x)
                keys = torch.zeros(c.n_head, place, c.head_size)
                q = torch.zeros(c.n_head, 1, c.head_size)
                torch.bmm(torch.bmm(q, keys.mT), keys)
            model.lm_head(x)
        total += counter.get_total_flops()
    assert roofline.work(c, n, cached=True)["flop"] == total / n


def test_operations_without_a_cache_are_those_of_ever_longer_texts():
    model = tiny_model(per_head=True)
    n = 9
    total = 0
    for T in range(1, n + 1):
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, T, dtype=torch.int64))
        total += counter.get_total_flops()
    assert roofline.work(model.config, n, cached=False)["flop"] == pytest.approx(total / n)


def test_a_cached_token_reads_the_weights_and_the_mean_of_the_cache():
    c = GPTConfig()
    kv = 2 * c.n_embd * c.n_layer * 101 / 2
    need = roofline.work(c, 100, cached=True, itemsize=1, kv_itemsize=2)
    assert need["bytes"] == c.weight_bytes(1) + 2 * kv
    assert roofline.work(c, 100, cached=False)["bytes"] == c.weight_bytes(4)


def test_the_three_parts_add_up_to_the_time():
    need = {"flop": 2e6, "bytes": 3e6}
    parts = roofline.breakdown(1.0, need, 1e6, 1e6)
    assert parts == {"arithmetic": 1.0, "memory": 0.0, "overhead": 0.0}
    parts = roofline.breakdown(100.0, need, 1e6, 1e6)
    assert parts == {"arithmetic": 2.0, "memory": 1.0, "overhead": 97.0}


@pytest.mark.parametrize("compiler", [pytest.param(True, marks=pytest.mark.slow), False])
def test_limits_are_measured_with_a_compiler_and_without(compiler, monkeypatch):
    if not compiler:

        def none(*args):
            raise CannotBuild("no C++ compiler")

        monkeypatch.setattr(roofline, "decoder_library", none)
    read = roofline.read_bandwidth(1 << 20, repeats=2)
    peak = roofline.peak_arithmetic(repeats=2)
    assert read["how"] == ("native loop" if compiler else "torch.sum")
    assert peak["how"] == ("native loop" if compiler else "matmul 256")
    for measured in (read, peak):
        assert 0 < measured["low"] <= measured["median"] <= measured["high"]
        assert measured["n"] == 2


def test_the_shortest_piece_counts_as_what_else_runs_disturbs_others(monkeypatch):
    gaps = [99.0, *7 * [5.0], 1.0, 2.0, *7 * [9.0]]  # a warm-up, then two times eight pieces
    monkeypatch.setattr(
        roofline, "time_tokens", lambda tokens, device: [gaps.pop(0) for _ in tokens]
    )
    assert roofline._timed(lambda: None, 2, torch.device("cpu")) == [1.0, 2.0]


def test_the_bound_is_the_smaller_of_what_both_limits_allow(monkeypatch):
    model = tiny_model()
    need = roofline.work(model.config, 8, cached=True)
    for limit, peak, expected in (
        (3e9, 1e12, 3e9 / need["bytes"]),
        (1e12, 3e6, 3e6 / need["flop"]),
    ):
        monkeypatch.setattr(roofline, "read_bandwidth", lambda *_, x=limit, **__: {"median": x})
        monkeypatch.setattr(roofline, "peak_arithmetic", lambda x=peak, **_: {"median": x})
        limits = roofline.Limits(model, 8)
        limits.measure(), limits.measure()
        assert limits.bounds() == [expected]
