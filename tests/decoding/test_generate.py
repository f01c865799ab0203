"""A generation: tokens one at a time, errors at the call, and a model left as it was found."""

import warnings
from unittest.mock import Mock

import pytest
import torch
from conftest import CACHES, DESIGNS, FORMS, has_cache, name, seeded, state_of, tiny_model, tokens

from nanogpt.cache.attach import cache_owners, enable_kv_cache, kv_cache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.decoding.drafts import DraftModel
from nanogpt.decoding.generate import complete, generate
from nanogpt.decoding.sampling import SamplingParams, draw_noise
from nanogpt.engines.eager import PerHead
from nanogpt.model.gpt import Head


@pytest.fixture(params=FORMS, ids=name)
def model(request):
    return tiny_model(request.param)


# ------------------------------------------------------------------ a generation


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_tokens_come_one_at_a_time_and_complete_puts_them_after_the_prompt(model, design):
    prompt = tokens(3, 5)
    new = list(generate(model, prompt, 6, cache=design, generator=seeded(1)))
    assert [token.shape for token in new] == [(3, 1)] * 6
    assert {token.dtype for token in new} == {torch.int64}
    text = complete(model, prompt, 6, cache=design, generator=seeded(1))
    assert torch.equal(text, torch.cat([prompt, *new], dim=1))


def test_a_generator_and_its_noise_are_the_same_randomness(model, ambient_rng):
    prompt = tokens(2, 5)
    by_seed = complete(model, prompt, 8, generator=seeded(42))
    assert torch.equal(by_seed, complete(model, prompt, 8, noise=draw_noise(8, 2, 13, seeded(42))))
    assert torch.equal(
        complete(model, prompt, 8), complete(model, prompt, 8, generator=seeded(1337))
    )
    assert not torch.equal(by_seed, complete(model, prompt, 8, generator=seeded(43)))


def test_a_seed_means_the_same_for_fewer_tokens(model):
    long = complete(model, tokens(1, 5), 12, generator=seeded(42))
    assert torch.equal(complete(model, tokens(1, 5), 4, generator=seeded(42)), long[:, :9])


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_texts_of_a_batch_follow_their_own_noise(model, design):
    """Row b of a batch is what its prompt and its row of the noise give alone."""
    prompt, noise = tokens(3, 5), draw_noise(10, 3, 13, seeded(42))
    together = complete(model, prompt, 10, cache=design, noise=noise)
    for b in range(3):
        alone = complete(model, prompt[b : b + 1], 10, cache=design, noise=noise[:, b : b + 1])
        assert torch.equal(together[b : b + 1], alone)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_prompts_of_either_integer_type(model, dtype):
    text = complete(model, tokens(1, 5).to(dtype), 6, generator=seeded(1))
    assert torch.equal(text, complete(model, tokens(1, 5), 6, generator=seeded(1)))


def test_a_cached_step_feeds_one_token_and_an_uncached_one_the_whole_text(model):
    fed = []
    handle = model.register_forward_pre_hook(lambda _, args: fed.append(args[0].shape[1]))
    list(generate(model, tokens(1, 5), 4))
    list(generate(model, tokens(1, 5), 4, cache=None))
    list(generate(model, tokens(1, 22), 3))  # to the last row of the table, still one at a time
    handle.remove()
    assert fed == [5, 1, 1, 1, 5, 6, 7, 8, 22, 1, 1]


@pytest.mark.parametrize(("n_new", "reserved"), [(6, 10), (20, 24)])
def test_caches_are_as_long_as_the_text_and_never_longer_than_the_block(model, n_new, reserved):
    asked = []

    def design(max_len):
        asked.append(max_len)
        return DynamicCache(max_len)

    list(generate(model, tokens(1, 5), n_new, cache=design))
    assert asked == [reserved] * len(cache_owners(model))


# ------------------------------------------------------------------ the model is left as it was


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back_module_by_module(model, training):
    model.train(training)
    model.blocks[1].train(not training)  # a mixed model stays as mixed as it was
    before = state_of(model)
    iterator = generate(model, tokens(1, 5), 6)
    assert state_of(model) == before
    for _ in iterator:
        assert state_of(model) == before, "between two tokens the model is the caller's"
    assert state_of(model) == before


def test_a_model_in_training_mode_gives_the_tokens_of_eval_mode(model):
    expected = complete(model, tokens(2, 5), 10, generator=seeded(1))
    for design in DESIGNS:
        text = complete(model.train(), tokens(2, 5), 10, cache=design, generator=seeded(1))
        assert torch.equal(text, expected), "dropout was on"


@pytest.mark.parametrize("referenced", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abandoned_iterator_leaves_no_cache_on_and_the_mode_as_it_was(model, referenced, steps):
    before = state_of(model.train())
    iterator = generate(model, tokens(1, 5), 10)
    for _ in range(steps):
        next(iterator)
    if not referenced:
        del iterator
    assert state_of(model) == before
    assert not has_cache(model)
    model(tokens(1, 5), tokens(1, 5))[1].backward()  # a training step in between
    with kv_cache(model.eval()):
        pass


def test_an_error_in_the_middle_of_a_step_leaves_the_model_as_it_was(model):
    before = state_of(model.train())
    iterator = generate(model, tokens(1, 5), 10)
    next(iterator)

    def fail(*args):
        raise KeyboardInterrupt

    handle = model.blocks[1].ffwd.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    handle.remove()
    assert state_of(model) == before


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_two_generations_in_a_row_do_not_see_each_other(model, design):
    first = complete(model, tokens(3, 9), 10, cache=design, generator=seeded(1))
    complete(model, tokens(1, 2, seed=5), 10, cache=design, generator=seeded(2))
    assert torch.equal(complete(model, tokens(3, 9), 10, cache=design, generator=seeded(1)), first)


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_two_iterators_take_turns_on_one_model(model, design):
    prompts = [tokens(1, 9), tokens(2, 3, seed=5)]
    alone = [list(generate(model, p, 8, cache=design, generator=seeded(1))) for p in prompts]
    together = zip(
        *[generate(model, p, 8, cache=design, generator=seeded(1)) for p in prompts], strict=True
    )
    for expected, got in zip(zip(*alone, strict=True), together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_gradients_are_off_inside_and_untouched_outside(model):
    inside = []
    model.register_forward_hook(lambda *_: inside.append(torch.is_grad_enabled()))
    iterator = generate(model, tokens(1, 5), 3)
    assert torch.is_grad_enabled()
    for _ in iterator:
        assert torch.is_grad_enabled(), "the caller's own setting was changed between two tokens"
    assert inside == [False] * 3


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_the_prompt_is_not_written_to_and_tokens_are_the_callers_own(model, design):
    prompt, expected = tokens(1, 5), complete(model, tokens(1, 5), 5, cache=design)
    for i, token in enumerate(generate(model, prompt, 5, cache=design)):
        assert torch.equal(prompt, tokens(1, 5)) or i
        assert token.item() == expected[0, 5 + i]
        prompt.zero_(), token.zero_()  # from the first token on both are the caller's


def test_generating_inside_a_with_block_says_what_to_do_and_keeps_its_caches(model):
    with kv_cache(model):
        caches = [owner.cache for owner in cache_owners(model)]
        with pytest.raises(ValueError, match="already on: generate brings its own"):
            list(generate(model, tokens(1, 5), 3))
        assert [owner.cache for owner in cache_owners(model)] == caches


# ------------------------------------------------------------------ errors at the call

BAD = {
    "an empty prompt": ({"prompt": torch.empty(1, 0, dtype=torch.int64)}, "at least one token"),
    "no text": ({"prompt": torch.empty(0, 3, dtype=torch.int64)}, "at least one token"),
    "a prompt without a batch": ({"prompt": torch.tensor([1, 2])}, r"pass \(B, T\)"),
    "a prompt of floats": ({"prompt": torch.ones(1, 3)}, "integers"),
    "a prompt elsewhere": ({"prompt": tokens(1, 3).to("meta")}, "pass a plain tensor"),
    "a token past the vocabulary": ({"prompt": torch.tensor([[0, 13]])}, "0 to 13; .* has 0 to 12"),
    "a negative token": ({"prompt": torch.tensor([[-1, 3]])}, "tokens -1 to 3"),
    "no new tokens": ({"n_new": 0}, "n_new=0: must be an integer of at least 1"),
    "negative new tokens": ({"n_new": -3}, "n_new=-3"),
    "half a token": ({"n_new": 2.5}, "n_new=2.5"),
    "True tokens": ({"n_new": True}, "n_new=True"),
    "sampling by name": ({"sampling": "greedy"}, "sampling='greedy': pass SamplingParams"),
    "top_k past the vocabulary": (
        {"sampling": SamplingParams(top_k=14)},
        r"top_k=14: .* \[1, 13\]",
    ),
    "an unknown past_block": ({"past_block": "crop"}, 'choose "error" or "slide"'),
    "too many tokens": ({"n_new": 21}, "5 and 21 new tokens exceed block_size 24: .* at most 20"),
    "a prompt past the block": (
        {"prompt": tokens(1, 25), "n_new": 1},
        "shorten the prompt to at most 24",
    ),
    "noise for fewer tokens": (
        {"noise": torch.ones(3, 1, 13)},
        r"shape \(3, 1, 13\).*\(4, 1, 13\)",
    ),
    "noise for another batch": ({"noise": torch.ones(4, 2, 13)}, "noise has shape"),
    "noise for another vocabulary": ({"noise": torch.ones(4, 1, 12)}, "noise has shape"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments_are_refused_at_the_call_and_not_at_the_first_token(model, what):
    arguments, message = BAD[what]
    before = state_of(model.train())
    with pytest.raises(ValueError, match=message):
        generate(model, **({"prompt": tokens(1, 5), "n_new": 4} | arguments))
    assert state_of(model) == before


def test_a_generator_of_another_device_is_refused(model):
    elsewhere = Mock(spec=torch.Generator, device=torch.device("cuda"))
    with pytest.raises(ValueError, match="use a CPU torch.Generator"):
        generate(model, tokens(1, 5), 4, generator=elsewhere)


def test_what_the_length_error_advises_works(model):
    for T in (1, 5, 24):
        with pytest.raises(ValueError, match=f"at most {25 - T}"):
            generate(model, tokens(1, T), 26 - T)
        assert len(list(generate(model, tokens(1, T), 25 - T))) == 25 - T


@pytest.mark.parametrize(
    ("T", "n_new", "again"), [(5, 20, 0), (5, 21, 1), (5, 30, 10), (24, 3, 2), (30, 3, 3)]
)
def test_a_sliding_window_says_how_many_tokens_pay_for_it(model, T, n_new, again):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        generate(model, tokens(1, T), n_new, past_block="slide")
        complete(model, tokens(1, T), n_new, past_block="slide")
    messages = [str(w.message) for w in caught]
    assert len(messages) == 2 * (again > 0)
    assert all(f"the last {again} tokens each recompute 24 positions" in m for m in messages)
    assert all(w.filename == __file__ for w in caught), "the warning points at the caller's line"


def test_heads_that_can_hold_no_cache_are_refused_not_decoded_wrongly():
    """A head may lack the attribute: fed one token a step, it would see no past."""

    class Forgetful(Head):
        def __init__(self, config):
            super().__init__(config)
            del self.cache

        def forward(self, x, pos):
            self.__dict__["cache"] = None
            try:
                return super().forward(x, pos)
            finally:
                del self.__dict__["cache"]

    model = tiny_model(head=Forgetful)
    for settings in ({}, {"engine": PerHead}):
        with pytest.raises(ValueError, match="self.cache = None"):
            generate(model, tokens(1, 5), 8, **settings)
    # The characters of n-gram tables have a cache; the heads have none.
    with pytest.raises(ValueError, match="self.cache = None"):
        generate(tiny_model(head=Forgetful, ngrams=2), tokens(1, 5), 8)
    with pytest.raises(ValueError, match="self.cache = None"):
        generate(tiny_model(), tokens(1, 5), 8, draft=DraftModel(model))
    plain = complete(model, tokens(1, 5), 8, cache=None, generator=seeded(1))
    assert torch.equal(plain, complete(tiny_model(), tokens(1, 5), 8, generator=seeded(1)))


def test_a_cache_enabled_by_hand_is_in_the_way_until_it_is_disabled(model):
    enable_kv_cache(model)
    with pytest.raises(ValueError, match=r"call disable_kv_cache\(model\)"):
        complete(model, tokens(1, 5), 3)


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (DynamicCache(), "not an instance"),
        (lambda max_len: torch.nn.Identity(), "nn.Module"),
        (lambda max_len: [], "update"),
        (lambda: None, "builds no cache"),
    ],
)
def test_a_cache_that_is_no_design_is_refused_and_none_is_left_on(cache, message):
    model = tiny_model()
    with pytest.raises(ValueError, match=message):
        next(generate(model, tokens(1, 3), 2, cache=cache))
    assert not model.caching
