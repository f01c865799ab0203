"""Every engine gives the tokens of the uncached path, whatever the shape, the settings and the weights."""

import ctypes
import warnings
from itertools import zip_longest

import hypothesis.strategies as st
import pytest
import torch
from conftest import FORMS, has_cache, name, seeded, state_of, tiny_model, tokens
from hypothesis import given

from nanogpt.decoding.generate import complete, generate
from nanogpt.decoding.sampling import draw_noise
from nanogpt.engines import base, functional, native_library, toolchain
from nanogpt.engines.base import Engine
from nanogpt.engines.compiled import Compiled
from nanogpt.engines.cuda_graph import Graph, GraphLoop
from nanogpt.engines.eager import Batched, Flat, PerHead, Static, Uncached
from nanogpt.engines.int8 import Native8, quantize
from nanogpt.engines.native import Native
from nanogpt.engines.native_library import library
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.model.gpt import Head

ENGINES = [Uncached, PerHead, Batched, Static, Flat, Compiled, Native]
FAST = [Flat, Compiled, Native]  # those that leave the model's modules behind
KINDS = [
    {"greedy": True},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_p": 0.6},
    {"temperature": 2.0, "top_k": 6, "top_p": 0.8},
]
# What native.cpp is compiled for here, beside the tiny model: width, heads, vocabulary. With and
# without a remainder after whole registers and after eight rows, heads that fill registers or not.
UNEVEN = {"n_embd": 18, "n_head": 3, "vocab_size": 65}
WIDE_HEADS = {"n_embd": 48, "n_head": 2, "vocab_size": 65}
SMALL = {"n_embd": 64, "n_head": 4, "vocab_size": 65}

every = pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.__name__)


def forget():
    """As in a new process: no engine built, no library loaded, no compiler looked up."""
    for kept in (toolchain.compiler, toolchain.machine, native_library.library):
        kept.cache_clear()
    base._built.clear()
    base._failed.clear()


@pytest.fixture
def forgetful():
    forget()
    yield
    forget()


@pytest.fixture(params=FORMS, ids=name)
def model(request):
    return tiny_model(request.param)


def texts(kind) -> int:
    """A batch of more than one text. Compiled takes long to build, so it shares one shape in all tests."""
    return 2 if kind is Compiled else 3


def tried(call):
    """The result and None, or None and the words of the refusal."""
    try:
        return call(), None
    except ValueError as error:
        return None, str(error)


def told(call):
    """The result, and the warnings as (text, file)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return call(), [(str(w.message), w.filename) for w in caught]


def assert_same_tokens(model, kind, prompt, n_new, **settings):
    settings = {"generator": seeded(1)} | settings
    seed = settings["generator"].get_state()
    expected = complete(model, prompt, n_new, cache=None, **settings)
    settings["generator"].set_state(seed)
    got = complete(model, prompt, n_new, engine=kind, **settings)
    assert torch.equal(got, expected)
    return got


# ------------------------------------------------------------------ the same tokens


@pytest.mark.parametrize(
    ("kind", "T"),
    [
        (kind, T)
        for kind in ENGINES
        for T in ((1, 2, 15, 16, 17, 18, 24) if kind is Native else (1, 5, 24))
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("many", [False, True], ids=["one", "batch"])
def test_tokens_are_the_uncached_ones_up_to_the_last_place(model, kind, many, T, ambient_rng):
    prompt = tokens(texts(kind) if many else 1, T)
    text = assert_same_tokens(model, kind, prompt, 25 - T)
    assert text.shape == (len(prompt), 25)
    assert text.dtype == torch.int64


@every
@pytest.mark.parametrize("settings", KINDS, ids=lambda settings: "_".join(settings))
def test_settings_mean_the_same_to_every_engine(model, kind, settings, ambient_rng):
    prompt = tokens(texts(kind), 4)
    got = assert_same_tokens(model, kind, prompt, 21, **settings)
    plain = complete(model, prompt, 21, generator=seeded(1))
    assert not torch.equal(got, plain), (
        "the setting changes nothing here, so this test shows nothing"
    )


@given(
    per_head=st.booleans(),
    batch=st.integers(1, 9),
    T=st.integers(1, 24),
    seed=st.integers(0, 10**6),
    settings=st.sampled_from([{}, {}, *KINDS]),
    data=st.data(),
)
def test_native_tokens_are_the_uncached_ones_for_any_text(per_head, batch, T, seed, settings, data):
    n_new = data.draw(st.integers(1, 25 - T))
    prompt = tokens(batch, T, seed=seed)
    assert_same_tokens(
        tiny_model(per_head), Native, prompt, n_new, generator=seeded(seed), **settings
    )


def right_noise(model, prompt, text, margin=1e-3):
    """Noise with which `text` follows the prompt, as long as no probability is off by more than the margin.

    Every token's noise is its own probability, so all of them run the race to a draw, but the
    wanted one's is smaller by the margin.
    """
    T, whole = prompt.shape[1], torch.cat([prompt, text], dim=1)
    with torch.no_grad():
        probs = model(whole[:, :-1])[0][:, T - 1 :].softmax(-1)  # (B, n, V)
    return probs.scatter(
        2, text[..., None], probs.gather(2, text[..., None]) * (1 - margin)
    ).transpose(0, 1)


def assert_right_probabilities(model, kind, batch, T, n_new):
    """Every token of the vocabulary in turn must win its race by a hair, at every place."""
    vocab = model.config.vocab_size
    prompt = tokens(batch, T, vocab=vocab)
    for first in range(0, vocab, 3 if vocab < 20 else 9):
        text = (torch.arange(first, first + n_new) * 5 + 2 * torch.arange(batch)[:, None]) % vocab
        noise = right_noise(model, prompt, text).contiguous()
        assert torch.equal(complete(model, prompt, n_new, engine=kind, noise=noise)[:, T:], text)


@every
def test_the_probabilities_behind_the_tokens_are_right_to_a_thousandth(model, kind):
    for batch, T in ((1, 1), (1, 5), (texts(kind), 17)):
        assert_right_probabilities(model, kind, batch, T, 25 - T)


@pytest.mark.parametrize("sizes", [UNEVEN, WIDE_HEADS, SMALL], ids=["uneven", "wide", "small"])
@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_native_computes_every_width_and_head_size(per_head, sizes):
    model = tiny_model(per_head, **sizes, block_size=40)
    for batch, T in ((1, 18), (2, 33), (5, 17)):
        assert_same_tokens(model, Native, tokens(batch, T, vocab=65), 41 - T)
    assert_right_probabilities(model, Native, 1, 3, 38)
    assert_right_probabilities(model, Native, 3, 17, 24)
    assert_same_tokens(
        model, Native, tokens(3, 5, vocab=65), 30, temperature=1.3, top_k=20, top_p=0.9
    )


@pytest.mark.parametrize("batch", [4, 5, 21, 32, 63, 64, 65, 70, 129])
def test_native_reads_large_batches_in_blocks(model, batch):
    """Up to 64 vectors at once: 16 places of 4 texts, one place of 64, and what is left over."""
    assert_same_tokens(model, Native, tokens(batch, 18), 7)
    assert_same_tokens(model, Native, tokens(batch, 1), 3)


@pytest.mark.parametrize("T", [1, 2, 15, 16, 17, 18, 33, 160, 191, 192])
def test_native_reads_a_long_prompt_and_writes_a_long_text(T):
    """The loop hands over 1, 2, 4, … 64, 64, … tokens at a time; prompts come in chunks of 16 places."""
    model = tiny_model(False, **SMALL, block_size=192, n_layer=1)
    assert_same_tokens(model, Native, tokens(1, T, vocab=65), 193 - T)


@pytest.mark.parametrize(
    "sizes", [{"n_layer": 1, "n_head": 1}, {"n_layer": 3, "block_size": 9}, UNEVEN]
)
@pytest.mark.parametrize(
    "kind", [Uncached, PerHead, Batched, Static, Flat], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_engines_that_need_no_compiler_take_every_shape(per_head, kind, sizes):
    model = tiny_model(per_head, **sizes)
    room, vocab = model.config.block_size, model.config.vocab_size
    assert_same_tokens(model, kind, tokens(2, 4, vocab=vocab), room - 3)


@pytest.mark.parametrize(
    "kind", [Uncached, PerHead, Batched, Static, Flat], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_decoded_in_their_own_arithmetic(kind, dtype):
    model = tiny_model(dtype=dtype)
    text = complete(model, tokens(2, 5), 20, engine=kind, generator=seeded(1))
    if dtype == torch.float64:  # bfloat16 rounds so coarsely that the order of a sum moves tokens
        assert torch.equal(text, complete(model, tokens(2, 5), 20, cache=None, generator=seeded(1)))
    assert text.shape == (2, 25)


@every
def test_an_engine_may_be_built_for_shorter_texts(model, kind):
    if kind is Compiled:
        pytest.skip(
            "another length is another build of ten seconds; the next test covers its check"
        )
    built = kind(model.config, batch=2, max_len=10)
    assert_same_tokens(model, built, tokens(2, 4), 7)
    assert_same_tokens(model, built, tokens(2, 10), 1)
    with pytest.raises(
        ValueError, match=r"4 and 8 new tokens need room for 11: this \w+ has max_len=10"
    ):
        generate(model, tokens(2, 4), 8, engine=built)


@every
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_prompts_of_either_integer_type_and_any_strides(model, kind, dtype):
    prompt = tokens(6, texts(kind)).to(dtype).T  # columns of a larger table
    assert not prompt.is_contiguous()
    before = prompt.clone()
    expected = complete(model, prompt.to(torch.int64), 8, cache=None, generator=seeded(1))
    got = torch.cat(list(generate(model, prompt, 8, engine=kind, generator=seeded(1))), dim=1)
    assert torch.equal(got, expected[:, 6:])
    assert torch.equal(prompt, before), "the prompt was written to"


@every
@pytest.mark.parametrize("lies", ["double", "across"])
def test_noise_may_be_of_any_dtype_and_lie_in_any_order(model, kind, lies):
    noise = draw_noise(12, texts(kind), 13, seeded(3))
    expected = complete(model, tokens(texts(kind), 5), 12, cache=None, noise=noise)
    noise = (
        noise.double() if lies == "double" else noise.transpose(0, 2).contiguous().transpose(0, 2)
    )
    assert torch.equal(
        complete(model, tokens(texts(kind), 5), 12, engine=kind, noise=noise), expected
    )


@every
def test_fewer_tokens_are_the_first_of_more(model, kind):
    long = complete(model, tokens(1, 5), 20, engine=kind, generator=seeded(4))
    for n_new in (1, 2, 7):
        text = complete(model, tokens(1, 5), n_new, engine=kind, generator=seeded(4))
        assert torch.equal(text, long[:, : 5 + n_new])


# ------------------------------------------------------------------ weights that change


def flipped(parameter):
    return parameter.detach().flip(0).contiguous() - 0.05


def in_place(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(flipped(parameter))


def through_data(model):
    for parameter in model.parameters():
        parameter.data = flipped(parameter)


def through_data_in_place(model):
    for parameter in model.parameters():
        parameter.data.mul_(-1).add_(0.03)


def by_state_dict(model):
    model.load_state_dict({key: flipped(value) for key, value in model.state_dict().items()})


def by_new_parameters(model):
    for module in model.modules():
        for key, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, key, torch.nn.Parameter(flipped(parameter)))


def by_an_optimiser(model):
    optimiser = torch.optim.SGD(model.parameters(), lr=5.0)
    model(tokens(4, 20), tokens(4, 20, seed=1))[1].backward()
    optimiser.step()
    optimiser.zero_grad()


CHANGES = [
    in_place,
    through_data,
    through_data_in_place,
    by_state_dict,
    by_new_parameters,
    by_an_optimiser,
]


@every
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_weights_are_the_weights_of_the_next_text(model, kind, change):
    prompt = tokens(1, 5)
    built = kind(model.config)
    before = assert_same_tokens(model, built, prompt, 12)
    assert_same_tokens(model, kind, prompt, 12)
    waiting = generate(model, prompt, 12, engine=built, generator=seeded(1))
    waiting.close()
    change(model)
    after = assert_same_tokens(model, built, prompt, 12)
    assert_same_tokens(model, kind, prompt, 12)
    assert not torch.equal(before, after), "the change moves no token, so this test shows nothing"


@every
def test_each_weight_alone_is_read_anew(kind):
    """One stale tensor among many would be enough for a wrong token."""
    model = tiny_model(False)
    built, prompt = kind(model.config), tokens(1, 5)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(flipped(parameter))
        text = tokens(1, 6, seed=2)
        noise = right_noise(model, prompt, text).contiguous()
        assert torch.equal(complete(model, prompt, 6, engine=built, noise=noise)[:, 5:], text)


@every
def test_weights_may_lie_in_memory_in_any_order(model, kind):
    for linear in (model.lm_head, model.blocks[0].sa.proj, model.blocks[1].ffwd.net[0]):
        linear.weight = torch.nn.Parameter(linear.weight.detach().T.contiguous().T)
        assert not linear.weight.is_contiguous()
    wide = torch.randn(16, 2, generator=seeded(5))
    model.ln_f.weight = torch.nn.Parameter(wide[:, 0])
    assert_same_tokens(model, kind, tokens(texts(kind), 5), 20)


@every
def test_weights_may_be_shared(model, kind):
    model.lm_head.weight = model.token_embedding_table.weight
    model.blocks[1].ffwd = model.blocks[0].ffwd
    assert_same_tokens(model, kind, tokens(1, 5), 20)


@every
def test_a_model_cast_half_way_does_not_pull_the_memory_from_under_a_generation(model, kind):
    """Casting frees the old weights; a generation that reads them must hold on to them."""
    expected = complete(model, tokens(1, 5), 20, cache=None, generator=seeded(1))
    iterator = generate(model, tokens(1, 5), 20, engine=kind(model.config), generator=seeded(1))
    got = [next(iterator)]
    sizes = [parameter.numel() for parameter in model.parameters()]
    model.double()
    rubbish = [torch.full((size,), 7.0) for size in sizes for _ in range(3)]
    if kind in FAST:
        got += list(iterator)
        assert torch.equal(torch.cat(got, dim=1), expected[:, 5:])
    iterator.close()
    del rubbish


@pytest.mark.parametrize(
    "kind", [*ENGINES, "One", "Five"], ids=lambda kind: getattr(kind, "__name__", kind)
)
def test_a_model_full_of_nan_does_not_spoil_the_next_ones_text(kind):
    """What it leaves in buffers that serve again is counted 0 times, and 0 times NaN is NaN."""
    kind = {"One": One, "Five": Five}.get(kind, kind)
    good, bad = tiny_model(), tiny_model()
    with torch.no_grad():
        bad.position_embedding_table.weight.fill_(float("nan"))
    built = kind(good.config)
    list(generate(bad, tokens(1, 24), 1, engine=built))
    assert_same_tokens(good, built, tokens(1, 5), 20)


@every
def test_one_engine_serves_every_model_of_its_shape(kind):
    built, prompt = kind(tiny_model().config, batch=texts(kind)), tokens(texts(kind), 5)
    seen = []
    for per_head in (True, False, True):
        model = tiny_model(per_head, dropout=0.1 * len(seen))
        with torch.no_grad():
            model.lm_head.weight.mul_(len(seen) - 1.5)
        seen.append(assert_same_tokens(model, built, prompt, 20))
    assert not torch.equal(seen[0], seen[1])
    del model
    assert torch.equal(
        complete(tiny_model(), prompt, 20, engine=built, generator=seeded(1)),
        complete(tiny_model(), prompt, 20, cache=None, generator=seeded(1)),
    )


@pytest.mark.parametrize("kind", [Compiled, Native], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("part", ["token_embedding_table", "position_embedding_table"])
def test_a_model_of_mixed_dtypes_is_decoded_rightly_or_refused(kind, part):
    """What is read as it lies in memory must be what the engine takes it for."""
    model = tiny_model()
    getattr(model, part).to(torch.bfloat16)  # PyTorch adds it to float32 without a word
    expected = complete(model, tokens(1, 5), 20, cache=None, generator=seeded(1))
    got, refusal = tried(
        lambda: complete(model, tokens(1, 5), 20, engine=kind, generator=seeded(1))
    )
    assert "float32" in refusal if refusal else torch.equal(got, expected)


def test_native_refuses_a_block_of_another_dtype():
    model = tiny_model()
    model.blocks[1].ffwd.double()
    with pytest.raises(ValueError, match="not float32.*cast the model whole"):
        complete(model, tokens(1, 5), 3, engine=Native)


# ------------------------------------------------------------------ several texts at a time


@every
def test_two_engines_and_two_texts_take_turns(model, kind):
    prompts = [tokens(1, 3), tokens(1, 9, seed=5)]
    alone = [complete(model, p, 15, cache=None, generator=seeded(i)) for i, p in enumerate(prompts)]
    one, other = kind(model.config), kind(model.config)
    for pair in ((one, one), (one, other), (kind, kind), (other, kind)):
        running = [
            generate(model, p, 15, engine=which, generator=seeded(i))
            for i, (p, which) in enumerate(zip(prompts, pair, strict=True))
        ]
        got = [[], []]
        for both in zip(*running, strict=True):
            for tokens_of, token in zip(got, both, strict=True):
                tokens_of.append(token)
        for p, new, expected in zip(prompts, got, alone, strict=True):
            assert torch.equal(torch.cat([p, *new], dim=1), expected)


@every
def test_two_models_take_turns_on_one_engine(kind):
    first, second = tiny_model(), tiny_model(False)
    in_place(second)
    built, prompt = kind(first.config, batch=texts(kind)), tokens(texts(kind), 5)
    alone = [
        list(generate(m, prompt, 15, cache=None, generator=seeded(1))) for m in (first, second)
    ]
    running = [generate(m, prompt, 15, engine=built, generator=seeded(1)) for m in (first, second)]
    together = list(zip_longest(*running))
    for i in range(2):
        assert all(torch.equal(a, both[i]) for a, both in zip(alone[i], together, strict=True))


@every
@pytest.mark.parametrize("ends", ["closed", "forgotten", "kept"])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_text_left_half_way_does_not_disturb_the_next(model, kind, ends, after):
    built = kind(model.config)
    iterator = generate(model, tokens(1, 20, seed=3), 5, engine=built, generator=seeded(9))
    for _ in range(after):
        next(iterator)
    if ends == "closed":
        iterator.close()
    elif ends == "forgotten":
        del iterator
    if ends != "kept":
        assert built.free
    assert_same_tokens(model, built, tokens(1, 5), 20)
    assert_same_tokens(model, built, tokens(1, 2), 23)


@pytest.mark.parametrize("kind", [Compiled, GraphLoop], ids=lambda kind: kind.__name__)
def test_an_engine_with_one_set_of_buffers_is_free_again_when_a_text_ends(kind):
    model = tiny_model()
    built = (Compiled if kind is Compiled else Five)(model.config)
    assert built.free
    for stop in (1, 99):
        iterator = generate(model, tokens(1, 5), 4, engine=built)
        for _ in zip(range(stop), iterator, strict=False):
            assert not built.free
        iterator.close()
        assert built.free


@every
def test_the_class_is_built_once_for_a_shape(model, kind, forgetful, monkeypatch):
    built = []
    original = kind.build
    monkeypatch.setattr(kind, "build", lambda self: (built.append(self), original(self))[1])
    twin = tiny_model(not model.config.per_head, dropout=0.0)
    for which in (model, twin, model):
        complete(which, tokens(1, 5), 3, engine=kind)
    assert len(built) == 1, "the form and the dropout do not change the arithmetic"
    complete(model, tokens(2, 5), 3, engine=kind)
    assert len(built) == 2
    assert built[1].batch == 2
    assert built[0].max_len == 24


# ------------------------------------------------------------------ what comes out, and what is left


@every
def test_tokens_are_ordinary_tensors(model, kind):
    new = list(generate(model, tokens(texts(kind), 5), 12, engine=kind))
    assert len(new) == 12
    assert {(tuple(t.shape), t.dtype) for t in new} == {((texts(kind), 1), torch.int64)}
    assert not any(t.is_inference() or t.requires_grad for t in new)
    model.train()
    logits, loss = model(
        new[0], new[1]
    )  # an index, and a target: both are saved for the backward pass
    (loss + logits.gather(2, new[2][..., None]).sum()).backward()
    assert model.lm_head.weight.grad is not None


@every
@pytest.mark.parametrize("settings", [{}, {"top_k": 3}], ids=["plain", "top_k"])
def test_editing_a_token_in_place_does_not_change_the_following_ones(model, kind, settings):
    prompt = tokens(1, 5)
    expected = complete(model, prompt, 15, cache=None, generator=seeded(1), **settings)
    got = []
    for token in generate(model, prompt, 15, engine=kind, generator=seeded(1), **settings):
        got.append(token.clone())
        token.fill_((int(token) + 1) % 13)
    assert torch.equal(torch.cat([prompt, *got], dim=1), expected)


@every
def test_a_token_keeps_its_value_while_the_next_ones_come(model, kind):
    held, copies = [], []
    built = kind(model.config, batch=texts(kind))
    for token in generate(model, tokens(texts(kind), 5), 15, engine=built):
        held.append(token)
        copies.append(token.clone())
    complete(model, tokens(texts(kind), 2), 20, engine=built, generator=seeded(5))
    assert all(torch.equal(a, b) for a, b in zip(held, copies, strict=True))


@every
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(model, kind, training, ambient_rng):
    expected = complete(model, tokens(1, 5), 12, cache=None, generator=seeded(1))
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    model.train(training)
    model.blocks[1].train(not training)
    before = state_of(model)
    built = kind(model.config)
    for which in (kind, built):
        iterator = generate(model, tokens(1, 5), 12, engine=which, generator=seeded(1))
        assert state_of(model) == before
        new = []
        for token in iterator:
            new.append(token)
            assert state_of(model) == before
            assert not has_cache(model)
            assert torch.is_grad_enabled(), (
                "the caller's own setting was changed between two tokens"
            )
            assert not torch.is_inference_mode_enabled()
        assert torch.equal(torch.cat(new, dim=1), expected[:, 5:]), "dropout was on"
    assert state_of(model) == before
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@every
def test_an_engine_first_used_in_inference_mode_works_outside_of_it(model, kind):
    with torch.inference_mode():
        built = kind(model.config)
        complete(model, tokens(1, 5), 6, engine=built)
    assert_same_tokens(model, built, tokens(1, 5), 20)
    with torch.inference_mode():
        assert_same_tokens(model, built, tokens(1, 5), 20)


@every
def test_building_and_decoding_leave_denormal_numbers_on(model, kind):
    complete(model, tokens(1, 5), 3, engine=kind)
    assert torch.tensor(1e-40) * 1 != 0


# ------------------------------------------------------------------ the model as a function


@pytest.mark.parametrize("layout", ["layers", "one", "interleaved"])
def test_the_flat_step_gives_the_models_logits_in_every_layout(model, layout):
    weights, text = functional.flatten(model), tokens(3, 12)
    caches = functional.buffers(model.config, 3, 20, layout)
    assert len(caches) == 2
    assert {tuple(t.shape) for pair in caches for t in pair} == {(3, 2, 20, 8)}
    with torch.no_grad():
        expected = model(text)[0]
        got = functional.step(weights, caches, text[:, :7], 0, 2)
        torch.testing.assert_close(got, expected[:, 6], atol=1e-5, rtol=1e-5)
        for t in range(7, 12):
            got = functional.step(weights, caches, text[:, t : t + 1], t, 2)
            torch.testing.assert_close(got, expected[:, t], atol=1e-5, rtol=1e-5)
    assert not any(t[:, :, 12:].any() for pair in caches for t in pair), "nobody has written there"


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match='"layers", "one" or "interleaved"'):
        functional.buffers(tiny_model().config, 1, 8, "rows")


def test_flat_weights_are_the_models_own_memory():
    model = tiny_model(False)
    weights = functional.flatten(model)
    mine = {p.data_ptr() for p in model.parameters()}
    theirs = [t for t in weights if isinstance(t, torch.Tensor)] + [
        t for w in weights.layers for t in w
    ]
    assert {t.data_ptr() for t in theirs} == mine
    assert not any(t.requires_grad for t in theirs)


# ------------------------------------------------------------------ 8 bits


def slow_quantize(weight):
    """The same rounding in PyTorch: half to even, and each row's largest number becomes 127."""
    top = weight.abs().amax(1, keepdim=True)
    inverse = torch.where(
        top > 0, torch.full_like(top, 127.0) / top, 0.0
    )  # 127 / top would round twice
    return (weight * inverse).round().to(torch.int8), (top / 127)[:, 0]


@given(
    n=st.integers(1, 9),
    k=st.integers(1, 70),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e6, 1e20]),
)
def test_codes_and_scales_are_the_slow_reference(n, k, seed, scale):
    weight = scale * torch.randn(n, k, generator=seeded(seed))
    codes, scales = quantize(weight)
    assert (codes.dtype, scales.dtype) == (torch.int8, torch.float32)
    expected, steps = slow_quantize(weight)
    assert torch.equal(codes, expected)
    assert torch.equal(scales, steps)
    assert (codes.abs().amax(1) == 127).all()
    error = (weight - codes * scales[:, None]).abs().amax(1)
    assert (error <= scales * 0.5001).all()


def test_halves_are_rounded_to_even_and_a_row_of_zeros_stays_one():
    weight = torch.tensor(
        [[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5], [0.0] * 7, [-127, 126.5, 125.5, 1, 2, 3, 4]]
    )
    codes, scales = quantize(weight)
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -2], [0] * 7, [-127, 126, 126, 1, 2, 3, 4]]
    assert scales.tolist() == [1.0, 0.0, 1.0]


def test_a_matrix_is_quantised_row_by_row_however_it_lies():
    weight = torch.randn(12, 7, generator=seeded()).T
    assert torch.equal(quantize(weight)[0], slow_quantize(weight)[0])
    together = quantize(torch.cat([weight, 9 * weight]))
    assert torch.equal(together[0][:7], together[0][7:])
    assert torch.equal(together[1][:7], quantize(weight)[1])


def rounded(model):
    """A model in float32 whose matrices went through 8 bits and back."""
    twin = tiny_model(model.config.per_head, **UNEVEN, block_size=model.config.block_size)
    twin.load_state_dict(model.state_dict())
    matrices = [twin.lm_head, *[m for m in twin.blocks.modules() if isinstance(m, torch.nn.Linear)]]
    assert len(matrices) == 1 + 2 * (3 + (9 if model.config.per_head else 1))
    with torch.no_grad():
        for linear in matrices:
            codes, scales = slow_quantize(linear.weight)
            linear.weight.copy_(codes * scales[:, None])
    return twin


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_native8_is_the_model_with_its_matrices_rounded(per_head):
    model = tiny_model(per_head, **UNEVEN, block_size=40)
    twin, seen = rounded(model), set()
    for batch, T in ((1, 1), (1, 18), (2, 33), (5, 17)):
        prompt = tokens(batch, T, vocab=65)
        expected = complete(twin, prompt, 41 - T, cache=None, generator=seeded(1))
        got = complete(model, prompt, 41 - T, engine=Native8, generator=seeded(1))
        assert torch.equal(got, expected)
        seen.add(torch.equal(got, complete(model, prompt, 41 - T, generator=seeded(1))))
    assert False in seen, "rounding moves no token here, so this test shows nothing"
    prompt, text = tokens(2, 17, vocab=65), tokens(2, 20, vocab=65, seed=4)
    noise = right_noise(twin, prompt, text).contiguous()
    assert torch.equal(complete(model, prompt, 20, engine=Native8, noise=noise)[:, 17:], text)


def test_native8_rounds_the_weights_as_they_are_now():
    model = tiny_model(False, **UNEVEN)
    built, prompt = Native8(model.config), tokens(1, 5, vocab=65)
    before = complete(model, prompt, 20, engine=built, generator=seeded(1))
    in_place(model)
    got = complete(model, prompt, 20, engine=built, generator=seeded(1))
    assert torch.equal(got, complete(rounded(model), prompt, 20, cache=None, generator=seeded(1)))
    assert not torch.equal(got, before)


def test_the_measuring_functions_do_what_they_are_timed_for():
    lib = library(64, 4, 65)
    numbers = torch.arange(1024).remainder(7).float()
    for n in (0, 256, 1024):
        assert lib.read_all(numbers.data_ptr(), n, 3) == 3 * float(numbers[:n].sum())
    out = ctypes.c_float(0)
    lanes = lib.multiply_add(1000, ctypes.addressof(out))
    assert lanes in (4, 8, 16)
    assert out.value == pytest.approx(lanes * sum(range(16)), rel=1e-3)


# ------------------------------------------------------------------ errors, at the call


def expect_refusal(message, model, prompt, n_new, **settings):
    before = state_of(model)
    with pytest.raises(ValueError, match=message) as error:
        generate(model, prompt, n_new, **settings)
    assert "\n" not in str(error.value)
    assert state_of(model) == before


@pytest.mark.parametrize("what", ["native", object(), 3, torch.nn.Linear, lambda: None], ids=str)
def test_what_is_no_engine_is_refused(model, what):
    expect_refusal("pass a class, as in engine=Native", model, tokens(1, 5), 3, engine=what)


@every
@pytest.mark.parametrize(
    "cache", [None, base.Engine, lambda room: None], ids=["none", "class", "function"]
)
def test_an_engine_and_a_cache_are_refused_together(model, kind, cache):
    expect_refusal("either engine or cache", model, tokens(1, 5), 3, engine=kind, cache=cache)


@every
def test_no_engine_slides_past_the_block(model, kind):
    text = "for a longer text leave engine out"
    told(lambda: expect_refusal(text, model, tokens(1, 5), 21, engine=kind, past_block="slide"))
    complete(
        model, tokens(1, 5), 20, engine=kind, past_block="slide"
    )  # inside the block it changes nothing
    expect_refusal("5 and 21 new tokens pass block_size 24", model, tokens(1, 5), 21, engine=kind)


@every
def test_an_engine_built_for_something_else_is_refused(model, kind):
    built = kind(model.config)
    cls = kind.__name__
    expect_refusal(
        f"this {cls} was built for a batch of 1 and got 2.*engine={cls}",
        model,
        tokens(2, 5),
        3,
        engine=built,
    )
    pair = kind(model.config, batch=2)
    expect_refusal("a batch of 2 and got 1", model, tokens(1, 5), 3, engine=pair)
    changed = [
        ({"n_layer": 3}, "3 layers"),
        ({"n_head": 4}, "4 heads"),
        ({"n_embd": 20}, "width 20"),
        ({"block_size": 25}, "block 25"),
        ({"vocab_size": 14}, "14 tokens"),
    ]
    for sizes, words in changed:
        expect_refusal(
            f"a model of 2 layers.* and got .*{words}.*: build another",
            tiny_model(**sizes),
            tokens(1, 5),
            3,
            engine=built,
        )
    expect_refusal(
        "weights in float32 and got bfloat16",
        tiny_model(dtype=torch.bfloat16),
        tokens(1, 5),
        3,
        engine=built,
    )


@every
def test_an_engine_of_another_device_is_refused(model, kind):
    built = kind(model.config)
    built.device = torch.device("cuda")
    expect_refusal("the device cuda and got cpu", model, tokens(1, 5), 3, engine=built)


@every
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch": 0}, "batch=0: a whole number of at least 1"),
        ({"batch": -2}, "batch=-2"),
        ({"batch": 1.0}, r"batch=1\.0"),
        ({"batch": True}, "batch=True"),
        ({"max_len": 0}, "max_len=0: a whole number"),
        ({"max_len": 25}, "max_len=25 > block_size 24"),
    ],
)
def test_an_engine_of_impossible_sizes_is_refused(kind, sizes, message):
    with pytest.raises(ValueError, match=message):
        kind(tiny_model().config, **sizes)


class Odd(Head):
    """A head that computes something else."""

    def forward(self, x, pos):
        return 0.1 * super().forward(x, pos)


@pytest.mark.parametrize("kind", [*FAST, Native8], ids=lambda kind: kind.__name__)
def test_heads_that_an_engine_does_not_compute_are_refused_at_the_call(kind):
    sizes = UNEVEN if kind is Native8 else {}  # which is built by now
    expect_refusal(
        r"has \S+\.Odd where nanogpt.model.Head is expected",
        tiny_model(head=Odd, **sizes),
        tokens(1, 5),
        3,
        engine=kind,
    )


@every
def test_heads_of_ones_own_are_run_or_refused_but_never_replaced(kind):
    model, prompt = tiny_model(head=Odd), tokens(1, 5)
    expected = complete(model, prompt, 20, cache=None, generator=seeded(1))
    assert not torch.equal(expected, complete(tiny_model(), prompt, 20, generator=seeded(1)))
    got, refusal = tried(lambda: complete(model, prompt, 20, engine=kind, generator=seeded(1)))
    assert "Odd" in refusal if refusal else torch.equal(got, expected)


# ------------------------------------------------------------------ what cannot be built here


def assert_one_line(messages):
    for message, filename in messages:
        assert "\n" not in message
        assert filename == __file__, "the warning points at the caller's line"


def test_without_a_compiler_the_rung_below_decodes(model, forgetful, monkeypatch):
    def none():
        raise CannotBuild("no C++ compiler (c++): install one, or set CXX")

    none.cache_clear = lambda: None
    monkeypatch.setattr(toolchain, "compiler", none)
    expected = complete(model, tokens(2, 5), 9, cache=None, generator=seeded(1))
    run = lambda: complete(model, tokens(2, 5), 9, engine=Native, generator=seeded(1))  # noqa: E731
    got, messages = told(run)
    assert torch.equal(got, expected)
    why = "no C++ compiler (c++): install one, or set CXX"
    assert [m for m, _ in messages] == [
        f"Native cannot be built here, Compiled decodes instead: {why}",
        f"Compiled cannot be built here, Flat decodes instead: {why}",
    ]
    got, messages = told(run)
    assert torch.equal(got, expected)
    assert messages == [], "it was tried again for the next text"
    for kind in (Native, Native8, Compiled):
        with pytest.raises(CannotBuild, match="set CXX"):
            kind(model.config)


def test_every_warning_of_a_fallback_points_at_the_caller(model, forgetful):
    for kind in (Native, Native8, Compiled, Graph, GraphLoop):
        bf16 = tiny_model(dtype=torch.bfloat16)
        _, messages = told(
            lambda kind=kind, bf16=bf16: complete(bf16, tokens(1, 5), 3, engine=kind)
        )
        _, messages = told(
            lambda kind=kind, bf16=bf16: generate(bf16, tokens(3, 5), 3, engine=kind)
        )
        assert_one_line(messages)


def test_what_fails_is_not_built_again_for_the_next_text(model, forgetful, monkeypatch):
    tried = []

    class Broken(Flat):
        below = Flat

        def build(self):
            tried.append(self.batch)
            raise CannotBuild("it is broken")

    for _ in range(3):
        told(lambda: complete(model, tokens(1, 5), 3, engine=Broken))
    assert tried == [1]
    _, messages = told(lambda: list(generate(model, tokens(2, 5), 3, engine=Broken)))
    assert tried == [1, 2], "another shape is tried once"
    assert [m for m, _ in messages] == [
        "Broken cannot be built here, Flat decodes instead: it is broken"
    ]
    assert_one_line(messages)


def test_an_engine_with_nothing_below_says_why_it_cannot_be_built(model, forgetful):
    class Broken(Flat):
        below = None

        def build(self):
            raise CannotBuild("it is broken")

    for _ in range(2):
        with pytest.raises(CannotBuild, match="it is broken"):
            generate(model, tokens(1, 5), 3, engine=Broken)


def test_sources_that_do_not_compile_fall_back_one_rung(model, forgetful, monkeypatch, tmp_path):
    (tmp_path / "native.cpp").write_text("#error boom\n")
    monkeypatch.setattr(native_library, "SOURCE", tmp_path / "native.cpp")
    run = lambda: list(generate(model, tokens(2, 5), 9, engine=Native, generator=seeded(1)))  # noqa: E731
    got, messages = told(run)
    assert torch.equal(
        torch.cat(got, 1), complete(model, tokens(2, 5), 9, generator=seeded(1))[:, 5:]
    )
    assert len(messages) == 1
    assert messages[0][0].startswith("Native cannot be built here, Compiled decodes instead: ")
    assert "boom" in messages[0][0]
    assert_one_line(messages)
    assert told(run)[1] == []
    with pytest.raises(CannotBuild, match="cannot compile native.cpp: .*boom"):
        Native(model.config)


@pytest.mark.parametrize("kind", [Native, Compiled], ids=lambda kind: kind.__name__)
def test_a_build_that_cannot_be_loaded_is_told_in_one_line(kind, forgetful, monkeypatch):
    def refuse(*args, **kwargs):
        raise (OSError if kind is Native else RuntimeError)(
            "wrong ELF class\nraised from somewhere"
        )

    module, name_ = (
        (ctypes, "CDLL") if kind is Native else (torch._C._aoti, "AOTIModelPackageLoader")
    )
    monkeypatch.setattr(module, name_, refuse)
    with pytest.raises(CannotBuild, match="cannot (be loaded|load ).*wrong ELF class") as error:
        kind(tiny_model().config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [Native, Native8, Compiled], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"dtype": torch.bfloat16}, "not bfloat16 on cpu"),
        ({"dtype": torch.float64}, "not float64 on cpu"),
        ({"device": "cuda"}, "not float32 on cuda"),
    ],
)
def test_engines_for_float32_on_the_cpu_say_so(kind, where, words):
    with pytest.raises(CannotBuild, match=f"float32 on the CPU, {words}"):
        kind(tiny_model().config, **where)


@pytest.mark.parametrize("kind", [Native, Native8, Compiled], ids=lambda kind: kind.__name__)
def test_a_model_in_half_precision_is_decoded_all_the_same(kind, forgetful):
    model = tiny_model(dtype=torch.bfloat16)
    got, messages = told(
        lambda: complete(model, tokens(2, 5), 15, engine=kind, generator=seeded(1))
    )
    assert messages[0][0].startswith(f"{kind.__name__} cannot be built here")
    assert "not bfloat16 on cpu" in messages[0][0]
    assert torch.equal(got, complete(model, tokens(2, 5), 15, engine=Flat, generator=seeded(1)))
    assert told(lambda: complete(model, tokens(2, 5), 3, engine=kind))[1] == []


# ------------------------------------------------------------------ CUDA graphs, replayed by hand


class Eager(GraphLoop):
    """A graph's logic without a GPU: what would be recorded is run instead."""

    def build(self):
        self._allocate()
        self.replay = torch.no_grad()(self._steps)


class One(Eager):
    steps = 1


class Five(Eager):
    steps = 5


steps = pytest.mark.parametrize("kind", [One, Five], ids=["one step", "five steps"])


@steps
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("T", [1, 2, 5, 20, 23, 24])
def test_a_graph_gives_the_uncached_tokens_up_to_the_last_place(model, kind, batch, T, ambient_rng):
    assert_same_tokens(model, kind, tokens(batch, T), 25 - T)


@steps
@pytest.mark.parametrize("settings", KINDS, ids=lambda settings: "_".join(settings))
def test_a_graph_takes_every_setting(model, kind, settings):
    built = kind(model.config, batch=3)
    assert_same_tokens(model, built, tokens(3, 4), 21, **settings)
    assert_same_tokens(model, built, tokens(3, 6), 11)
    assert_same_tokens(model, built, tokens(3, 2), 23, **settings)


@steps
def test_a_graph_gets_the_probabilities_right(model, kind):
    assert_right_probabilities(model, kind, 2, 3, 22)


@steps
def test_a_graph_is_replayed_only_as_often_as_it_must(model, kind):
    built, calls = kind(model.config), []
    replay = built.replay
    built.replay = lambda: (calls.append(1), replay())
    assert_same_tokens(model, built, tokens(1, 5), 11)
    assert len(calls) == {One: 11, Five: 3}[kind]


@steps
@pytest.mark.parametrize(
    "change", [in_place, by_new_parameters], ids=lambda change: change.__name__
)
def test_a_graph_reads_the_weights_anew(model, kind, change):
    built = kind(model.config)
    before = assert_same_tokens(model, built, tokens(1, 5), 20)
    change(model)
    assert not torch.equal(assert_same_tokens(model, built, tokens(1, 5), 20), before)


@steps
def test_a_graph_built_for_shorter_texts_ends_there(model, kind):
    built = kind(model.config, max_len=10)
    assert_same_tokens(model, built, tokens(1, 4), 7)
    assert_same_tokens(model, built, tokens(1, 10), 1)
    expect_refusal("max_len=10", model, tokens(1, 4), 8, engine=built)


@steps
@pytest.mark.parametrize("instance", [True, False], ids=["instance", "class"])
def test_three_texts_take_turns_on_a_graph(model, kind, instance):
    prompts = [tokens(1, 3), tokens(1, 9, seed=5), tokens(1, 4, seed=6)]
    alone = [list(generate(model, p, 15, cache=None, generator=seeded(1))) for p in prompts]
    which = kind(model.config) if instance else kind
    running = [generate(model, p, 15, engine=which, generator=seeded(1)) for p in prompts]
    for *expected, got in zip(*alone, zip(*running, strict=True), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert_same_tokens(model, which, tokens(1, 5), 20)


@steps
@pytest.mark.parametrize("settings", [{}, {"top_k": 3}], ids=["plain", "top_k"])
def test_a_graphs_tokens_are_the_callers_to_edit(model, kind, settings):
    expected = complete(model, tokens(1, 5), 15, cache=None, generator=seeded(1), **settings)
    built = kind(model.config)
    held = list(generate(model, tokens(1, 5), 15, engine=built, generator=seeded(1), **settings))
    complete(model, tokens(1, 2), 20, engine=built, generator=seeded(5))
    assert torch.equal(torch.cat(held, 1), expected[:, 5:]), "the next text was written over them"
    got = []
    for token in generate(model, tokens(1, 5), 15, engine=built, generator=seeded(1), **settings):
        got.append(token.clone())
        assert not token.is_inference()
        token.fill_(0)
    assert torch.equal(torch.cat(got, 1), expected[:, 5:])


@pytest.mark.parametrize("kind", [Graph, GraphLoop], ids=lambda kind: kind.__name__)
def test_without_cuda_a_graph_is_not_built_and_flat_decodes(model, kind, forgetful):
    with pytest.raises(CannotBuild, match="a CUDA graph needs a CUDA device, not cpu"):
        kind(model.config)
    got, messages = told(lambda: complete(model, tokens(2, 5), 9, engine=kind, generator=seeded(1)))
    assert torch.equal(got, complete(model, tokens(2, 5), 9, cache=None, generator=seeded(1)))
    assert messages[0][0].startswith(f"{kind.__name__} cannot be built here")
    assert "Flat decodes instead: a CUDA graph needs a CUDA device, not cpu" in messages[-1][0]
    assert all("\n" not in message for message, _ in messages)
    assert told(lambda: complete(model, tokens(2, 5), 9, engine=kind))[1] == []


def test_a_step_that_cannot_be_recorded_is_told_in_one_line(monkeypatch):
    def fail(self):
        raise RuntimeError("CUDA error: no room\nand more")

    monkeypatch.setattr(Graph, "_allocate", fail)
    with pytest.raises(CannotBuild) as error:
        Graph(tiny_model().config, device="cuda")
    assert str(error.value) == "the step cannot be recorded: CUDA error: no room"


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA_ENGINES = [Static, Flat, Graph, GraphLoop]


@needs_cuda
@pytest.mark.parametrize("kind", CUDA_ENGINES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("T", [1, 5, 24])
def test_on_a_gpu_tokens_are_the_uncached_ones(model, kind, batch, T):
    model = model.cuda()
    prompt = tokens(batch, T).cuda()
    assert_same_tokens(model, kind, prompt, 25 - T)
    for settings in KINDS:
        assert_same_tokens(model, kind, prompt, 25 - T, **settings)


@needs_cuda
@pytest.mark.parametrize("kind", CUDA_ENGINES, ids=lambda kind: kind.__name__)
def test_on_a_gpu_changed_weights_and_interleaved_texts_are_right(model, kind):
    model = model.cuda()
    built, prompt = kind(model.config, device="cuda"), tokens(1, 5).cuda()
    before = assert_same_tokens(model, built, prompt, 20)
    in_place(model)
    assert not torch.equal(assert_same_tokens(model, built, prompt, 20), before)
    prompts = [tokens(1, 3).cuda(), tokens(1, 9).cuda()]
    alone = [list(generate(model, p, 15, cache=None, generator=seeded(1))) for p in prompts]
    running = [generate(model, p, 15, engine=built, generator=seeded(1)) for p in prompts]
    for *expected, got in zip(*alone, zip(*running, strict=True), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@needs_cuda
@pytest.mark.parametrize("kind", [Native, Compiled], ids=lambda kind: kind.__name__)
def test_on_a_gpu_the_engines_of_the_cpu_give_way(model, kind, forgetful):
    model = model.cuda()
    prompt = tokens(1, 5).cuda()
    got, messages = told(lambda: complete(model, prompt, 9, engine=kind, generator=seeded(1)))
    assert torch.equal(got, complete(model, prompt, 9, cache=None, generator=seeded(1)))
    assert "not float32 on cuda" in messages[0][0]


def test_every_engine_here_is_an_engine():
    assert all(issubclass(kind, Engine) for kind in [*ENGINES, Native8, Graph, GraphLoop])


# ------------------------------------------------------------------ what torch was told before


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], ids=str)
def test_a_default_dtype_changes_nothing(default):
    """Buffers are float32 by name: of another size they would be written past their end."""
    model = tiny_model()
    prompt, before = tokens(3, 7), torch.get_default_dtype()
    expected = complete(model, prompt, 15, generator=seeded())
    try:
        torch.set_default_dtype(default)
        for kind in (None, Static, Flat, Native, Native(model.config, batch=3)):
            for _ in range(3):
                assert torch.equal(
                    complete(model, prompt, 15, generator=seeded(), engine=kind), expected
                ), kind
    finally:
        torch.set_default_dtype(before)
