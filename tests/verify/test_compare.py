"""compare: nothing found in what is equal, the right place in what is not (heads broken here)."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import CACHES, DESIGNS, FORMS, name, seeded, state_of, tiny_model, tokens

from nanogpt.cache.attach import kv_cache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.static import StaticCache
from nanogpt.decoding.generate import complete
from nanogpt.decoding.sampling import SamplingParams, draw_noise, sample
from nanogpt.model.attention import attend, visible
from nanogpt.model.gpt import Head
from nanogpt.verify.compare import Report, compare, draw_margins, forced_logits, numbers_apart
from nanogpt.verify.visibility import judge

NEW = 14


class NoMask(Head):
    """In the prefill every token sees every other: right without a cache, wrong with one."""

    def forward(self, x, pos):
        if self.cache is None:
            return super().forward(x, pos)
        q, k, v = self.query(x), self.key(x), self.value(x)
        k, v, k_pos = self.cache.update(k, v, pos)
        return attend(q, k, v, (k_pos >= 0).expand(len(pos), -1))


class NearSighted(Head):
    """With a cache, it never looks back at the last place but one."""

    def forward(self, x, pos):
        if self.cache is None:
            return super().forward(x, pos)
        q, k, v = self.query(x), self.key(x), self.value(x)
        k, v, k_pos = self.cache.update(k, v, pos)
        return attend(q, k, v, visible(pos, k_pos) & (pos[:, None] - k_pos != 2))


class ForgetsAfter(Head):
    """With a cache, sees nothing of the text from position 12 on but itself: right until then."""

    def forward(self, x, pos):
        if self.cache is None:
            return super().forward(x, pos)
        q, k, v = self.query(x), self.key(x), self.value(x)
        k, v, k_pos = self.cache.update(k, v, pos)
        return attend(
            q, k, v, visible(pos, k_pos) & ((pos[:, None] < 12) | (pos[:, None] == k_pos))
        )


# ------------------------------------------------------------------ equal


@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize("design", CACHES, ids=name)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_cache_and_no_cache_are_equal(per_head, design, batch):
    model, prompt = tiny_model(per_head), tokens(batch, 9)
    report = compare(model, prompt, NEW, None, design, seed=42)
    assert report.equal
    assert report.explained
    assert report.first_divergence is None
    assert report.max_logit_diff < 2e-4
    assert report.tokens_a == report.tokens_b
    assert report.tokens_a == complete(model, prompt, NEW, generator=seeded(42))[:, 9:].tolist()
    assert "✓ all 14 tokens equal" in str(report)
    assert json.loads(json.dumps(report.as_dict()))["explained"] is True


def test_a_way_compared_with_itself_differs_by_nothing():
    for design in DESIGNS:
        report = compare(tiny_model(), tokens(2, 5), NEW, design, design)
        assert report.equal
        assert report.logit_diffs == [0.0] * NEW


def test_temperature_and_seed_reach_both_ways():
    model, prompt = tiny_model(), tokens(1, 5)
    report = compare(model, prompt, NEW, None, DynamicCache, seed=7, temperature=0.3)
    expected = complete(
        model, prompt, NEW, sampling=SamplingParams(temperature=0.3), generator=seeded(7)
    )
    assert report.tokens_a == report.tokens_b == expected[:, 5:].tolist()


@pytest.mark.parametrize("training", [True, False])
def test_comparing_leaves_the_model_and_the_random_state_as_they_were(training, ambient_rng):
    model = tiny_model().train(training)
    before = state_of(model)
    compare(model, tokens(1, 5), NEW, None, StaticCache)
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_new": 21}, "exceed block_size 24"),
        ({"n_new": 0}, "n_new=0"),
        ({"n_new": -1}, "n_new=-1"),
        ({"n_new": 2.5}, "n_new=2.5"),
        ({"prompt": torch.tensor([1, 2])}, r"pass \(B, T\)"),
        ({"prompt": torch.empty(1, 0, dtype=torch.int64)}, "at least one token"),
        ({"temperature": 0.0}, "temperature=0.0"),
    ],
)
def test_bad_arguments_are_refused_as_generate_refuses_them(arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(**({"model": tiny_model(), "prompt": tokens(1, 5), "n_new": 4} | arguments))


# ------------------------------------------------------------------ unequal


@pytest.mark.parametrize("head", [NoMask, NearSighted])
def test_a_broken_head_is_caught_at_the_token_where_the_texts_part(head):
    model, prompt = tiny_model(head=head), tokens(2, 9)
    report = compare(model, prompt, NEW, None, DynamicCache)
    plain = complete(model, prompt, NEW, cache=None, generator=seeded(42))[:, 9:]
    broken = complete(model, prompt, NEW, cache=DynamicCache, generator=seeded(42))[:, 9:]
    first = next(t for t in range(NEW) if not torch.equal(plain[:, t], broken[:, t]))
    assert not report.equal
    assert report.first_divergence == first
    assert report.tokens_a == plain.tolist()
    assert report.tokens_b == broken.tolist()
    assert report.max_logit_diff > 0.1
    assert f"✗ tokens differ from new token {first} on ({first} of 14 equal before it)" in str(
        report
    )


def test_logits_are_compared_on_one_text_even_after_the_texts_part():
    """Teacher-forced: b is fed a's text. A free run would blame b for continuing another text."""
    model, prompt = tiny_model(head=ForgetsAfter), tokens(1, 5)
    report = compare(model, prompt, NEW, None, DynamicCache)
    right, wrong = (
        report.logit_diffs[:7],
        report.logit_diffs[8:],
    )  # token t is decided at position 4 + t
    assert max(right) < 1e-4
    assert min(wrong) > 1e-2
    assert not report.equal
    assert report.first_divergence >= 8
    text = torch.cat([prompt, torch.tensor(report.tokens_a)], dim=1)
    a, b = (forced_logits(model, text, 5, design) for design in (None, DynamicCache))
    assert report.logit_diffs == (a - b).abs().amax((1, 2)).tolist()
    assert report.max_logit_diff == max(report.logit_diffs)


def test_one_wrong_text_of_a_batch_is_enough():
    class BreaksOne(Head):
        def forward(self, x, pos):
            if self.cache is None:
                return super().forward(x, pos)
            q, k, v = self.query(x), self.key(x), self.value(x)
            k, v, k_pos = self.cache.update(k, v, pos)
            out = attend(q, k, v, visible(pos, k_pos))
            out[1] = attend(q, k, v, (k_pos >= 0).expand(len(pos), -1))[1]
            return out

    report = compare(tiny_model(head=BreaksOne), tokens(3, 9), NEW, None, DynamicCache)
    same = [a == b for a, b in zip(report.tokens_a, report.tokens_b, strict=True)]
    assert same == [True, False, True]
    assert not report.equal


# ------------------------------------------------------------------ logits and margins


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_forced_logits_are_those_that_decided_each_token(design):
    """Draw again from them with the same noise: the same text must come out."""
    model, noise = tiny_model(), draw_noise(NEW, 2, 13, seeded(3))
    text = complete(model, tokens(2, 6), NEW, cache=design, noise=noise)
    logits = forced_logits(model, text, 6, design)
    assert logits.shape == (NEW, 2, 13)
    again = torch.cat([sample(row, race) for row, race in zip(logits, noise, strict=True)], dim=1)
    assert torch.equal(again, text[:, 6:])


def test_forced_logits_put_the_mode_back_on_an_error_too():
    model = tiny_model().train()
    with kv_cache(model), pytest.raises(ValueError, match="already on"):
        forced_logits(model, tokens(1, 9), 5, DynamicCache)
    assert model.training


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_margin_is_how_far_the_winner_of_a_draw_was_ahead(temperature):
    logits = 3 * torch.randn(6, 2, 13, generator=seeded(1))
    noise = draw_noise(6, 2, 13, seeded(2))
    margins = draw_margins(logits, noise, temperature)
    for t in range(6):
        ahead = []
        for b in range(2):
            probs = (logits[t, b].double() / temperature).softmax(-1)
            best, second = sorted((probs / noise[t, b]).log().tolist(), reverse=True)[:2]
            ahead.append((best - second) * temperature)
        assert float(margins[t]) == pytest.approx(min(ahead), rel=1e-6)


def test_moving_the_runner_up_by_its_margin_is_what_it_takes_to_win():
    logits, noise = torch.randn(1, 1, 13, generator=seeded(1)), draw_noise(1, 1, 13, seeded(2))
    margin = float(draw_margins(logits, noise, 0.7)[0])
    winner, second = (logits / 0.7 - noise.log())[0, 0].topk(2).indices.tolist()
    for share, expected in ((0.99, winner), (1.01, second)):
        moved = logits[0].clone()
        moved[0, second] += share * margin
        assert int(sample(moved, noise[0], SamplingParams(temperature=0.7))) == expected


def test_the_smallest_margin_is_reported():
    report = compare(tiny_model(), tokens(2, 5), NEW, None, DynamicCache)
    assert report.min_margin == min(report.margins) > 0
    assert len(report.margins) == len(report.logit_diffs) == report.n_new == NEW


def a_report(equal, diff, margin):
    return Report(
        equal,
        None if equal else 0,
        1,
        diff,
        1e-4,
        margin,
        [[1]],
        [[1 if equal else 2]],
        [diff],
        [margin],
    )


@pytest.mark.parametrize(
    ("equal", "diff", "rounding", "explained"),
    [(True, 1.0, 1e-6, True), (False, 1e-6, 1e-4, True), (False, 1e-3, 1e-4, False)],
)
def test_a_difference_is_explained_by_what_rounding_can_do(equal, diff, rounding, explained):
    report = replace(a_report(equal, diff, 0.5), rounding=rounding)
    assert report.explained is explained
    assert report.as_dict()["explained"] is explained


@pytest.mark.parametrize("head", [NoMask, NearSighted], ids=lambda head: head.__name__)
def test_no_broken_head_is_explained_away(head):
    """A margin proves nothing here: logits that are off by much exceed every margin."""
    report = compare(tiny_model(head=head), tokens(1, 9), NEW, None, DynamicCache)
    assert report.max_logit_diff > 0.1
    assert not replace(report, equal=False).explained


# ------------------------------------------------------------------ the last bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=name)
def test_numbers_apart_counts_the_numbers_between(dtype):
    a = torch.tensor([1.0, -1.0, 0.0, 0.0, 3.5], dtype=dtype)
    b = a.clone()
    for _ in range(3):
        b = torch.nextafter(b, torch.full_like(b, torch.inf))
    assert numbers_apart(a, b).tolist() == [3] * 5
    assert numbers_apart(b, a).tolist() == [3] * 5
    assert numbers_apart(a, a).tolist() == [0] * 5
    below = torch.nextafter(torch.zeros(1, dtype=dtype), torch.full((1,), -1.0, dtype=dtype))
    assert numbers_apart(below, b[2:3]).tolist() == [4], "across zero"
    assert numbers_apart(
        torch.tensor([-0.0], dtype=dtype), torch.tensor([0.0], dtype=dtype)
    ).tolist() == [0]


def test_a_prompt_in_pieces_gives_the_same_logits():
    model, text = tiny_model(dtype=torch.float64), tokens(2, 20)
    whole = forced_logits(model, text, 11, DynamicCache)
    for chunk in (1, 4, 11, 99):
        torch.testing.assert_close(
            forced_logits(model, text, 11, StaticCache, chunk=chunk), whole, rtol=0, atol=1e-10
        )


# ------------------------------------------------------------------ masks of the reader's own


def every_second(q_pos, k_pos, window=None, sinks=0):
    return visible(q_pos, k_pos) & ((q_pos[:, None] - k_pos[None, :]) % 2 == 0)


GOOD = {
    "all": visible,
    "window": lambda q, k, w, s: visible(q, k, 5),
    "sinks": lambda q, k, w, s: visible(q, k, 5, 2),
    "every second": every_second,
    "blocks": lambda q, k, w, s: visible(q, k) & (q[:, None] // 8 == k[None, :] // 8),
}
BAD = {  # the rule, and the check that must find it out
    "the future": (lambda q, k, w, s: (q[:, None] // 8 == k[None, :] // 8) & (k >= 0), "later key"),
    "empty slots": (lambda q, k, w, s: q[:, None] >= k[None, :], "empty slot"),
    "nobody": (lambda q, k, w, s: visible(q, k) & (q[:, None] - k > 0), "sees a key"),
    "places of keys": (
        lambda q, k, w, s: visible(q, k) & (torch.arange(len(k)) % 2 == 0),
        "positions decide",
    ),
    "the end of the array": (
        lambda q, k, w, s: visible(q, k) & (torch.arange(len(k)) >= len(k) - 5),
        "positions decide",
    ),
    "places of queries": (
        lambda q, k, w, s: visible(q, k) & ((torch.arange(len(q))[:, None] - k) % 2 == 0),
        "cached logits",
    ),
    "a float": (lambda q, k, w, s: visible(q, k).float(), "truth value"),
    "one row": (lambda q, k, w, s: visible(q, k)[:1], "truth value"),
    "no tensor": (lambda q, k, w, s: True, "truth value"),
    "raises": (lambda q, k, w, s: 1 / 0, "truth value"),
    "has three arguments": (lambda q, k, w: visible(q, k), "truth value"),
}


@pytest.mark.parametrize("rule", GOOD)
def test_a_rule_about_positions_passes(rule):
    rows = judge(GOOD[rule])
    assert len(rows) == 6
    assert {row["verdict"] for row in rows} == {"✓"}


@pytest.mark.parametrize("rule", BAD)
def test_a_rule_that_no_cache_can_serve_is_found_out(rule):
    fn, check = BAD[rule]
    verdicts = {row["check"]: row["verdict"] for row in judge(fn)}
    found = [what for what in verdicts if check in what]
    assert len(found) == 1
    assert verdicts[found[0]].startswith("✗")


def test_what_a_rule_raises_is_its_verdict():
    assert judge(BAD["raises"][0]) == [
        {
            "check": "a truth value for each query and key",
            "verdict": "✗ ZeroDivisionError: division by zero",
        }
    ]
