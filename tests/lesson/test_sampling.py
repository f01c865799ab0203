"""Sampling against a plain Python reference, and reproducible noise."""

import math

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded
from hypothesis import given

from nanogpt.sampling import SamplingParams, draw_noise, sample


def slow_sample(logits, noise, temperature=1.0, top_k=None, top_p=None):
    """One row at a time, in Python's floats: sort, filter, and divide by the noise."""
    winners = []
    for row, race in zip(logits.tolist(), noise.tolist(), strict=True):
        weights = [math.exp((x - max(row)) / temperature) for x in row]
        order = sorted(range(len(row)), key=lambda i: -weights[i])[:top_k]
        if top_p is not None:
            total = sum(weights[i] for i in order)
            so_far = 0.0
            kept = []
            for i in order:
                kept.append(i)
                so_far += weights[i] / total
                if so_far >= top_p:
                    break
            order = kept
        winners.append([max(order, key=lambda i: weights[i] / race[i])])
    return winners


@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 4),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    top_k=st.none() | st.integers(1, 13),
    top_p=st.none() | st.floats(0.001, 1.0),
)
def test_sample_equals_a_plain_python_reference(seed, batch, temperature, top_k, top_p):
    logits = 3 * torch.randn(batch, 13, generator=seeded(seed), dtype=torch.float64)
    noise = draw_noise(1, batch, 13, seeded(seed + 1))[0]
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    found = sample(logits, noise, SamplingParams(**settings))
    assert found.tolist() == slow_sample(logits, noise, **settings)


def kept_tokens(logits, **settings):
    """The tokens that can be sampled: each is tried with noise that favours it."""
    V = logits.shape[-1]
    noise = torch.full((V, V), 1e10).fill_diagonal_(1e-10)
    chosen = sample(logits.expand(V, V), noise, SamplingParams(**settings))[:, 0]
    return {i for i in range(V) if chosen[i] == i}


def test_top_p_keeps_the_fewest_tokens_that_add_up_to_p():
    logits = torch.tensor([[0.0625, 0.5, 0.125, 0.25, 0.0625]]).log()
    for p, kept in ((1e-30, {1}), (0.01, {1}), (0.49, {1}), (0.51, {1, 3}), (0.76, {1, 3, 2})):
        assert kept_tokens(logits, top_p=p) == kept
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]])  # of the first two, the first is 4/7 = 0.57
    assert kept_tokens(probs.log(), top_k=2, top_p=0.55) == {0}
    assert kept_tokens(probs.log(), top_k=2, top_p=0.60) == {0, 1}


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1.0, 4.0]))
def test_top_p_of_1_keeps_every_token(seed, scale):
    logits = scale * torch.randn(1, 65, generator=seeded(seed))
    assert kept_tokens(logits, top_p=1.0) == kept_tokens(logits) == set(range(65))


def test_half_precision_logits_are_sampled_in_float32():
    logits = torch.randn(5000, 65, generator=seeded()).bfloat16()
    noise = draw_noise(1, 5000, 65, seeded(1))[0]
    assert torch.equal(sample(logits, noise), sample(logits.float(), noise))


@pytest.mark.parametrize(
    # one number, several texts, one long text, more than a vector of the processor holds
    "shape",
    [(1, 1, 1), (7, 3, 65), (50, 1, 65), (1, 1, 5000)],
)
def test_noise_equals_exponential_called_step_by_step(shape):
    """The lecture samples with torch.multinomial, which draws exponential_ at each step."""
    step_by_step = torch.empty(shape)
    generator = seeded(5)
    for row in step_by_step:
        row.exponential_(generator=generator)
    assert torch.equal(draw_noise(*shape, seeded(5)), step_by_step)


def test_noise_is_positive_even_for_a_uniform_0(monkeypatch):
    """A uniform number may be 0, and then p / 0 would win every race, or be NaN."""
    monkeypatch.setattr(torch, "rand", lambda *shape, generator, **kind: torch.zeros(shape, **kind))
    noise = draw_noise(2, 1, 3)
    assert (noise > 0).all()
    probs = torch.tensor([[0.0, 0.25, 0.75]])
    assert sample(probs.log(), noise[0], SamplingParams(top_k=2)).item() in (1, 2)


def test_noise_depends_only_on_the_seed(ambient_rng):
    noise = draw_noise(4, 2, 13, seeded(42))
    assert (noise.shape, noise.dtype, noise.device.type) == ((4, 2, 13), torch.float32, "cpu")
    assert torch.equal(noise, draw_noise(4, 2, 13, seeded(42)))
    assert not torch.equal(noise, draw_noise(4, 2, 13, seeded(43)))
    longer = draw_noise(9, 2, 13, seeded(42))
    assert torch.equal(noise, longer[:4]), "asking for more changed the first"


def test_greedy_excludes_temperature_top_k_and_top_p():
    for other in ({"top_k": 3}, {"top_p": 0.5}, {"temperature": 0.5}):
        with pytest.raises(ValueError, match="leave them out"):
            SamplingParams(greedy=True, **other)
    with pytest.raises(ValueError, match="use greedy=True"):
        SamplingParams(temperature=0.0)


@pytest.mark.parametrize("vocab", [17, 65])
def test_top_p_breaks_ties_by_token_number(vocab):
    """As in native code. An untrained model gives equal probabilities."""
    assert kept_tokens(torch.zeros(1, vocab), top_p=0.5) == set(range(-(-vocab // 2)))
