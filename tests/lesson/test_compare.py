"""compare: equal caches, broken heads, teacher-forced logits, margins."""

import itertools

import pytest
import torch
from conftest import CACHES, DESIGNS, FORMS, name, seeded, state_of, tiny_model, tokens
from notebook_fixtures import cells_of

from nanogpt.attention import attend, visible
from nanogpt.cache import DynamicCache, StaticCache, kv_cache
from nanogpt.comparison import compare, draw_margins, forced_logits
from nanogpt.generation import complete
from nanogpt.model import Head
from nanogpt.sampling import SamplingParams, draw_noise, sample

NEW = 14


def broken(seen) -> type[Head]:
    """A head that is right without a cache; with one, its mask is seen(pos, k_pos)."""

    class Broken(Head):
        def forward(self, x, pos):
            if self.cache is None:
                return super().forward(x, pos)
            q = self.query(x)
            k = self.key(x)
            v = self.value(x)
            k, v, k_pos = self.cache.update(k, v, pos)
            return attend(q, k, v, seen(pos, k_pos))

    return Broken


# In the prefill every token sees every other.
NoMask = broken(lambda pos, k_pos: (k_pos >= 0).expand(len(pos), -1))
# From position 12 on it sees nothing of the text but itself: right until then.
ForgetsAfter = broken(
    lambda pos, k_pos: visible(pos, k_pos) & ((pos[:, None] < 12) | (pos[:, None] == k_pos))
)


# ------------------------------------------------------------------ equal


@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize("design", CACHES, ids=name)
@pytest.mark.parametrize("batch", [1, 3])
def test_cached_and_uncached_decoding_are_equal(per_head, design, batch):
    model = tiny_model(per_head)
    prompt = tokens(batch, 9)
    report = compare(model, prompt, NEW, None, design, seed=7, temperature=0.8)
    sampling = SamplingParams(temperature=0.8)
    expected = complete(model, prompt, NEW, sampling, generator=seeded(7))
    assert report.equal
    assert report.max_logit_diff <= report.rounding
    assert report.first_divergence is None
    assert report.max_logit_diff < 2e-4
    assert report.tokens_a == report.tokens_b == expected[:, 9:].tolist()
    assert "✓ all 14 tokens equal" in str(report)


@pytest.mark.parametrize("training", [True, False])
def test_compare_leaves_the_model_and_the_random_state_unchanged(training, ambient_rng):
    model = tiny_model().train(training)
    with kv_cache(model):
        before = state_of(model)
        compare(model, tokens(1, 5), NEW, None, StaticCache)
        assert state_of(model) == before
        assert all(block.sa.heads[0].cache.length == 0 for block in model.blocks)


# ------------------------------------------------------------------ unequal


@pytest.mark.parametrize("head", [NoMask, ForgetsAfter])
def test_a_broken_head_is_reported_at_the_first_different_token(head):
    model = tiny_model(head=head)
    prompt = tokens(2, 9)
    report = compare(model, prompt, NEW, None, DynamicCache)
    plain = complete(model, prompt, NEW, cache=None, generator=seeded(42))[:, 9:]
    broken = complete(model, prompt, NEW, cache=DynamicCache, generator=seeded(42))[:, 9:]
    first = next(t for t in range(NEW) if not torch.equal(plain[:, t], broken[:, t]))
    assert not report.equal
    assert report.first_divergence == first
    assert report.tokens_a == plain.tolist()
    assert report.tokens_b == broken.tolist()
    assert report.max_logit_diff > 0.1
    assert f"✗ tokens differ from new token {first} on" in str(report)
    # A margin proves nothing here: logits that are off by much exceed every margin.
    assert report.max_logit_diff > report.rounding


def test_logits_are_teacher_forced_after_a_divergence():
    """b reads a's text: its own text would have other logits after the divergence."""
    model = tiny_model(head=ForgetsAfter)
    prompt = tokens(1, 5)
    report = compare(model, prompt, NEW, None, DynamicCache)
    right = report.logit_diffs[:7]  # t is decided at position 4 + t
    wrong = report.logit_diffs[8:]
    assert max(right) < 1e-4
    assert min(wrong) > 1e-2
    assert not report.equal
    assert report.first_divergence >= 8
    text = torch.cat([prompt, torch.tensor(report.tokens_a)], dim=1)
    a, b = (forced_logits(model, text, 5, design) for design in (None, DynamicCache))
    assert report.logit_diffs == (a - b).abs().amax((1, 2)).tolist()
    assert report.max_logit_diff == max(report.logit_diffs)


def test_nan_logits_are_never_equal():
    model = tiny_model()
    model.lm_head.weight.data.fill_(torch.nan)
    report = compare(model, tokens(1, 5), 5, None, DynamicCache)
    assert not report.equal
    assert str(report).startswith("✗ logits are NaN from new token 0 on")


@pytest.mark.parametrize(
    ("wrong", "named"),
    # A row for each argument: its wrong values are in tests/test_fuzz.py and test_generate.py.
    [
        ({"model": torch.nn.Linear(2, 2)}, "model="),
        ({"prompt": tokens(5)}, "the prompt is"),
        ({"n_new": 10**9}, "1000000000 new tokens"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"temperature": 0}, "temperature=0"),
    ],
    ids=str,
)
def test_compare_refuses_invalid_arguments_by_name(wrong, named):
    right = {"model": tiny_model(), "prompt": tokens(1, 5), "n_new": 5, "a": None, "b": None}
    with pytest.raises(ValueError, match=named):
        compare(**right | wrong)


def test_compare_has_no_default_for_what_is_compared():
    """Nothing against nothing would be equal, whatever the caller meant to test."""
    with pytest.raises(TypeError, match="'b'"):
        compare(tiny_model(), tokens(1, 5), 5, None)


# ------------------------------------------------------------------ logits and margins


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_sampling_from_forced_logits_gives_the_same_text(design):
    """With the same noise, as the generation itself did."""
    model = tiny_model()
    noise = draw_noise(NEW, 2, 13, seeded(3))
    text = complete(model, tokens(2, 6), NEW, cache=design, noise=noise)
    logits = forced_logits(model, text, 6, design)
    assert logits.shape == (NEW, 2, 13)
    again = torch.cat([sample(row, race) for row, race in zip(logits, noise, strict=True)], dim=1)
    assert torch.equal(again, text[:, 6:])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draw_margins_equal_a_plain_python_reference(temperature):
    logits = 3 * torch.randn(6, 2, 13, generator=seeded(1))
    noise = draw_noise(6, 2, 13, seeded(2))
    margins = draw_margins(logits, noise, temperature)
    for t, b in itertools.product(range(6), range(2)):
        probs = (logits[t, b].double() / temperature).softmax(-1)
        best, second = sorted((probs / noise[t, b]).log().tolist(), reverse=True)[:2]
        assert float(margins[t, b]) == pytest.approx((best - second) * temperature, rel=1e-6)


def test_compare_reports_a_margin_for_each_new_token():
    report = compare(tiny_model(), tokens(2, 5), NEW, None, DynamicCache)
    assert report.min_margin == min(report.margins) > 0
    assert len(report.margins) == len(report.logit_diffs) == report.n_new == NEW


# ------------------------------------------------------------------ the last bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=name)
def test_numbers_apart_counts_representable_numbers(dtype):
    a = torch.tensor([1.0, -1.0, 0.0, 0.0, 3.5], dtype=dtype)
    b = a.clone()
    for _ in range(3):
        b = torch.nextafter(b, torch.full_like(b, torch.inf))
    apart = cells_of(12, "numbers-apart", imports="import torch; from torch import Tensor")
    apart = apart["numbers_apart"]
    assert apart(a, b).tolist() == apart(b, a).tolist() == [3] * 5
    assert apart(a, a).tolist() == [0] * 5
    below = torch.nextafter(a[2:3], torch.full((1,), -1.0, dtype=dtype))
    assert apart(below, b[2:3]).tolist() == [4], "across zero"
    assert apart(-a[2:3], a[2:3]).tolist() == [0]


def test_chunked_prefill_gives_the_same_logits():
    model = tiny_model(dtype=torch.float64)
    text = tokens(2, 20)
    whole = forced_logits(model, text, 11, DynamicCache)
    for chunk in (1, 4, 11, 99):
        parts = forced_logits(model, text, 11, StaticCache, chunk=chunk)
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-10)
