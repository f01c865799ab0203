"""Counted work against counting by hand and by torch; measured limits, never by a clock."""

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_model
from decoding_fixtures import decoder
from shapes import COMBINED, DECODERS, ROPE, SWIGLU
from torch.utils.flop_counter import FlopCounterMode

from nanogpt.bench import roofline
from nanogpt.config import GPTConfig
from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.layers import visible
from nanogpt.engines.toolchain import CannotBuild

# Fields that change the number of operations; norms, activations and biases are not counted.
COUNTED = ["plain", "n_kv_head=2", "head_dim=12", "ffn_dim=50", "gated", "sinks=2 window=5"]


@pytest.mark.parametrize("row", [*COUNTED, *COMBINED])
def test_operations_of_a_cached_token_are_those_that_torch_counts(row):
    model = decoder(torch.float32, **DECODERS[row])
    c = model.config
    n = 9
    total = 0
    for place in range(1, n + 1):  # one row through the matrices, and attention to what it sees
        with FlopCounterMode(display=False) as counter:
            x = torch.zeros(1, c.n_embd)
            for layer, block in enumerate(model.blocks):
                block.sa.qkv(x)
                block.sa.proj(torch.zeros(1, c.n_head * c.head_size))
                block.ffwd(x)
                here = torch.tensor([place - 1])
                seen = visible(here, torch.arange(place), c.window_of(layer), c.sinks).sum()
                keys = torch.zeros(c.n_head, int(seen), c.head_size)
                q = torch.zeros(c.n_head, 1, c.head_size)
                torch.bmm(torch.bmm(q, keys.mT), keys)
            model.lm_head(x)
        total += counter.get_total_flops()
    assert roofline.work(c, n, cached=True)["flop"] == pytest.approx(total / n)


@pytest.mark.parametrize(
    "model",
    [tiny_model(), decoder(torch.float32, **SWIGLU, n_kv_head=2, head_dim=12, **ROPE)],
    ids=["a list of heads", "groups and gates"],
)
def test_operations_without_a_cache_are_those_of_ever_longer_texts(model, monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", in_two_products)
    n = 9
    total = 0
    for T in range(1, n + 1):
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, T, dtype=torch.int64))
        total += counter.get_total_flops()
    assert roofline.work(model.config, n, cached=False)["flop"] == pytest.approx(total / n)


def in_two_products(q, k, v, **_):
    """Attention without its mask, as some versions of torch do not count the fused kernel."""
    return (q @ k.mT).softmax(-1) @ v


def test_a_cached_token_reads_the_weights_and_the_mean_of_the_cache():
    c = GPTConfig()
    kv = 2 * c.n_embd * c.n_layer * 101 / 2
    need = roofline.work(c, 100, cached=True, itemsize=1, kv_itemsize=2)
    assert need["bytes"] == c.weight_bytes(1) + 2 * kv
    assert roofline.work(c, 100, cached=False)["bytes"] == c.weight_bytes(4)


def test_a_window_and_shared_keys_are_fewer_bytes():
    c = DecoderConfig(n_kv_head=1, n_layer=4, window=6, sinks=2, full_every=4)
    row = 2 * c.head_size * 4
    in_window = (sum(range(1, 9)) + 92 * 8) / 100  # of 100 tokens, the first see fewer
    need = roofline.work(c, 100, cached=True)
    assert need["bytes"] == pytest.approx(c.weight_bytes() + row * (3 * in_window + 101 / 2))


def test_the_three_parts_add_up_to_the_time():
    need = {"flop": 2e6, "bytes": 3e6}
    parts = roofline.breakdown(1.0, need, 1e6, 1e6)
    assert parts == {"arithmetic": 1.0, "memory": 0.0, "overhead": 0.0}
    parts = roofline.breakdown(100.0, need, 1e6, 1e6)
    assert parts == {"arithmetic": 2.0, "memory": 1.0, "overhead": 97.0}


@pytest.mark.parametrize("compiler", [True, False])
def test_limits_are_measured_with_a_compiler_and_without(compiler, monkeypatch):
    if not compiler:

        def none(*args):
            raise CannotBuild("no C++ compiler")

        monkeypatch.setattr(roofline, "helpers_library", none)
    else:
        roofline.helpers_library()  # skipped without a compiler
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


def test_the_memory_that_is_read_begins_on_a_page_of_2_mb():
    buffer = roofline._buffer(5000, torch.device("cpu"))
    assert buffer.data_ptr() % 2**21 == 0
    assert torch.equal(buffer, torch.ones(5000))
