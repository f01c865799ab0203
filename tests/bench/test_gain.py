"""The gain of a cache: the plain loop's tokens, sums that are those of the steps, and its map."""

import itertools
import json

import pytest
import torch
from conftest import seeded, tiny_model
from pretend_cuda import PretendCuda
from shapes import COMBINED, SMALL, config_of
from torch.utils._python_dispatch import TorchDispatchMode

from nanogpt import (
    SIZES,
    Decoder,
    DynamicCache,
    Int8Cache,
    SamplingParams,
    StaticCache,
    complete,
)
from nanogpt.bench import gain
from nanogpt.bench.environment import conditions
from nanogpt.bench.gain import (
    Bound,
    Steps,
    bound_of,
    gain_by_batch,
    gain_by_length,
    longest_whole_text,
    published_gains,
    thin,
    write,
)
from nanogpt.bench.roofline import work
from nanogpt.cli import main
from nanogpt.decoder.config import decoder_config


@pytest.fixture
def model():
    return tiny_model(per_head=False, positions="rotary", norm="rms", gated=True, n_kv_head=1)


@pytest.mark.parametrize("cache", [None, DynamicCache, StaticCache])
def test_the_loop_writes_the_tokens_of_generate(model, cache):
    prompt = torch.randint(13, (2, 5), generator=seeded(3))
    expected = complete(model, prompt, 12, SamplingParams(greedy=True))
    assert torch.equal(torch.cat([prompt, *write(model, prompt, 12, cache)], dim=1), expected)
    assert not any(block.sa.cache for block in model.blocks)


def test_the_loop_goes_through_the_cache_that_it_is_given(model):
    """One that rounds keys and values to zero is seen in the tokens."""

    class Forgetful(Int8Cache):
        def held(self):
            return tuple(0 * x for x in super().held())

    prompt = torch.randint(13, (1, 5), generator=seeded(3))
    right = torch.cat([*write(model, prompt, 12)], dim=1)
    assert not torch.equal(torch.cat([*write(model, prompt, 12, Forgetful)], dim=1), right)


@pytest.fixture
def steady(monkeypatch):
    """A clock for which the step without a cache at length L takes L seconds, and any other 1."""
    counts = itertools.count(1)
    timed = {1: range(1, 100), 0: itertools.repeat(1)}

    def time_tokens(steps, device):
        turn = next(counts) % 2
        return [float(seconds) for seconds, _ in zip(timed[turn], steps, strict=False)]

    monkeypatch.setattr(gain, "time_tokens", time_tokens)
    monkeypatch.setattr(
        gain,
        "steps_at",
        lambda model, n, repeats, batch: Steps(n, [1.0 * n] * repeats, [1.0] * repeats),
    )


def test_steps_that_are_added_are_the_sum_of_all_steps(model, steady):
    """Linear times are interpolated exactly: n (n + 1) / 2 without a cache, and n with one."""
    rows = gain_by_length(model, [2, 4, 7, 15], run_to=4, repeats=2)
    assert [(row["n_new"], row["measured"]) for row in rows] == [
        (2, True),
        (4, True),
        (7, False),
        (15, False),
    ]
    for row in rows:
        n = row["n_new"]
        assert row["uncached"]["median"] == pytest.approx(n * (n + 1) / 2)
        assert row["cached"]["median"] == pytest.approx(n)
        assert row["gain"]["low"] == row["gain"]["high"] == pytest.approx((n + 1) / 2)


def test_real_steps_are_timed_in_pairs_and_leave_no_cache(model):
    rows = gain_by_length(model, [2, 3, 5], run_to=2, repeats=2)
    assert [row["gain"]["n"] for row in rows] == [2, 2, 2]
    assert all(row["uncached"]["low"] > 0 < row["cached"]["low"] for row in rows)
    assert not any(block.sa.cache for block in model.blocks)


@pytest.mark.parametrize(("lengths", "run_to"), [([4, 2], 2), ([2, 4], 3), ([2, 2], 2), ([], 1)])
def test_lengths_must_ascend_and_hold_the_longest_whole_run(model, lengths, run_to):
    with pytest.raises(ValueError, match=f"run_to={run_to}"):
        gain_by_length(model, lengths, run_to=run_to)


# ------------------------------------------------------------------ over length, batch and model


def test_a_batch_of_texts_is_timed_together(model):
    seen = set()
    model.register_forward_pre_hook(lambda _, given: seen.add(len(given[0])))
    gain_by_length(model, [2, 4], run_to=2, repeats=1, batch=3)
    assert seen == {3}


def test_the_rows_of_each_batch_size_are_yielded_as_soon_as_they_are_measured(model):
    turns = [
        [(row["batch"], row["n_new"]) for row in found["rows"]]
        for found in gain_by_batch("tiny", model, [1, 3], [1, 4, 10_000], repeats=2)
    ]
    first = [(1, 1), (1, 4)]
    assert turns == [first, [*first, (3, 1), (3, 4)]], "and none beyond the model's block"


def test_a_model_that_generates_no_text_so_long_is_refused(model):
    with pytest.raises(ValueError, match=r"lengths=\[500\]: tiny generates at most \d+ tokens"):
        next(gain_by_batch("tiny", model, [1], [500]))


# The seconds of a text without a cache, of as many single-token steps, and of their calls.
@pytest.mark.parametrize(
    ("uncached", "single", "calls", "bound"),
    [
        (1.0, 1.0, 0.9, Bound.CALLS),
        (1.0, 1.0, 0.1, Bound.BANDWIDTH),
        (9.0, 1.0, 0.1, Bound.ARITHMETIC),
        (9.0, 8.0, 1.0, Bound.BANDWIDTH),  # a large model and a short text
        (9.0, 8.0, 7.0, Bound.CALLS),  # a small model on a fast device
        (0.9, 1.0, 0.9, Bound.CALLS),  # a disturbed step was measured
    ],
)
def test_the_bound_is_the_largest_part_of_the_time_without_a_cache(uncached, single, calls, bound):
    assert bound_of(uncached, single, calls) is bound
    assert bound.reason.endswith(".")


@pytest.mark.parametrize("changes", COMBINED.values(), ids=COMBINED)
def test_a_thin_model_makes_the_same_calls_with_hardly_any_weights(changes):
    def calls(config):
        """The operations of a step over one token."""
        subject = Decoder(config).eval()
        with Operations() as counted:
            subject(torch.zeros(1, 1, dtype=torch.int64), last=1)
        return counted.names

    config = config_of(packed=True, **{**SMALL, "n_embd": 256, **changes})
    assert calls(thin(config)) == calls(config)
    assert thin(config).n_params < config.n_params / 5


class Operations(TorchDispatchMode):
    """The names of all operations that torch dispatches."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.append(str(operation))
        return operation(*args, **(kwargs or {}))


def test_texts_are_generated_in_full_as_far_as_the_operations_allow():
    config = decoder_config(SIZES["small"])
    needs = 128 * work(config, 128, cached=False)["flop"]
    lengths = [1, 64, 128, 255]
    assert longest_whole_text(config, 1, lengths, needs) == 128
    assert longest_whole_text(config, 2, lengths, needs) == 64
    assert longest_whole_text(config, 2, lengths, 0) == 1


def test_published_results_of_other_machines_are_those_of_the_command():
    found = published_gains()
    assert {one["environment"]["device_name"] for one in found} >= {"NVIDIA H200"}
    for one in found:
        assert conditions(one["environment"])
        for model in one["models"]:
            pairs = [(row["batch"], row["n_new"]) for row in model["rows"]]
            assert len(pairs) == len(set(pairs)) > 0
            assert all(row["gain"]["n"] >= 3 for row in model["rows"])


def test_the_command_writes_what_it_measured_and_where(tmp_path, capsys):
    path = tmp_path / "gain.json"
    words = "bench gain --size article --batch 1 2 --lengths 1 2 --repeats 1 --device cpu --json"
    assert main([*words.split(), str(path)]) == 0
    written = json.loads(path.read_text(encoding="utf-8"))
    assert (written["what"], written["dtype"]) == ("gain", "float32")
    assert (written["environment"]["device"], written["environment"]["threads"]) == ("cpu", 1)
    (found,) = written["models"]
    assert (found["model"], found["n_params"]) == ("article", SIZES["article"].n_params)
    assert [(row["batch"], row["n_new"]) for row in found["rows"]] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]
    said = capsys.readouterr().out
    assert all(f"{bound.value}: {bound.reason}" in said for bound in Bound)


def test_an_interrupted_measurement_keeps_the_batch_sizes_that_are_done(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / "gain.json"
    measured = gain.gain_by_batch

    def stopped(*args, **kwargs):
        yield next(measured(*args, **kwargs))
        raise KeyboardInterrupt

    monkeypatch.setattr(gain, "gain_by_batch", stopped)
    words = "bench gain --size article --batch 1 2 --lengths 2 --repeats 1 --device cpu --json"
    assert main([*words.split(), str(path)]) == 130
    assert f"what was measured is in {path}" in capsys.readouterr().err
    (found,) = json.loads(path.read_text(encoding="utf-8"))["models"]
    assert [row["batch"] for row in found["rows"]] == [1]


def test_on_a_gpu_the_host_waits_only_to_read_the_clock(model, gpu):
    model.to("cuda")
    gpu.waits.clear()
    (found,) = gain_by_batch("tiny", model, [2], [1, 4, 8], repeats=1)
    assert [row["n_new"] for row in found["rows"]] == [1, 4, 8]
    assert {what for what, _ in gpu.waits} == {"synchronize"}


@pytest.fixture
def gpu():
    with PretendCuda() as machine:
        yield machine
