"""Speculative decoding: passes and proposals counted, caches, several generations, refusals.

That the tokens are those of plain decoding, with any draft, is in tests/test_same_tokens.py.
"""

import pytest
import torch
from conftest import FORMS, has_cache, name, seeded, state_of, tiny_model
from decoding_fixtures import BLOCK, V, build, text
from draft_fixtures import PartlyRight, Right, Wrong
from hypothesis import given
from hypothesis import strategies as st

from nanogpt.cache.attach import cache_owners, kv_cache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.int8 import Int8Cache
from nanogpt.cache.paged import PagedCache
from nanogpt.cache.rolling import RollingCache
from nanogpt.cache.static import StaticCache
from nanogpt.decoding.drafts import Draft, DraftModel, NGram, PromptLookup
from nanogpt.decoding.generate import complete, generate
from nanogpt.decoding.sampling import SamplingParams, draw_noise
from nanogpt.decoding.speculative import DraftStats, expected_tokens, matching
from nanogpt.engines.eager import Uncached
from nanogpt.engines.native import Native
from nanogpt.model.exact import exact
from nanogpt.verify.compare import draw_margins, forced_logits

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


def assert_same_tokens(model, whole, T, draft, cache=DynamicCache):
    steps = list(generate(model, whole[:, :T], whole.shape[1] - T, draft=draft, cache=cache))
    assert torch.equal(torch.cat([whole[:, :T], *steps], dim=1), whole)


# ------------------------------------------------------------------ same tokens, beyond the matrix


@pytest.mark.parametrize("k", [1, 3, BLOCK])
def test_any_number_of_proposals_gives_the_same_tokens(k):
    model = build()
    whole = complete(model, text(2, 3), BLOCK - 1)
    for draft in (NGram(whole.flatten(), V, 3, k), DraftModel(model, k), PartlyRight(whole, V, k)):
        assert_same_tokens(model, whole, 2, draft)


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_cache_of_8_bits_gives_its_own_tokens_with_any_draft(draft):
    """It rounds, so its tokens are not those of other caches: they are compared with its own."""
    model = build()
    for batch in (1, 3):
        whole = complete(model, text(5, batch), 20, cache=Int8Cache)
        assert_same_tokens(model, whole, 5, DRAFTS[draft](whole, model), Int8Cache)


@pytest.mark.parametrize(("per_head", "cache"), [(True, "dynamic"), (False, "int8")])
def test_in_exact_mode_float32_too(per_head, cache):
    """The bits of a row do not depend on how many are computed with it, so no near tie differs."""
    model, prompt = tiny_model(per_head=per_head), text(4, 2)
    with exact(model):
        whole = complete(model, prompt, 15, cache=CACHES[cache])
        for draft in ("table", "itself", "partly right"):
            assert_same_tokens(model, whole, 4, DRAFTS[draft](whole, model), CACHES[cache])


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_in_float32_no_token_differs_but_by_a_near_tie(per_head):
    model, n_new = tiny_model(per_head=per_head), 18
    for seed in range(3):
        noise = draw_noise(n_new, 1, V, seeded(seed))
        whole = complete(model, text(5, seed=seed), n_new, noise=noise)
        found = complete(
            model, text(5, seed=seed), n_new, noise=noise, draft=NGram(whole[0], V, 3, 5)
        )
        wrong = (found != whole)[0].nonzero()
        if len(wrong):
            step = int(wrong[0]) - 5
            margin = draw_margins(forced_logits(model, whole, 5, DynamicCache), noise)[step]
            assert margin < 1e-3, "more than rounding"


@pytest.mark.parametrize("draft", DRAFTS)
def test_one_new_token_needs_no_proposal(draft):
    model = build()
    whole = complete(model, text(6, 2), 1)
    steps = generate(model, whole[:, :6], 1, draft=DRAFTS[draft](whole, model))
    assert torch.equal(next(steps), whole[:, 6:])
    assert (steps.stats.offered, steps.stats.passes) == (0, 1)
    with pytest.raises(StopIteration):
        next(steps)


def test_a_text_without_end():
    model = build(rope=True, window=6, sinks=1)
    for cache in (RollingCache, DynamicCache):
        whole = complete(model, text(3), 2 * BLOCK, cache=cache)
        for draft in ("itself", "partly right"):
            assert_same_tokens(model, whole, 3, DRAFTS[draft](whole, model), cache)


def test_tokens_of_32_bits_and_noise_given():
    model, noise = build(), draw_noise(9, 2, V, seeded(4))
    whole = complete(model, text(4, 2), 9, noise=noise)
    for draft in DRAFTS:
        steps = generate(model, text(4, 2).int(), 9, noise=noise, draft=DRAFTS[draft](whole, model))
        found = list(steps)
        assert all(token.dtype == torch.int64 for token in found)
        assert torch.equal(torch.cat(found, dim=1), whole[:, 4:])


def test_the_global_random_state_is_left_alone(ambient_rng):
    model = build()
    complete(model, text(4), 9, draft=DraftModel(model))


# ------------------------------------------------------------------ no rejected row is kept


@torch.no_grad()
@pytest.mark.parametrize("cache", CACHES)
def test_the_caches_hold_what_plain_decoding_holds(cache):
    """At every token of the text, of three texts that are right about different tokens."""
    model = build(n_kv_head=2, window=6, sinks=2, rope=True, ngrams=3)
    whole = complete(model, text(5, 3), 14, cache=CACHES[cache])
    steps = generate(model, whole[:, :5], 14, cache=CACHES[cache], draft=PartlyRight(whole, V, 4))
    lengths = set()
    for _ in steps:
        length = steps.decoder.length
        if length in lengths:
            continue
        lengths.add(length)
        with kv_cache(model, CACHES[cache], 18):
            model(whole[:, :5], pos=torch.arange(5))
            for place in range(5, length):
                model(whole[:, place, None], pos=torch.tensor([place]))
            for found, owner in zip(steps.decoder.caches, cache_owners(model), strict=True):
                plain = owner.cache
                assert (found.length, found.last, found.nbytes) == (
                    length,
                    plain.last,
                    plain.nbytes,
                )
                assert torch.equal(found.pos, plain.pos)
                for a, b in zip(found.tensors(), plain.tensors(), strict=True):
                    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert len(lengths) == steps.stats.passes > 4


# ------------------------------------------------------------------ passes and proposals, counted


def count_passes(model, run):
    calls = []
    hook = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        run()
    finally:
        hook.remove()
    return len(calls)


@pytest.mark.parametrize("n_new", [1, 5, 12])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_draft_that_is_always_right_or_never(k, n_new):
    model = build()
    whole = complete(model, text(5, 2), n_new)
    for kind, passes in ((Right, -(-n_new // (k + 1))), (Wrong, n_new)):
        steps = generate(model, whole[:, :5], n_new, draft=kind(whole, V, k))
        assert count_passes(model, lambda steps=steps: list(steps)) == passes == steps.stats.passes
        assert sum(steps.stats.advances) == n_new == len(steps.stats.drafted)
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
        assert steps.stats.accepted == steps.stats.offered == 2 * (4 + 4 + 4 + 3)
        assert steps.stats.acceptance_rate == 1


def by_hand(right: list[list[bool]], k: int) -> DraftStats:
    """The rule again, in other words: each text stands at a place, and knows up to another."""
    n_new, known, place, stats = len(right[0]), [0 for _ in right], 0, DraftStats()
    stats.drafted = [[False] * len(right) for _ in range(n_new)]
    while place < n_new:
        end = min(place + k, n_new - 1)
        for i, row in enumerate(right):
            stats.offered += max(0, end - max(known[i], place))
            at = max(known[i], place)
            while at < end and row[at]:
                stats.drafted[at][i] = True
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
    model, prompt = build(), text(3, batch)
    whole = torch.cat([prompt, complete(model, prompt, n_new)[:, 3:]], dim=1)
    draft = PartlyRight(whole, V, k, wrong, seed)
    steps = generate(model, prompt, n_new, draft=draft)
    assert torch.equal(torch.cat([prompt, *steps], dim=1), whole)
    assert steps.stats == by_hand((draft.texts == whole)[:, 3:].tolist(), k)


def test_after_each_token_the_stats_are_those_of_the_passes_made():
    model = build()
    whole = complete(model, text(3), 12)
    steps = generate(model, whole[:, :3], 12, draft=Right(whole, V, 3))
    assert steps.stats == DraftStats()
    for i, _ in enumerate(steps):
        assert steps.stats.passes == i // 4 + 1
        assert steps.stats.drafted == [[True], [True], [True], [False]] * (i // 4 + 1)


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("a", [0.0, 0.8, 1.0])
def test_expected_tokens(a, k):
    assert expected_tokens(a, k) == pytest.approx(sum(a**i for i in range(k + 1)), rel=1e-12)
    right = (torch.rand(1, 10_000, generator=seeded(2)) < a).tolist()
    stats = by_hand(right, k)
    assert 10_000 / stats.passes == pytest.approx(expected_tokens(a, k), rel=0.05)
    assert stats.acceptance_rate == pytest.approx(a, abs=0.03)


def test_expected_tokens_of_no_probability():
    for a, k in ((-0.1, 3), (1.1, 3), (0.5, -1)):
        with pytest.raises(ValueError, match=r"a=.*: must be a number in \[0, 1\]|k=-1: must be"):
            expected_tokens(a, k)


def test_matching_counts_the_first_that_are_equal():
    assert matching([], [3]) == 0
    assert matching([1, 2, 3], [1, 2, 3, 4]) == 3
    assert matching([1, 2, 3], [1, 9, 3, 4]) == 1
    assert matching([1, 2, 3], [9]) == 0


# ------------------------------------------------------------------ one draft, several generations


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["table", "look-up", "small", "itself"])
def test_two_generations_with_one_draft_know_nothing_of_each_other(draft):
    """They begin alike, and continue as one text and as three, sampled in two ways."""
    model, prompts = build(), (text(4), text(4).expand(3, -1))
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


@pytest.mark.parametrize("draft", DRAFTS)
def test_an_iterator_left_half_way_leaves_the_model_as_it_was(draft):
    model = tiny_model().double().train()
    model.blocks[0].eval()
    before = state_of(model)
    whole = complete(model, text(5), 12)
    steps = generate(model, whole[:, :5], 12, draft=DRAFTS[draft](whole, model))
    for _ in range(6):
        next(steps)
        assert state_of(model) == before
        assert torch.is_grad_enabled()
    steps.close()
    assert list(steps) == []
    assert torch.equal(complete(model, whole[:, :5], 12), whole)


def test_a_small_model_in_training_mode_decodes_in_eval_mode_and_stays_as_it_was():
    model, small = build(), tiny_model().double().train()  # with dropout
    whole = complete(model, text(5), 15)
    steps = generate(model, whole[:, :5], 15, draft=DraftModel(small))
    assert torch.equal(torch.cat(list(steps), dim=1), whole[:, 5:])
    assert small.training
    assert not has_cache(small)
    quiet = generate(model, whole[:, :5], 15, draft=DraftModel(small.eval()))
    list(quiet)
    assert steps.stats == quiet.stats


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"draft": PromptLookup}, "pass a draft that you built, as in draft=PromptLookup"),
        ({"draft": 4}, "draft=4: pass a draft"),
        (
            {"draft": PromptLookup(), "cache": None},
            "a draft needs a cache, from which rejected tokens are taken back",
        ),
        (
            {"draft": DraftModel(build(n_embd=16), engine=Native)},
            "the draft is decoded by Native, which goes with",
        ),
        (
            {"draft": DraftModel(build(n_embd=16), engine=Native), "engine": Uncached},
            "the draft is decoded by Native, which goes with",
        ),
        (
            {"draft": PromptLookup(), "past_block": "slide", "n_new": 40},
            "a draft needs a cache, .* where the window slides",
        ),
        (
            {"draft": PromptLookup(), "n_new": 40},
            "a prompt of 4 and 40 new tokens exceed block_size 32",
        ),
        ({"draft": PromptLookup(k=33)}, "k=33 > block_size 32: propose fewer tokens"),
        ({"draft": NGram(torch.arange(5), 7)}, "this NGram knows 7 tokens, the model 13"),
        ({"draft": Right(torch.ones(1, 9), 14)}, "this Right knows 14 tokens, the model 13"),
        (
            {"draft": DraftModel(build(vocab_size=9))},
            "this DraftModel knows 9 tokens, the model 13",
        ),
        (
            {"draft": DraftModel(build(torch.float32))},
            "is torch.float32 on cpu, the target torch.float64 on cpu",
        ),
        (
            {"draft": DraftModel(build(block_size=8))},
            "the draft model reads 12 of them, and has block_size 8",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_the_call(settings, words, recwarn):
    model = build()
    before = state_of(model)
    with pytest.raises(ValueError, match=words):
        generate(model, text(4), **({"n_new": 10} | settings))
    assert state_of(model) == before
    assert not recwarn.list


def test_a_small_model_on_another_device():
    small = build(seed=5, n_layer=1).to("meta")
    with pytest.raises(ValueError, match="on meta, the target torch.float64 on cpu: move or cast"):
        generate(build(), text(4), 5, draft=DraftModel(small))


def test_a_small_block_that_is_just_long_enough():
    model, small = build(), build(block_size=10)
    whole = complete(model, text(4), 8)
    assert_same_tokens(model, whole, 4, DraftModel(small))
    with pytest.raises(ValueError, match="reads 11 of them, and has block_size 10"):
        generate(model, text(4), 9, draft=DraftModel(small))


class OnlyUpdate:
    """A cache of somebody else's, which knows no way back."""

    def __init__(self, max_len):
        self.update = DynamicCache().update


def test_a_cache_that_cannot_go_back():
    model = build()
    assert torch.equal(complete(model, text(4), 5, cache=OnlyUpdate), complete(model, text(4), 5))
    with pytest.raises(ValueError, match="OnlyUpdate has no rewind"):
        generate(model, text(4), 5, cache=OnlyUpdate, draft=PromptLookup())


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


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (ZeroDivisionError("its own"), "its own"),
        (
            torch.zeros(2, dtype=torch.long),
            r"proposed \(2,\), torch.int64, cpu: tokens \(2, 1\), .*or None",
        ),
        (torch.zeros(2, 2, dtype=torch.long), r"proposed \(2, 2\), torch.int64, cpu"),
        (torch.zeros(1, 1, dtype=torch.long), r"proposed \(1, 1\), torch.int64, cpu"),
        (torch.zeros(2, 1), r"proposed \(2, 1\), torch.float32, cpu"),
        (torch.zeros(2, 1, dtype=torch.int32), r"proposed \(2, 1\), torch.int32, cpu"),
        (
            torch.zeros(2, 1, dtype=torch.long, device="meta"),
            r"proposed \(2, 1\), torch.int64, meta",
        ),
        (torch.tensor([[1], [13]]), "proposed tokens 1 to 13; the vocabulary has 0 to 12"),
        (torch.tensor([[-1], [1]]), "proposed tokens -1 to 1; the vocabulary has 0 to 12"),
        ([[1], [1]], "proposed list: tokens"),
        (7, "proposed int: tokens"),
    ],
)
def test_a_draft_that_fails_half_way_does_no_harm(what, words):
    model, draft = build(), Failing(what)
    before, whole = state_of(model), complete(model, text(5, 2), 12)
    other = generate(
        model, whole[:, :5], 12, draft=DraftModel(model, 3)
    )  # begun before, finished after
    first = [next(other) for _ in range(5)]
    steps = generate(model, whole[:, :5], 12, draft=draft)
    with pytest.raises((ValueError, ZeroDivisionError), match=words):
        list(steps)
    assert state_of(model) == before
    assert list(steps) == []
    assert torch.equal(torch.cat([*first, *other], dim=1), whole[:, 5:])


def test_a_model_that_fails_half_way_is_as_it_was():
    model = build(seed=8)
    before, calls = state_of(model), []

    def fail(*_):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    hook = model.blocks[1].register_forward_hook(fail)
    draft = DraftModel(model, 2)
    with pytest.raises(KeyboardInterrupt):
        list(generate(model, text(5), 9, draft=draft))
    hook.remove()
    assert state_of(model) == before
    assert_same_tokens(model, complete(model, text(5), 9), 5, draft)


def test_every_engine_takes_a_draft_and_may_refuse_that_drafts_engine():
    model = build()
    whole = complete(model, text(4), 9)
    steps = generate(model, whole[:, :4], 9, engine=Uncached, draft=Right(whole, V, 4))
    assert torch.equal(torch.cat([whole[:, :4], *steps], dim=1), whole)
    assert steps.stats.advances == [5, 4]
