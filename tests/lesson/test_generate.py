"""generate: one token at a time, errors at the call, a model that is left unchanged.

That its tokens are those of the plain loop is in tests/test_same_tokens.py.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import DESIGNS, FORMS, has_cache, name, seeded, state_of, tiny_model, tokens

from nanogpt.cache import DynamicCache, StaticCache, cache_owners, kv_cache, measured_bytes
from nanogpt.caches.paged import PagedCache
from nanogpt.engines.drafts import DraftModel, NGram, PromptLookup
from nanogpt.engines.eager import PerHead, Uncached
from nanogpt.engines.generation import complete, generate
from nanogpt.engines.native import Native
from nanogpt.sampling import SamplingParams, draw_noise


@pytest.fixture(params=FORMS, ids=name)
def model(request):
    return tiny_model(request.param)


# ------------------------------------------------------------------ a generation


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_generate_yields_copies_of_one_token_at_a_time(model, design):
    expected = complete(model, tokens(3, 5), 6, cache=design)
    prompt = tokens(3, 5)
    for i, token in enumerate(generate(model, prompt, 6, cache=design)):
        assert (token.shape, token.dtype) == ((3, 1), torch.int64)
        assert torch.equal(prompt, tokens(3, 5)) or i, "the prompt was written to"
        assert torch.equal(token, expected[:, 5 + i, None])
        prompt.zero_(), token.zero_()  # from the first token on both are the caller's


def test_randomness_comes_from_the_generator_or_the_noise(model, ambient_rng):
    prompt = tokens(2, 5)
    by_seed = complete(model, prompt, 8, generator=seeded(42))
    assert torch.equal(by_seed, complete(model, prompt, 8, noise=draw_noise(8, 2, 13, seeded(42))))
    assert torch.equal(by_seed[:, :9], complete(model, prompt, 4, generator=seeded(42)))
    assert torch.equal(by_seed, complete(model, prompt.int(), 8, generator=seeded(42)))
    assert not torch.equal(by_seed, complete(model, prompt, 8, generator=seeded(43)))
    plain = complete(model, prompt, 8)
    assert torch.equal(plain, complete(model, prompt, 8, generator=seeded(1337)))


def test_cached_steps_read_one_token_and_uncached_steps_the_whole_text(model):
    fed = []
    handle = model.register_forward_pre_hook(lambda _, args: fed.append(args[0].shape[1]))
    list(generate(model, tokens(1, 5), 4))
    list(generate(model, tokens(1, 5), 4, cache=None))
    list(generate(model, tokens(1, 22), 3))  # to the last row of the table, still one at a time
    handle.remove()
    assert fed == [5, 1, 1, 1, 5, 6, 7, 8, 22, 1, 1]


# ------------------------------------------------------------------ the model is left as it was


@pytest.mark.parametrize("training", [True, False])
def test_generation_runs_in_eval_mode_and_leaves_each_modules_mode(model, training):
    expected = complete(model, tokens(1, 5), 6)
    model.train(training)
    model.blocks[1].train(not training)
    before = state_of(model)
    found = []
    for token in generate(model, tokens(1, 5), 6):
        found.append(token)
        assert state_of(model) == before, "between two tokens the model is the caller's"
    assert torch.equal(torch.cat(found, dim=1), expected[:, 5:]), "dropout was on"
    assert state_of(model) == before


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abandoned_iterator_leaves_the_model_unchanged(model, steps):
    before = state_of(model.train())
    iterator = generate(model, tokens(1, 5), 10)
    for _ in range(steps):
        next(iterator)
    assert state_of(model) == before
    assert not has_cache(model)
    model(tokens(1, 5), tokens(1, 5))[1].backward()  # a training step in between


AT_ONCE = {
    "two": [{}, {"cache": None}],
    "four": [
        {"cache": StaticCache},
        {"draft": DraftModel(tiny_model(n_layer=1), k=2)},
        {"cache": None, "past_block": "slide", "n_new": 24},
        {"cache": PagedCache},
    ],
}


@pytest.mark.parametrize("ways", AT_ONCE.values(), ids=AT_ONCE)
def test_threads_generate_independently_with_one_model(model, ways):
    """All are stopped inside their first step, while the model itself is used."""

    def work(i):
        call = {"n_new": 9, "generator": seeded(i)} | ways[i]
        return complete(model, tokens(1, 5, seed=i), **call)

    logits = model(tokens(1, 5))[0]
    alone = [work(i) for i in range(len(ways))]
    before = state_of(model.train())
    gate = threading.Barrier(len(ways) + 1)
    met = {threading.get_ident()}

    def meet(*args):
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            gate.wait(60), gate.wait(60)

    model.ln_f.register_forward_hook(meet)
    with ThreadPoolExecutor(len(ways)) as pool:
        found = [pool.submit(work, i) for i in range(len(ways))]
        gate.wait(60)
        assert state_of(model) == before
        assert torch.equal(model.eval()(tokens(1, 5))[0], logits)
        model.train()
        gate.wait(60)
    assert all(torch.equal(one.result(), text) for one, text in zip(found, alone, strict=True))
    assert state_of(model) == state_of(model.train())


def test_gradients_are_off_only_inside_the_forward_pass(model):
    inside = []
    model.register_forward_hook(lambda *_: inside.append(torch.is_grad_enabled()))
    for _ in generate(model, tokens(1, 5), 3):
        assert torch.is_grad_enabled(), "the caller's own setting was changed between two tokens"
    assert inside == [False] * 3


def test_generation_ignores_and_keeps_the_models_own_caches(model):
    expected = complete(model, tokens(1, 5), 3)
    with kv_cache(model, StaticCache):
        model(tokens(1, 2), pos=torch.arange(2))
        before = state_of(model)
        held = measured_bytes(model)
        assert torch.equal(complete(model, tokens(1, 5), 3), expected)
        assert (state_of(model), measured_bytes(model)) == (before, held)
        assert {owner.cache.length for owner in cache_owners(model)} == {2}


@pytest.mark.parametrize("assign", [True, False])
def test_weights_loaded_between_two_tokens_are_used_for_the_next(model, assign):
    noise = draw_noise(2, 1, 13, seeded(1))
    text = tokens(1, 5)
    steps = generate(model, text, 2, cache=None, noise=noise)
    text = torch.cat([text, next(steps)], dim=1)
    other = {key: tensor.flip(0) for key, tensor in model.state_dict().items()}
    model.load_state_dict(other, assign=assign)
    assert torch.equal(next(steps), complete(model, text, 1, noise=noise[1:])[:, -1:])


# ------------------------------------------------------------------ errors at the call
# Values of any other kind are in tests/test_fuzz.py.


LOOK_UP = PromptLookup()
SMALL = {"n_layer": 1, "per_head": False}
BAD = {
    "an empty prompt": ({"prompt": torch.empty(1, 0, dtype=torch.int64)}, "at least one token"),
    "a token past the vocabulary": ({"prompt": torch.tensor([[0, 13]])}, "0 to 13; .* has 0 to 12"),
    "top_k past the vocabulary": ({"sampling": SamplingParams(top_k=14)}, r"top_k=14: .* 13\]"),
    "an unknown past_block": ({"past_block": "crop"}, 'choose "error" or "slide"'),
    "too many tokens": ({"n_new": 21}, "5 and 21 new tokens exceed block_size 24: .* at most 20"),
    "noise for fewer tokens": ({"noise": torch.ones(3, 1, 13)}, r"\(3, 1, 13\).*\(4, 1, 13\)"),
    **{
        f"noise of {number} in {dtype}": (
            {"noise": torch.ones(4, 1, 13, dtype=dtype).index_fill(2, torch.tensor(5), number)},
            r"need .4, 1, 13. numbers from 1.2e-38 to 3.4e\+38, as float32 has them: draw it",
        )
        for number, dtype in (
            (torch.inf, torch.float32),
            (torch.nan, torch.float32),
            (0.0, torch.bfloat16),
            (1e-40, torch.float32),  # 1 / 1e-40 is infinite
            (1e-50, torch.float64),  # 0 in the float32 of engines
            (1e39, torch.float64),  # infinite there
        )
    },
    "a seed": ({"generator": 7}, "generator=7: pass a CPU generator"),
    "a cache that was built": ({"cache": DynamicCache()}, "not an instance"),
    "an engine and a cache": ({"engine": PerHead, "cache": None}, "either engine or cache"),
    "a draft and no cache": (
        {"draft": LOOK_UP, "cache": None},
        "a draft needs a cache that it can rewind",
    ),
    "a draft where no cache is kept": (
        {"draft": LOOK_UP, "past_block": "slide", "n_new": 40},
        "a sliding window: leave the draft out",
    ),
    "a draft's engine beside another": (
        {"draft": DraftModel(tiny_model(**SMALL), engine=Native), "engine": Uncached},
        "the draft is decoded by Native, which requires",
    ),
    "a draft of another vocabulary": (
        {"draft": NGram(torch.arange(5), 7)},
        "7 tokens, the model 13",
    ),
    "a draft of a shorter block": (
        {"draft": DraftModel(tiny_model(block_size=6))},
        "draft model, .* 5 and 3 new tokens exceed block_size 6",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_invalid_arguments_are_refused_at_the_call(what, recwarn):
    (arguments, message) = BAD[what]
    generator = seeded(3)
    model = tiny_model().train()
    before = state_of(model)
    call = {"prompt": tokens(1, 5), "n_new": 4, "generator": generator} | arguments
    with pytest.raises((ValueError, TypeError), match=message):
        generate(**({"model": model} | call))
    assert state_of(model) == before
    assert torch.equal(generator.get_state(), seeded(3).get_state())
    assert not recwarn.list


def test_the_number_advised_by_a_length_error_works(model):
    for T in (1, 5, 24):
        with pytest.raises(ValueError, match=f"at most {25 - T}"):
            generate(model, tokens(1, T), 26 - T)
        assert len(list(generate(model, tokens(1, T), 25 - T))) == 25 - T
