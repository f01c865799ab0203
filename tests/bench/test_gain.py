"""The gain of a cache by length: the plain loop's tokens, and sums that are those of the steps."""

import itertools

import pytest
import torch
from conftest import seeded, tiny_model

from nanogpt import DynamicCache, Int8Cache, SamplingParams, StaticCache, complete
from nanogpt.bench import gain
from nanogpt.bench.gain import Steps, gain_by_length, write


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
        def tensors(self):
            return tuple(0 * x for x in super().tensors())

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
        gain, "steps_at", lambda model, n, repeats: Steps(n, [1.0 * n] * repeats, [1.0] * repeats)
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
