"""Speculative decoding: the tokens of plain decoding with any draft, passes counted, two laws of chance."""

import functools

import pytest
import torch
from conftest import FORMS, has_cache, name, seeded, state_of, tiny_model
from draft_fixtures import Right, Wrong
from hypothesis import given
from hypothesis import strategies as st

from nanogpt.cache.attach import cache_owners, kv_cache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.int8 import Int8Cache
from nanogpt.cache.paged import PagedCache
from nanogpt.cache.rolling import RollingCache
from nanogpt.cache.static import StaticCache
from nanogpt.config import GPTConfig
from nanogpt.decoding.drafts import Draft, DraftModel, NGram, PromptLookup
from nanogpt.decoding.generate import complete, generate
from nanogpt.decoding.rejection import keep_or_redraw, rejection
from nanogpt.decoding.sampling import draw_noise, sample
from nanogpt.decoding.speculative import DraftStats, expected_tokens, matching
from nanogpt.engines.eager import Batched
from nanogpt.engines.native import Native
from nanogpt.model.exact import exact
from nanogpt.model.gpt import GPT
from nanogpt.verify.compare import draw_margins, forced_logits

V, BLOCK, WINDOW = 13, 32, 6


class Pages(PagedCache):
    page = 4


CACHES = {
    "dynamic": DynamicCache,
    "static": StaticCache,
    "ring": RollingCache,
    "pages": Pages,
    "int8": Int8Cache,
}
SAMPLING = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 4, "temperature": 0.8},
    "top_p": {"top_p": 0.7},
    "greedy": {"greedy": True},
}
MODELS = {
    "rope": {"rope": True},
    "window": {"window": WINDOW},
    "sinks": {"window": WINDOW, "sinks": 2, "rope": True},
    "mixed": {"window": WINDOW, "full_every": 2},
    "window of 1": {"window": 1, "rope": True},
    "n-grams": {"ngrams": 3},
    "window, n-grams": {"ngrams": 3, "window": WINDOW, "rope": True},
    "GQA": {"n_kv_head": 2},
    "all": {
        "rope": True,
        "n_kv_head": 1,
        "window": WINDOW,
        "sinks": 1,
        "full_every": 2,
        "ngrams": 3,
        "qk_norm": True,
        "rms_norm": True,
        "relu2": True,
        "bias": False,
    },
}


@functools.cache
def build(dtype=torch.float64, seed=3, **changes) -> GPT:
    shape = {
        "vocab_size": V,
        "block_size": BLOCK,
        "n_layer": 2,
        "n_head": 4,
        "n_embd": 32,
        "per_head": False,
    }
    model = GPT(GPTConfig(**(shape | changes)), generator=seeded(seed)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(25)
    return model.to(dtype)


def text(length, batch=1, seed=7):
    return torch.randint(V, (batch, length), generator=seeded(seed))


def flawed(whole, wrong: float, seed: int = 0):
    """The tokens of `whole`, and a random part of them changed, in each text of the batch another."""
    changed = torch.rand(whole.shape, generator=seeded(seed)) < wrong
    return torch.where(changed, (whole + 5) % V, whole)


DRAFTS = {
    "pairs": lambda whole, model, k: NGram(whole.flatten(), V, 2, k),
    "triples": lambda whole, model, k: NGram(text(500)[0], V, 3, k),
    "look-up": lambda whole, model, k: PromptLookup(3, k),
    "small": lambda whole, model, k: DraftModel(
        build(model.lm_head.weight.dtype, 4, n_layer=1, n_embd=16), k
    ),
    "itself": lambda whole, model, k: DraftModel(model, k),
    "right": lambda whole, model, k: Right(whole, V, k),
    "wrong": lambda whole, model, k: Wrong(whole, V, k),
    "sometimes right": lambda whole, model, k: Right(flawed(whole, 0.3), V, k),
}


@functools.cache
def expected(cache, batch, sampling, length, n_new):
    model = build(**({"window": WINDOW} if cache == "ring" else {}))
    return model, complete(
        model, text(length, batch), n_new, cache=CACHES[cache], **SAMPLING[sampling]
    )


def assert_same_tokens(model, whole, T, draft, cache, **settings):
    steps = list(
        generate(model, whole[:, :T], whole.shape[1] - T, draft=draft, cache=cache, **settings)
    )
    assert all(step.shape == (len(whole), 1) for step in steps)
    assert torch.equal(torch.cat([whole[:, :T], *steps], dim=1), whole)


# ------------------------------------------------------------------ the same tokens


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("draft", DRAFTS)
def test_with_any_draft_the_tokens_are_those_of_plain_decoding(draft, cache):
    for k in range(1, 9):
        batch, sampling = (3, 1)[k % 2], list(SAMPLING)[k % len(SAMPLING)]
        model, whole = expected(cache, batch, sampling, 5, 11)
        made = DRAFTS[draft](whole, model, k)
        assert_same_tokens(model, whole, 5, made, CACHES[cache], **SAMPLING[sampling])


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("draft", DRAFTS)
def test_however_they_are_sampled(draft, sampling):
    for cache in CACHES:
        for batch in (1, 3):
            model, whole = expected(cache, batch, sampling, 5, 11)
            made = DRAFTS[draft](whole, model, 3)
            assert_same_tokens(model, whole, 5, made, CACHES[cache], **SAMPLING[sampling])


@pytest.mark.parametrize("architecture", MODELS)
def test_whatever_the_architecture(architecture):
    model = build(**MODELS[architecture])
    for cache in CACHES.values():
        whole = complete(model, text(9, 2), 12, cache=cache)
        for draft in ("itself", "sometimes right", "small"):
            assert_same_tokens(model, whole, 9, DRAFTS[draft](whole, model, 4), cache)


@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize("cache", ["dynamic", "static", "pages", "int8"])
def test_in_exact_mode_float32_too(per_head, cache):
    """The bits of a row do not depend on how many are computed with it: no near tie can fall otherwise."""
    model, prompt = tiny_model(per_head=per_head), text(4, 2)
    with exact(model):
        whole = complete(model, prompt, 15, cache=CACHES[cache])
        for draft in ("triples", "itself", "sometimes right"):
            assert_same_tokens(model, whole, 4, DRAFTS[draft](whole, model, 4), CACHES[cache])


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_in_float32_no_token_differs_but_by_a_near_tie(per_head):
    model, n_new = tiny_model(per_head=per_head), 18
    for seed in range(8):
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


@pytest.mark.parametrize("cache", ["dynamic", "static", "pages", "int8"])
@pytest.mark.parametrize("length", [1, 2, 20, BLOCK - 1, BLOCK])
def test_to_the_end_of_the_block(length, cache):
    model, n_new = build(), BLOCK + 1 - length  # the last token is never read back
    whole = complete(model, text(length, 2), n_new, cache=CACHES[cache])
    for draft in DRAFTS:
        for k in (3, BLOCK):
            assert_same_tokens(model, whole, length, DRAFTS[draft](whole, model, k), CACHES[cache])


@pytest.mark.parametrize("draft", DRAFTS)
def test_one_new_token_needs_no_proposal(draft):
    model = build()
    whole = complete(model, text(6, 2), 1)
    steps = generate(model, whole[:, :6], 1, draft=DRAFTS[draft](whole, model, 4))
    assert torch.equal(next(steps), whole[:, 6:])
    assert (steps.stats.offered, steps.stats.passes) == (0, 1)
    with pytest.raises(StopIteration):
        next(steps)


def test_a_text_without_end():
    model = build(rope=True, window=WINDOW, sinks=1)
    for cache in (RollingCache, DynamicCache):
        whole = complete(model, text(3), 3 * BLOCK, cache=cache)
        for draft in ("itself", "sometimes right", "look-up"):
            assert_same_tokens(model, whole, 3, DRAFTS[draft](whole, model, 5), cache)


def test_tokens_of_32_bits_and_noise_given():
    model, noise = build(), draw_noise(9, 2, V, seeded(4))
    whole = complete(model, text(4, 2), 9, noise=noise)
    for draft in DRAFTS:
        steps = generate(
            model, text(4, 2).int(), 9, noise=noise, draft=DRAFTS[draft](whole, model, 3)
        )
        found = list(steps)
        assert all(token.dtype == torch.int64 for token in found)
        assert torch.equal(torch.cat(found, dim=1), whole[:, 4:])


def test_the_global_random_state_is_left_alone(ambient_rng):
    model = build()
    complete(model, text(4), 9, draft=DraftModel(model))
    rejection(build(torch.float32), NGram(text(50)[0], V).logits, text(4), 5, seeded(1))


# ------------------------------------------------------------------ no rejected row is kept


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["GQA", "window, n-grams", "sinks"])
@pytest.mark.parametrize("cache", CACHES)
def test_the_caches_hold_what_plain_decoding_holds(cache, architecture):
    """At every token of the text, of three texts that are right about different tokens."""
    model = build(**MODELS[architecture])
    whole = complete(model, text(5, 3), 14, cache=CACHES[cache])
    steps = generate(
        model, whole[:, :5], 14, cache=CACHES[cache], draft=Right(flawed(whole, 0.3), V, 4)
    )
    lengths = set()
    for _ in steps:
        length = steps.reader.length
        if length in lengths:
            continue
        lengths.add(length)
        with kv_cache(model, CACHES[cache], 18):
            model(whole[:, :5], pos=torch.arange(5))
            for place in range(5, length):
                model(whole[:, place, None], pos=torch.tensor([place]))
            for found, owner in zip(steps.reader.caches, cache_owners(model), strict=True):
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


@pytest.mark.parametrize("n_new", [1, 2, 5, 12, 20])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_a_draft_that_is_always_right_or_never(k, n_new):
    model = build()
    whole = complete(model, text(5, 2), n_new)
    for kind, passes in ((Right, -(-n_new // (k + 1))), (Wrong, n_new)):
        steps = generate(model, whole[:, :5], n_new, draft=kind(whole, V, k))
        assert count_passes(model, lambda steps=steps: list(steps)) == passes == steps.stats.passes
        assert sum(steps.stats.advances) == n_new == len(steps.stats.drafted)
    assert (steps.stats.accepted, steps.stats.rate) == (0, 0)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_a_model_agrees_with_itself(sampling):
    for model, inside in ((build(), False), (tiny_model(), True)):
        prompt = text(3, 2)
        with exact(model) if inside else torch.no_grad():
            steps = generate(model, prompt, 19, draft=DraftModel(model, 4), **SAMPLING[sampling])
            list(steps)
        assert steps.stats.rejected == 0
        assert steps.stats.advances == [5, 5, 5, 4]
        assert steps.stats.accepted == steps.stats.offered == 2 * (4 + 4 + 4 + 3)
        assert steps.stats.rate == 1


def by_hand(right: list[list[bool]], k: int) -> DraftStats:
    """The rule again, in the words of a board game: each text stands at a place, and knows up to another."""
    n_new, known, place, tally = len(right[0]), [0 for _ in right], 0, DraftStats()
    tally.drafted = [[False] * len(right) for _ in range(n_new)]
    while place < n_new:
        end = min(place + k, n_new - 1)
        for i, row in enumerate(right):
            tally.offered += max(0, end - max(known[i], place))
            at = max(known[i], place)
            while at < end and row[at]:
                tally.drafted[at][i] = True
                tally.accepted += 1
                at += 1
            tally.rejected += at < end
            known[i] = max(known[i], at + 1)
        tally.advances.append(min(known) - place)
        place = min(known)
    return tally


@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 16),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.integers(0, 99),
)
def test_the_tally_is_what_the_rule_says(batch, k, n_new, wrong, seed):
    """And with it the known tokens of a text that is ahead of its batch: they are not lost again."""
    model, prompt = build(), text(3, batch)
    whole = torch.cat([prompt, complete(model, prompt, n_new)[:, 3:]], dim=1)
    told = flawed(whole, wrong, seed)
    steps = generate(model, prompt, n_new, draft=Right(told, V, k))
    assert torch.equal(torch.cat([prompt, *steps], dim=1), whole)
    assert steps.stats == by_hand((told == whole)[:, 3:].tolist(), k)


def test_after_each_token_the_tally_is_that_of_the_passes_made():
    model = build()
    whole = complete(model, text(3), 12)
    steps = generate(model, whole[:, :3], 12, draft=Right(whole, V, 3))
    assert steps.stats == DraftStats()
    for i, _ in enumerate(steps):
        assert steps.stats.passes == i // 4 + 1
        assert steps.stats.drafted == [[True], [True], [True], [False]] * (i // 4 + 1)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("a", [0.0, 0.3, 0.8, 1.0])
def test_expected_tokens(a, k):
    assert expected_tokens(a, k) == pytest.approx(sum(a**i for i in range(k + 1)), rel=1e-12)
    right = (torch.rand(1, 30_000, generator=seeded(2)) < a).tolist()
    tally = by_hand(right, k)
    assert 30_000 / tally.passes == pytest.approx(expected_tokens(a, k), rel=0.03)
    assert tally.rate == pytest.approx(a, abs=0.02)


def test_expected_tokens_of_no_probability():
    for a, k in ((-0.1, 3), (1.1, 3), (0.5, -1)):
        with pytest.raises(ValueError, match="a probability from 0 to 1"):
            expected_tokens(a, k)


def test_agreement():
    assert matching([], [3]) == 0
    assert matching([1, 2, 3], [1, 2, 3, 4]) == 3
    assert matching([1, 2, 3], [1, 9, 3, 4]) == 1
    assert matching([1, 2, 3], [9]) == 0


# ------------------------------------------------------------------ one draft, several generations


@pytest.mark.parametrize("draft", ["pairs", "look-up", "small", "itself"])
def test_two_generations_with_one_draft_know_nothing_of_each_other(draft):
    """They begin alike, and go on as one text and as three, sampled in two ways."""
    model, prompts = build(), (text(4), text(4).expand(3, -1))
    settings = ({"top_k": 2}, {"temperature": 1.5, "generator": seeded(9)})
    whole = [
        complete(model, prompt, 20, **how) for prompt, how in zip(prompts, settings, strict=True)
    ]
    settings[1]["generator"].manual_seed(9)
    made = DRAFTS[draft](whole[0], model, 3)
    pair = [generate(model, prompts[i], 20, draft=made, **settings[i]) for i in (0, 1)]
    found = list(zip(*pair, strict=True))
    for i, steps in enumerate(pair):
        assert torch.equal(torch.cat([tokens[i] for tokens in found], dim=1), whole[i][:, 4:])
        settings[1]["generator"].manual_seed(9)
        alone = generate(
            model, prompts[i], 20, draft=DRAFTS[draft](whole[0], model, 3), **settings[i]
        )
        list(alone)
        assert steps.stats == alone.stats


@pytest.mark.parametrize("draft", DRAFTS)
def test_an_iterator_left_half_way_leaves_the_model_as_it_was(draft):
    model = tiny_model().double().train()
    model.blocks[0].eval()
    before = state_of(model)
    whole = complete(model, text(5), 12)
    steps = generate(model, whole[:, :5], 12, draft=DRAFTS[draft](whole, model, 3))
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
            "a draft needs a cache: without one there is nothing to take",
        ),
        (
            {"draft": PromptLookup(), "engine": Batched},
            "Batched decodes token by token: Native takes a draft",
        ),
        ({"draft": DraftModel(build(n_embd=16), engine=Native)}, "engine=Native.* is for generate"),
        (
            {"draft": PromptLookup(), "past_block": "slide", "n_new": 40},
            "40 new .* pass block_size 32, where no",
        ),
        (
            {"draft": PromptLookup(), "n_new": 40},
            "a prompt of 4 and 40 new tokens pass block_size 32",
        ),
        ({"draft": PromptLookup(k=33)}, "k=33 > block_size 32: propose fewer tokens"),
        ({"draft": NGram(torch.arange(5), 7)}, "this NGram knows 7 tokens, the model 13"),
        ({"draft": Right(torch.ones(1, 9), 14)}, "this Right knows 14 tokens, the model 13"),
        ({"draft": Right(torch.ones(2, 9), V)}, "was told 2 texts on cpu, the prompt has 1 on cpu"),
        (
            {"draft": DraftModel(build(vocab_size=9))},
            "this DraftModel knows 9 tokens, the model 13",
        ),
        (
            {"draft": DraftModel(build(torch.float32))},
            "is torch.float32 on cpu, the model torch.float64 on cpu",
        ),
        (
            {"draft": DraftModel(build(block_size=8))},
            "the draft's model reads 12 of them, and has block_size 8",
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
    with pytest.raises(ValueError, match="on meta, the model torch.float64 on cpu: move or cast"):
        generate(build(), text(4), 5, draft=DraftModel(small))


def test_a_small_block_that_is_just_long_enough():
    model, small = build(), build(block_size=10)
    whole = complete(model, text(4), 8)
    assert_same_tokens(model, whole, 4, DraftModel(small), DynamicCache)
    with pytest.raises(ValueError, match="reads 11 of them, and has block_size 10"):
        generate(model, text(4), 9, draft=DraftModel(small))


@pytest.mark.parametrize("k", [0, -1, 2.0, True, None, "4"])
def test_k_is_a_number_of_tokens(k):
    with pytest.raises(ValueError, match=f"k={k!r}: propose a whole number of tokens"):
        PromptLookup(k=k)


@pytest.mark.parametrize("n", [0, -1, 2.0, True, None])
def test_n_is_a_number_of_tokens(n):
    with pytest.raises(ValueError, match=f"n={n!r}: look up a whole number"):
        PromptLookup(n)
    with pytest.raises(ValueError, match=f"n={n!r}: choose a whole number"):
        NGram(text(9)[0], V, n)


def test_a_table_of_what_it_cannot_count():
    with pytest.raises(ValueError, match=r"n=7: .* 13\*\*n numbers are at most 16777216"):
        NGram(text(90)[0], V, 7)
    for bad in (text(9), text(2)[0], text(9)[0].float(), [1, 2, 3]):
        with pytest.raises(ValueError, match="a tensor of at least n=3 tokens"):
            NGram(bad, V, 3)
    with pytest.raises(ValueError, match="holds tokens -1 to 3; the vocabulary has 0 to 12"):
        NGram(torch.tensor([3, 1, -1]), V, 2)
    with pytest.raises(ValueError, match="holds tokens 1 to 13; the vocabulary has 0 to 12"):
        NGram(torch.tensor([3, 1, 13]), V, 2)
    with pytest.raises(ValueError, match=r"the whole texts \(B, N\)"):
        Right(text(9)[0], V)


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

    def begin(self, prompt, settings):
        calls = []

        def guess(text, row):
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
    )  # begun before, goes on after
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
    assert_same_tokens(model, complete(model, text(5), 9), 5, draft, DynamicCache)


# ------------------------------------------------------------------ the drafts


def test_a_table_counts():
    a, b, c = 0, 1, 2
    pairs = NGram(torch.tensor([a, b, a, b, a, c]), 3, 2)
    one = (
        torch.tensor([3, 2, 1]) / 7 + 1 / 21
    )  # tokens counted, and one more sighting of "any of three"
    after_a = (torch.tensor([0, 2, 1]) + one) / 4
    torch.testing.assert_close(pairs.logits(torch.tensor([[c, a]])).exp(), after_a[None])
    torch.testing.assert_close(
        pairs.logits(torch.tensor([[a, c], [b, a]])).exp()[0], one
    )  # never followed
    triples = NGram(torch.tensor([a, b, a, b, a, c]), 3, 3)
    after_ba = (torch.tensor([0, 1, 1]) + after_a) / 3
    torch.testing.assert_close(triples.logits(torch.tensor([[c, b, a]])).exp(), after_ba[None])
    torch.testing.assert_close(
        triples.logits(torch.tensor([[a]])).exp(), after_a[None]
    )  # no two yet
    for table in triples.tables:
        torch.testing.assert_close(table.exp().sum(-1), torch.ones(len(table)))


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.7}, {"top_k": 3}, {"top_p": 0.6}], ids=str
)
def test_a_table_and_a_small_model_draw_with_the_noise_and_the_settings_of_the_model(settings):
    """For any texts in any order: longer and shorter ones, the same again, with a common beginning or not."""
    table, small, dice = NGram(text(300)[0], V, 2), build(n_layer=1, n_embd=16), seeded(6)
    guesses, known = (
        [draft.begin(text(1, 2), settings) for draft in (table, DraftModel(small))],
        text(20, 2),
    )
    for noise in draw_noise(60, 2, V, dice):
        t, change = (int(torch.randint(1, 20, (), generator=dice)) for _ in range(2))
        known[int(torch.randint(2, (), generator=dice)), change] = int(
            torch.randint(V, (), generator=dice)
        )
        some = known[:, :t].clone()
        for row in (noise, None):
            for guess, logits in zip(
                guesses, (table.logits, lambda x: small(x)[0][:, -1]), strict=True
            ):
                with torch.no_grad():
                    right = sample(logits(some), row, **settings)
                    assert torch.equal(guess(some, row), right)


def followed(row: list[int], n: int) -> int | None:
    for m in range(min(n, len(row) - 1), 0, -1):
        for end in range(len(row) - 1, m - 1, -1):
            if row[end - m : end] == row[-m:]:
                return row[end]
    return None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(1, 6))
def test_a_look_up_takes_the_longest_match_and_of_those_the_latest(row, n):
    found = PromptLookup(n).following(torch.tensor([row]))
    assert (None if found is None else found.item()) == followed(row, n)


def test_look_ups_of_a_batch():
    some = torch.tensor([[1, 2, 3, 1], [4, 5, 6, 7]])
    assert PromptLookup().following(some).tolist() == [[2], [7]], (
        "a text without a match repeats its last token"
    )
    assert PromptLookup().following(some[1:]) is None


def test_it_proposes_fewer_where_it_finds_nothing():
    model = build()
    steps = generate(model, torch.arange(13)[None], 1 + 1, greedy=True, draft=PromptLookup(3, 4))
    next(steps)
    assert steps.stats.offered == 0


# ------------------------------------------------------------------ two laws of chance


def random_pairs(n: int, vocab: int, seed: int, least: float = 0.0):
    """Probabilities p and q (n, vocab), from alike (with `least`: not quite) to far apart."""
    base = torch.randn(n, vocab, generator=seeded(seed), dtype=torch.float64)
    far = least + torch.rand(n, 1, generator=seeded(seed + 1), dtype=torch.float64) * 3
    return base.softmax(-1), (
        base + far * torch.randn(n, vocab, generator=seeded(seed + 2))
    ).softmax(-1)


@pytest.mark.parametrize("vocab", [2, 8, 65])
def test_with_shared_noise_two_choices_agree_as_often_as_the_law_says(vocab):
    p, q = random_pairs(200, vocab, vocab)
    noise = draw_noise(2000, 200, vocab, seeded(1))
    agree = (
        torch.stack([sample(p.log(), row) == sample(q.log(), row) for row in noise])
        .double()
        .mean(0)[:, 0]
    )
    tv = (p - q).abs().sum(-1) / 2
    spread = (agree * (1 - agree) / 2000).sqrt() + 1e-3
    assert (agree >= (1 - tv) / (1 + tv) - 4 * spread).all()
    assert (agree <= 1 - tv + 4 * spread).all(), "no coupling agrees more often"
    apart = torch.stack(
        [sample(p.log(), a) == sample(q.log(), b) for a, b in zip(noise[1:], noise)]
    )
    assert (apart.double().mean(0)[:, 0] < (1 - tv) / (1 + tv) - 4 * spread).sum() > 60, (
        "noise of its own"
    )


def chi_square(found: torch.Tensor, p: torch.Tensor) -> float:
    """Σ (observed - expected)² / expected: about the number of tokens less one, if `found` is from p."""
    counts, wanted = torch.bincount(found.flatten(), minlength=len(p)), p * found.numel()
    return float(((counts - wanted) ** 2 / wanted).sum())


def drawn_by_rejection(p, q, n, seed, shared):
    p, q = p.expand(n, -1), q.expand(n, -1)
    noise, fresh = (draw_noise(1, n, p.shape[-1], seeded(seed + i))[0] for i in (0, 1))
    token = (q / noise).argmax(-1, keepdim=True)
    coin = torch.rand(n, 1, generator=seeded(seed + 2))
    return keep_or_redraw(p, q, token, coin, noise if shared else fresh)


@pytest.mark.parametrize("pair", range(5))
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


@torch.no_grad()
def test_whole_texts_by_rejection_have_the_model_s_distribution():
    """Three new tokens of a vocabulary of three: 27 texts, 26 degrees of freedom."""
    model = tiny_model(
        dtype=torch.float32, vocab_size=3, n_layer=1, n_head=1, n_embd=8, per_head=True
    )
    prompt, draft = (
        torch.tensor([[0, 2]]),
        NGram(torch.tensor([0, 1, 0, 2, 2, 1, 1, 0, 2, 1]), 3, 2),
    )
    texts = torch.cartesian_prod(*[torch.arange(3)] * 3)
    full = torch.cat([prompt.expand(27, -1), texts], dim=1)
    each = (
        model(full)[0][:, 1:4]
        .log_softmax(-1)
        .gather(-1, texts[..., None])
        .sum((1, 2))
        .exp()
        .double()
    )
    assert float(each.sum()) == pytest.approx(1, abs=1e-5)
    dice, found, accepted = seeded(3), [], 0
    for _ in range(1500):
        out, tally = rejection(model, draft.logits, prompt, 3, dice, k=2)
        assert tally.accepted <= tally.offered
        assert sum(tally.advances) == 3
        found.append(int((out[0, 2:] * torch.tensor([9, 3, 1])).sum()))
        accepted += tally.accepted
    likely = each * 1500 >= 5  # the others together
    merged = torch.cat([each[likely], each[~likely].sum()[None]])
    number = torch.cumsum(likely, 0) - 1
    cells = torch.where(likely, number, int(likely.sum()))[torch.tensor(found)]
    assert chi_square(cells, merged) < 60
    assert accepted > 100


def test_the_rejection_form_is_for_one_text():
    with pytest.raises(ValueError, match="the prompt has 2 texts"):
        rejection(build(torch.float32), NGram(text(50)[0], V).logits, text(4, 2), 5, seeded(1))


def test_a_design_may_be_anything_that_builds_a_cache():
    model = build()
    whole = complete(model, text(4), 9)
    assert_same_tokens(model, whole, 4, Right(flawed(whole, 0.3), V), StaticCache)
    assert_same_tokens(
        model, whole, 4, Right(flawed(whole, 0.3), V), lambda max_len: StaticCache(40)
    )
