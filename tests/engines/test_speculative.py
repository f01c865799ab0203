"""Speculative decoding: passes and proposals, caches, several generations; the rejection rule.

That the tokens are those of plain decoding, with any draft, is in tests/test_same_tokens.py.
"""

import pytest
import torch
from conftest import seeded, state_of, tiny_model
from decoding_fixtures import BLOCK, V, build, text
from draft_fixtures import PartlyRight, Right, Wrong
from hypothesis import given
from hypothesis import strategies as st
from notebook_fixtures import cells_of
from shapes import ROPE

from nanogpt.cache import DynamicCache, StaticCache, cache_owners, kv_cache
from nanogpt.caches.int8 import Int8Cache
from nanogpt.caches.paged import PagedCache
from nanogpt.caches.rolling import RollingCache
from nanogpt.engines.drafts import Draft, DraftModel, NGram, PromptLookup
from nanogpt.engines.exact import exact
from nanogpt.engines.generation import complete, generate
from nanogpt.engines.speculation import DraftStats, expected_tokens
from nanogpt.sampling import SamplingParams, draw_noise

CACHES = {
    "dynamic": DynamicCache,
    "static": StaticCache,
    "rolling": RollingCache,
    "paged": type("SmallPages", (PagedCache,), {"page": 4}),
    "int8": Int8Cache,
}
DRAFTS = {
    "table": lambda whole, model: NGram(text(500)[0], V, 3, 3),
    "look-up": lambda whole, model: PromptLookup(3, 3),
    "small": lambda whole, model: DraftModel(build(seed=4, n_layer=1, n_embd=16), 3),
    "itself": lambda whole, model: DraftModel(model, 3),
    "partly right": lambda whole, model: PartlyRight(whole, V, 3),
}


@pytest.mark.parametrize("cache", ["rolling", "dynamic"])
@pytest.mark.parametrize("draft", ["itself", "partly right"])
def test_a_text_without_end(cache, draft):
    model = build(**ROPE, window=6, sinks=1)
    whole = complete(model, text(3), 2 * BLOCK, cache=CACHES[cache])
    made = DRAFTS[draft](whole, model)
    found = complete(model, text(3), 2 * BLOCK, cache=CACHES[cache], draft=made)
    assert torch.equal(found, whole)


# ------------------------------------------------------------------ no rejected row is kept


@torch.no_grad()
@pytest.mark.parametrize("cache", CACHES)
def test_the_caches_hold_what_plain_decoding_holds(cache):
    """At every token of the text, of three texts that are right about different tokens."""
    model = build(n_kv_head=2, window=6, sinks=2, **ROPE)
    whole = complete(model, text(5, 3), 14, cache=CACHES[cache])
    steps = generate(model, whole[:, :5], 14, cache=CACHES[cache], draft=PartlyRight(whole, V, 4))
    lengths = set()
    for i, token in enumerate(steps):
        assert torch.equal(token, whole[:, 5 + i, None])
        length = steps.loop.reader.length
        if length in lengths:
            continue
        lengths.add(length)
        with kv_cache(model, CACHES[cache], 18):
            model(whole[:, :5], pos=torch.arange(5))
            for place in range(5, length):
                model(whole[:, place, None], pos=torch.tensor([place]))
            for found, owner in zip(steps.loop.reader.caches, cache_owners(model), strict=True):
                plain = owner.cache
                assert (found.length, found.last) == (length, plain.last)
                assert found.nbytes == plain.nbytes
                assert torch.equal(found.pos, plain.pos)
                for a, b in zip(found.tensors(), plain.tensors(), strict=True):
                    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert len(lengths) == steps.stats.passes > 4


# ------------------------------------------------------------------ passes and proposals, counted


@pytest.mark.parametrize("n_new", [1, 5, 12])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_draft_that_is_always_right_or_never(k, n_new):
    model = build()
    whole = complete(model, text(5, 2), n_new)
    for kind, passes in ((Right, -(-n_new // (k + 1))), (Wrong, n_new)):
        calls = []
        steps = generate(model, whole[:, :5], n_new, draft=kind(whole, V, k))
        hook = model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        list(steps)
        hook.remove()
        assert len(calls) == passes == steps.stats.passes
        assert sum(steps.stats.advances) == n_new
        looked_at = steps.stats.accepted + steps.stats.rejected
        assert n_new > 1 or looked_at == 0, "the last token is never read"
    assert (steps.stats.accepted, steps.stats.acceptance_rate) == (0, 0)


@pytest.mark.parametrize("how", [{}, {"top_k": 4, "temperature": 0.8}, {"greedy": True}], ids=str)
def test_a_model_agrees_with_itself(how):
    for model, inside in ((build(), False), (tiny_model(), True)):
        prompt = text(3, 2)
        with exact(model) if inside else torch.no_grad():
            steps = generate(model, prompt, 19, SamplingParams(**how), draft=DraftModel(model, 4))
            list(steps)
        assert steps.stats.rejected == 0
        assert steps.stats.advances == [5, 5, 5, 4]
        assert steps.stats.accepted == 2 * (4 + 4 + 4 + 3)
        assert steps.stats.acceptance_rate == 1


def by_hand(right: list[list[bool]], k: int) -> DraftStats:
    """The rule again, in other words: each text stands at a place, and knows up to another."""
    n_new = len(right[0])
    known = [0 for _ in right]
    place = 0
    stats = DraftStats()
    while place < n_new:
        end = min(place + k, n_new - 1)
        for i, row in enumerate(right):
            at = max(known[i], place)
            while at < end and row[at]:
                stats.accepted += 1
                at += 1
            stats.rejected += at < end
            known[i] = max(known[i], at + 1)
        stats.advances.append(min(known) - place)
        place = min(known)
    return stats


@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 16),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.integers(0, 99),
)
def test_the_stats_are_what_the_rule_says(batch, k, n_new, wrong, seed):
    """Including what a text has verified before its batch can advance: it is not lost again."""
    model = build()
    prompt = text(3, batch)
    whole = torch.cat([prompt, complete(model, prompt, n_new)[:, 3:]], dim=1)
    draft = PartlyRight(whole, V, k, wrong, seed)
    steps = generate(model, prompt, n_new, draft=draft)
    assert torch.equal(torch.cat([prompt, *steps], dim=1), whole)
    assert steps.stats == by_hand((draft.texts == whole)[:, 3:].tolist(), k)


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("a", [0.0, 0.8, 1.0])
def test_expected_tokens(a, k):
    assert expected_tokens(a, k) == pytest.approx(sum(a**i for i in range(k + 1)), rel=1e-12)
    right = (torch.rand(1, 10_000, generator=seeded(2)) < a).tolist()
    stats = by_hand(right, k)
    assert 10_000 / stats.passes == pytest.approx(expected_tokens(a, k), rel=0.05)
    assert stats.acceptance_rate == pytest.approx(a, abs=0.03)


# ------------------------------------------------------------------ one draft, several generations


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["table", "look-up", "small", "itself"])
def test_two_generations_with_one_draft_know_nothing_of_each_other(draft):
    """They begin alike, and continue as one text and as three, sampled in two ways."""
    model = build()
    prompts = (text(4), text(4).expand(3, -1))
    settings = (SamplingParams(top_k=2), SamplingParams(temperature=1.5))
    whole = [complete(model, prompts[i], 20, settings[i], generator=seeded(i)) for i in (0, 1)]
    made = DRAFTS[draft](whole[0], model)

    def begin(i, draft):
        return generate(model, prompts[i], 20, settings[i], draft=draft, generator=seeded(i))

    pair = [begin(i, made) for i in (0, 1)]
    found = list(zip(*pair, strict=True))
    for i, steps in enumerate(pair):
        assert torch.equal(torch.cat([tokens[i] for tokens in found], dim=1), whole[i][:, 4:])
        alone = begin(i, DRAFTS[draft](whole[0], model))
        list(alone)
        assert steps.stats == alone.stats


# ------------------------------------------------------------------ a draft that fails


class Failing(Draft):
    """Gives what it is told to, from its fourth guess on; before, tokens 0."""

    def __init__(self, what):
        super().__init__(3)
        self.what = what

    def begin(self, prompt, sampling):
        calls = []

        def guess(text, noise):
            calls.append(1)
            if len(calls) < 4:
                return torch.zeros(len(text), 1, dtype=torch.long)
            if isinstance(self.what, Exception):
                raise self.what
            return self.what

        return guess


ONE = torch.ones(2, 1, dtype=torch.long)
WRONG = {
    "its own error": (ZeroDivisionError("its own"), "its own"),
    "an unknown token": (ONE + 12, "proposed tokens 13 to 13; the vocabulary has 0 to 12"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_draft_that_fails_half_way_does_no_harm(case):
    model = build()
    (what, words) = WRONG[case]
    before = state_of(model)
    whole = complete(model, text(5, 2), 12)
    other = generate(model, whole[:, :5], 12, draft=DraftModel(model, 3))
    first = [next(other) for _ in range(5)]  # begun before, finished after
    steps = generate(model, whole[:, :5], 12, draft=Failing(what))
    with pytest.raises((ValueError, ZeroDivisionError), match=words):
        list(steps)
    assert state_of(model) == before
    assert list(steps) == []
    assert torch.equal(torch.cat([*first, *other], dim=1), whole[:, 5:])


# ------------------------------------------------------------------ the rejection rule


def random_pairs(n: int, vocab: int, seed: int, least: float = 0.0):
    """Probabilities p and q (n, vocab), from alike (with `least`: not quite) to far apart."""
    base = torch.randn(n, vocab, generator=seeded(seed), dtype=torch.float64)
    far = least + torch.rand(n, 1, generator=seeded(seed + 1), dtype=torch.float64) * 3
    return base.softmax(-1), (
        base + far * torch.randn(n, vocab, generator=seeded(seed + 2))
    ).softmax(-1)


def chi_square(found: torch.Tensor, p: torch.Tensor) -> float:
    """Σ (observed - expected)² / expected: about the number of tokens less one, if from p."""
    counts = torch.bincount(found.flatten(), minlength=len(p))
    wanted = p * found.numel()
    return float(((counts - wanted) ** 2 / wanted).sum())


# The rule that is usually published stands in notebook 07, to be read beside ours.
RULE = cells_of(
    7, "rule", "rejection", imports="import torch; from nanogpt.sampling import draw_noise"
)


def drawn_by_rejection(p, q, n, seed, shared):
    p = p.expand(n, -1)
    q = q.expand(n, -1)
    noise, fresh = (draw_noise(1, n, p.shape[-1], seeded(seed + i))[0] for i in (0, 1))
    token = (q / noise).argmax(-1, keepdim=True)
    u = torch.rand(n, 1, generator=seeded(seed + 2))
    return RULE["accept_or_resample"](p, q, token, u, noise if shared else fresh)


@pytest.mark.parametrize("pair", range(2))
def test_the_rejection_rule_keeps_the_distribution_and_shared_noise_would_not(pair):
    """Of 8 tokens, 7 degrees of freedom: above 29.9 lies one in ten thousand."""
    p, q = (x[pair] for x in random_pairs(5, 8, 40, least=1.0))
    tokens, accepted = drawn_by_rejection(p, q, 100_000, 10 * pair, shared=False)
    assert chi_square(tokens, p) < 29.9
    assert chi_square(tokens, q) > 1000
    tv = float((p - q).abs().sum() / 2)
    assert float(accepted.double().mean()) == pytest.approx(1 - tv, abs=0.006)
    mistaken, _ = drawn_by_rejection(p, q, 100_000, 10 * pair, shared=True)
    assert chi_square(mistaken, p) > 100, "what was rejected says something about its noise"
