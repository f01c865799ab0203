"""Speculation in native code; that any draft gives the same tokens is tests/test_same_tokens.py."""

from copy import deepcopy

import pytest
import torch
from decoding_fixtures import decoder
from draft_fixtures import PartlyRight, Right, Wrong
from engine_fixtures import BLOCK, SAMPLING, assert_refused, heard, prompt_of, seeded, shared_model
from shapes import COMBINED, ROPE

from nanogpt import (
    CausalSelfAttention,
    Decoder,
    DraftModel,
    Native,
    Native8,
    NGram,
    PromptLookup,
)
from nanogpt.decoder.checkpoint import load_checkpoint
from nanogpt.engines.decoder_library import decoder_library
from nanogpt.engines.drafts import Draft
from nanogpt.engines.generation import complete, generate
from nanogpt.files import LECTURE_FORM
from nanogpt.sampling import PLAIN

pytestmark = pytest.mark.slow
T = 5
V = 13
ALL = BLOCK + 1 - T  # the last token is never read


@pytest.fixture
def model():
    return shared_model()


def nudged(model, by=0.05):
    """Nearly the same weights: a draft that is sometimes right."""
    near = deepcopy(model)
    with torch.no_grad():
        for p in near.parameters():
            p.add_(by * p.std() * torch.randn(p.shape, generator=seeded(5)))
    return near


def stats_of(model, whole, draft, start=T, sampling=PLAIN):
    """What a generation counted, after its tokens were found to be those of the text."""
    n = whole.shape[1] - start
    steps = generate(model, whole[:, :start], n, sampling, engine=Native, draft=draft)
    assert torch.equal(torch.cat([whole[:, :start], *steps], dim=1), whole)
    return steps.stats


def drafts_for(whole, model):
    small = shared_model(n_layer=1)
    return [
        *(DraftModel(m, k) for m, k in ((model, 3), (small, 5), (nudged(model), 4))),
        *(kind(whole, V, 4) for kind in (Right, PartlyRight, Wrong)),
        NGram(whole.flatten(), V, 2, 3),
        PromptLookup(2, 5),
    ]


@pytest.mark.parametrize("sampling", [PLAIN, SAMPLING[2]], ids=str)
def test_native_speculation_counts_what_speculation_over_a_cache_counts(model, sampling):
    for batch in (1, 3):
        whole = complete(model, prompt_of(T, batch), ALL, sampling)
        for draft in drafts_for(whole, model):
            counted = stats_of(model, whole, draft, sampling=sampling)
            # In a batch a native draft goes on from its own guess, where the other knows better.
            if batch == 1 or not isinstance(draft, DraftModel):
                steps = generate(model, whole[:, :T], ALL, sampling, draft=draft)
                list(steps)
                assert counted == steps.stats


def test_the_passes_are_as_few_as_can_be_and_the_block_is_used_to_its_end(model):
    whole = complete(model, prompt_of(T), ALL)
    for k in (1, 3, 7, 16):
        for draft in (Right(whole, V, k), DraftModel(model, k)):
            assert stats_of(model, whole, draft).passes == -(-ALL // (k + 1))
    assert stats_of(model, whole, Wrong(whole, V, 4)).passes == ALL
    stats_of(model, complete(model, whole[:, :BLOCK], 1), DraftModel(model, 4), start=BLOCK)


def test_a_native_draft_reads_again_what_it_guessed_wrong_in_one_of_the_texts():
    model = shared_model(block_size=64)
    near = nudged(model)
    whole = complete(model, prompt_of(T), 60)
    rate = stats_of(model, whole, DraftModel(near, 6)).acceptance_rate
    assert 0.2 < rate < 0.999
    texts = [complete(model, one, 60) for one in whole[:, :T].split(1)]
    alone = [stats_of(model, one, DraftModel(near, 6)).acceptance_rate for one in texts]
    assert rate > 0.9 * sum(alone) / 3, "it would guess worse from what it had read wrong"


def test_two_generations_at_once_and_one_left_half_way(model):
    whole = complete(model, prompt_of(T), ALL)
    draft = DraftModel(shared_model(n_layer=1), 4)
    a, b = (generate(model, whole[:, :T], ALL, engine=Native, draft=draft) for _ in range(2))
    half = [next(a) for _ in range(7)]
    assert torch.equal(torch.cat([whole[:, :T], *b], dim=1), whole)
    assert torch.equal(torch.cat(half, dim=1), whole[:, T : T + 7])
    a.close()
    stats_of(model, whole, draft)


def test_a_drafts_weights_are_those_at_the_start_of_a_generation(model):
    whole = complete(model, prompt_of(T), ALL)
    own = nudged(model, by=0)
    draft = DraftModel(own, 4)
    assert stats_of(model, whole, draft).acceptance_rate == 1
    own.load_state_dict(nudged(model, by=1).state_dict())
    assert stats_of(model, whole, draft).acceptance_rate < 1


def test_the_published_model_in_8_bits_guesses_what_it_says_itself():
    trained = load_checkpoint(LECTURE_FORM).model
    prompt = torch.zeros(2, 1, dtype=torch.long)
    whole = complete(trained, prompt, 200, engine=Native)
    stats = stats_of(trained, whole, DraftModel(trained, 4, Native8), start=1)
    assert stats.acceptance_rate > 0.9


class Vandal(Draft):
    """Writes into what it is given, and fails after a few tokens if it is to."""

    def __init__(self, last=99):
        super().__init__(4)
        self.last = last

    def begin(self, prompt, sampling):
        def guess(text, noise):
            if text.shape[1] > self.last:
                raise RuntimeError("no idea")
            text[:, -1] = 5
            return text[:, -1:]

        return guess


def test_a_draft_cannot_change_the_text_and_what_it_raises_comes_through(model):
    prompt = prompt_of(T)
    whole = complete(model, prompt, ALL)
    with pytest.raises(RuntimeError, match="no idea"):
        list(generate(model, prompt, ALL, engine=Native, draft=Vandal(T + 3)))
    stats_of(model, whole, Vandal())
    assert torch.equal(prompt, prompt_of(T))


@pytest.mark.parametrize("row", COMBINED)
def test_a_draft_and_a_target_of_any_architecture_are_decoded_natively(row):
    decoder_library()  # skipped without a compiler
    target = decoder(torch.float32, **COMBINED[row])
    whole = complete(target, prompt_of(T), 30)
    draft = DraftModel(shared_model(**ROPE, n_kv_head=2, window=4, block_size=40), 4)
    steps = generate(target, whole[:, :T], 30, engine=Native, draft=draft)
    assert isinstance(steps.loop.drafter.engine, Native)
    assert torch.equal(torch.cat([whole[:, :T], *steps], dim=1), whole)
    assert stats_of(target, whole, DraftModel(target, 3)).acceptance_rate == 1


@pytest.mark.parametrize("engine", [None, Native])
def test_a_rotary_draft_whose_buffers_are_shorter_than_the_text_is_asked_token_by_token(engine):
    target = decoder(torch.float32, **COMBINED["Llama 3"])
    whole = complete(target, prompt_of(T), 30)
    draft = DraftModel(shared_model(**ROPE, block_size=T + 4), 4, engine=engine)
    steps = generate(target, whole[:, :T], 30, engine=Native, draft=draft)
    assert torch.equal(torch.cat([whole[:, :T], *steps], dim=1), whole)


class Odd(CausalSelfAttention):
    """Attention that no engine knows."""

    def forward(self, x, pos):
        return 0.5 * super().forward(x, pos)


@pytest.fixture
def odd():
    return Decoder(shared_model().config, attention=Odd, generator=seeded(2)).eval()


def test_a_draft_model_that_native_does_not_compute_is_asked_token_by_token(model, odd):
    decoder_library()  # skipped without a compiler
    whole = complete(model, prompt_of(T), ALL)
    draft = DraftModel(odd, 4)
    assert generate(model, prompt_of(T), 3, engine=Native, draft=draft).loop.drafter is None
    stats_of(model, whole, draft)


def test_a_draft_that_its_engine_does_not_compute_is_refused(model, odd, monkeypatch):
    monkeypatch.setattr(Native, "ready", None)
    draft = DraftModel(odd, 4, engine=Native)
    assert_refused(r"\.Odd as blocks", model, prompt_of(T), 5, engine=Native, draft=draft)


def test_without_a_compiler_a_draft_with_an_engine_falls_back_too(forgetful, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = shared_model()
    prompt = prompt_of(T)
    draft = DraftModel(shared_model(n_layer=1), 4, engine=Native8)
    whole, warned = heard(lambda: complete(model, prompt, 9, engine=Native, draft=draft))
    assert torch.equal(whole, complete(model, prompt, 9))
    assert "Native cannot be built here, Flat decodes instead" in warned[0][0]
