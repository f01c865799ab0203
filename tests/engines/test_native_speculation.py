"""Speculation in native code gives the tokens of plain decoding, with any draft, and counts alike."""

import pytest
import torch
from conftest import name, seeded
from draft_fixtures import Right, Wrong
from test_speculative import DRAFTS, SAMPLING, V, build, flawed, text

from nanogpt.decoding.drafts import Draft, DraftModel, NGram, PromptLookup
from nanogpt.decoding.generate import complete, generate
from nanogpt.engines.eager import Batched
from nanogpt.engines.int8 import Native8, Rough8
from nanogpt.engines.native import Native
from nanogpt.engines.native_library import Session
from nanogpt.model.checkpoint import load_checkpoint
from nanogpt.system.files import PUBLISHED

FLOAT = torch.float32
T = 5


@pytest.fixture(scope="module")
def model():
    return build(FLOAT)


def speculated(model, whole, draft, start=T, **settings):
    steps = generate(
        model, whole[:, :start], whole.shape[1] - start, engine=Native, draft=draft, **settings
    )
    tokens = list(steps)
    assert all(token.shape == (len(whole), 1) for token in tokens)
    assert torch.equal(torch.cat([whole[:, :start], *tokens], dim=1), whole)
    return steps.stats


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("draft", DRAFTS)
def test_any_draft_gives_the_tokens_of_plain_native_decoding(model, draft, sampling):
    settings = SAMPLING[sampling]
    for batch in (1, 3):
        whole = complete(model, text(T, batch), 12, engine=Native, **settings)
        assert torch.equal(whole, complete(model, text(T, batch), 12, **settings))
        for k in (1, 2, 3, 5, 8):
            speculated(model, whole, DRAFTS[draft](whole, model, k), **settings)


@pytest.mark.parametrize("per_head", [True, False], ids=name)
def test_lists_of_heads_and_codes_are_drafts_too(per_head):
    model = build(FLOAT, per_head=per_head)
    whole = complete(model, text(T), 12)
    assert speculated(model, whole, DraftModel(model, 4, engine=Native8)).rate > 0.5
    assert (
        speculated(model, whole, DraftModel(build(FLOAT, 4, n_layer=1, per_head=True), 3)).passes
        <= 12
    )


def test_a_model_in_8_bits_guesses_what_it_says_itself():
    trained = load_checkpoint(PUBLISHED / "checkpoints" / "small").model
    whole = complete(trained, torch.zeros(2, 1, dtype=torch.long), 200, engine=Native)
    for engine in (Native8, Rough8):
        assert speculated(trained, whole, DraftModel(trained, 4, engine), start=1).rate > 0.9


@pytest.mark.parametrize(
    "sizes", [{"n_embd": 36, "n_head": 3}, {"n_embd": 20, "n_head": 2, "vocab_size": 5}]
)
def test_8_bits_of_sizes_that_fill_no_register(sizes):
    model = build(FLOAT, **sizes)
    prompt = text(T, 2) % 5
    whole = complete(model, prompt, 20)
    assert speculated(model, whole, DraftModel(model, 5, Rough8)).rate > 0.7


def test_it_counts_what_speculation_over_a_cache_counts(model):
    small = DraftModel(build(FLOAT, 4, n_layer=1), 4)
    for batch in (1, 3):
        whole = complete(model, text(T, batch), 12)
        drafts = [PromptLookup(3, 4), Wrong(whole, V, 3), Right(flawed(whole, 0.3), V, 3)]
        # In a batch a small model guesses on from its own guess here, where the other path knows better.
        for draft in [*drafts, small] if batch == 1 else drafts:
            steps = generate(model, whole[:, :T], 12, draft=draft)
            list(steps)
            assert speculated(model, whole, draft) == steps.stats


def test_the_passes_are_as_few_as_can_be_and_the_block_is_used_to_its_end(model):
    block = model.config.block_size
    whole = complete(model, text(T), block + 1 - T)  # the last token is never read
    for k in (1, 3, 7, 16):
        assert speculated(model, whole, Right(whole, V, k)).passes == -(-(block + 1 - T) // (k + 1))
        assert speculated(model, whole, DraftModel(model, k)).passes == -(
            -(block + 1 - T) // (k + 1)
        )
    assert speculated(model, whole, Wrong(whole, V, 4)).passes == block + 1 - T
    speculated(model, complete(model, whole[:, :block], 1), DraftModel(model, 4), start=block)


def test_texts_of_a_batch_that_are_right_at_different_places_go_on_together(model):
    whole = complete(model, text(T, 3), 20)
    for seed in range(8):
        speculated(model, whole, Right(flawed(whole, 0.3, seed), V, 4))


def test_a_native_draft_reads_again_what_it_guessed_wrong_in_one_of_the_texts(model):
    near = build(FLOAT, 3, n_layer=2)  # the same weights, nudged: sometimes right
    near = near.__class__(near.config)
    near.load_state_dict(model.state_dict())
    with torch.no_grad():
        for p in near.parameters():
            p.add_(0.05 * p.std().nan_to_num(0) * torch.randn(p.shape, generator=seeded(5)))
    whole = complete(model, text(T, 3), 24)
    tally = speculated(model, whole, DraftModel(near.eval(), 6))
    assert 0.2 < tally.rate < 0.999
    texts = [complete(model, one, 24) for one in whole[:, :T].split(1)]
    alone = [speculated(model, one, DraftModel(near, 6)).rate for one in texts]
    assert tally.rate > 0.95 * sum(alone) / 3  # it would guess worse from what it had read wrong


def test_two_generations_at_once_and_one_left_half_way(model):
    whole = complete(model, text(T), 20)
    draft = DraftModel(build(FLOAT, 4, n_layer=1), 4)
    a, b = (generate(model, whole[:, :T], 20, engine=Native, draft=draft) for _ in range(2))
    half = [next(a) for _ in range(7)]
    assert torch.equal(torch.cat([whole[:, :T], *b], dim=1), whole)
    assert torch.equal(torch.cat(half, dim=1), whole[:, T : T + 7])
    a.close()
    speculated(model, whole, draft)


def test_weights_are_read_as_they_are_when_a_generation_begins(model):
    other = build(FLOAT, 8)
    own = other.__class__(other.config)
    own.load_state_dict(other.state_dict())
    draft = DraftModel(own, 4)
    whole = complete(other, text(T), 12)
    assert speculated(other, whole, draft).rate == 1
    own.load_state_dict(model.state_dict())
    assert speculated(other, whole, draft).rate < 1


class Raises(Draft):
    def begin(self, prompt, settings):
        def guess(text, row):
            if text.shape[1] > T + 3:
                raise RuntimeError("no idea")
            return text[:, -1:]

        return guess


class Vandal(Draft):
    """Writes into what it is given."""

    def begin(self, prompt, settings):
        def guess(text, row):
            text[:, -1] = 5
            return text[:, -1:]

        return guess


@pytest.mark.parametrize("engine", [Native, None])
def test_a_draft_cannot_change_the_text(model, engine):
    prompt = text(T, 2)
    whole = complete(model, prompt, 12, engine=engine)
    decoded = torch.cat(
        [prompt, *generate(model, prompt, 12, engine=engine, draft=Vandal(4))], dim=1
    )
    assert torch.equal(decoded, whole)
    assert torch.equal(prompt, text(T, 2))


def test_a_small_model_that_is_no_lecture_model_is_asked_token_by_token(model):
    whole = complete(model, text(T, 2), 12)
    speculated(model, whole, DraftModel(build(FLOAT, rope=True), 4))


def test_positions_past_the_text_or_the_noise_are_refused_before_native_code_sees_them(model):
    noise, settings = torch.ones(9, 1, V), {"temperature": 1.0, "top_k": None, "top_p": None}
    with Session(Native.ready(model, 1), model, text(T + 9), T, noise, settings) as session:
        session.decode(0, T)
        for start, end in ((T - 1, T + 9), (0, T), (T, T - 1), (-1, 2)):
            with pytest.raises(
                ValueError, match=f"of a text of {T + 9}: choose from {T - 1} to {T + 7}"
            ):
                session.check(start, end)
        with pytest.raises(ValueError, match="choose from 0 to"):
            session.decode(-1, 3)


def test_what_a_draft_raises_comes_through_and_the_next_generation_is_whole(model):
    whole = complete(model, text(T), 12)
    with pytest.raises(RuntimeError, match="no idea"):
        list(generate(model, whole[:, :T], 12, engine=Native, draft=Raises(4)))
    speculated(model, whole, DraftModel(model, 4))


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (lambda: DraftModel(build(torch.float64), 4), "torch.float64"),
        (lambda: DraftModel(build(FLOAT, 3, vocab_size=9), 4), "knows 9 tokens"),
        (lambda: NGram(torch.zeros(9, dtype=torch.long), 4, 2), "knows 4 tokens"),
        (lambda: PromptLookup(3, 1000), "k=1000 > block_size"),
        (lambda: DraftModel(build(FLOAT, rope=True), 4, engine=Native), "rope=True"),
        (
            lambda: DraftModel(build(FLOAT), 4, engine=Batched),
            "pass one of the classes Native, Native8 or Rough8",
        ),
        (lambda: DraftModel(build(FLOAT), 4, engine="Native"), "pass one of the classes"),
        (lambda: DraftModel("small", 4), "pass a GPT"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_at_the_call(model, draft, message):
    with pytest.raises(ValueError, match=message):
        generate(model, text(T), 12, engine=Native, draft=draft())
