"""Anything at all: the right result, or our own error that names what was wrong."""

import math
import warnings

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded, state_of, tiny_model, tokens
from fuzz_fixtures import attempt, equal, examples, is_number, is_whole
from hypothesis import given

from nanogpt.cache.base import KVCache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.static import StaticCache
from nanogpt.decoding.generate import generate
from nanogpt.decoding.sampling import SamplingParams, sample

VOCABULARY, BLOCK = 13, 24


PLAIN = tiny_model(dtype=torch.float64)  # float64: no rounding is near enough to move a token
MODELS = {True: PLAIN, False: tiny_model(per_head=False, dtype=torch.float64)}
WEIGHTS = {
    form: {key: t.clone() for key, t in model.state_dict().items()}
    for form, model in MODELS.items()
}


odd_numbers = st.one_of(
    st.none(),
    st.just("1"),
    st.booleans(),
    st.integers(-2, 20),
    st.floats(-1, 2),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e-320, 1e300, 10**30]),
)


@st.composite
def prompts(draw, odd):
    """(B, T) tokens; an odd prompt is of another shape, dtype or kind."""
    kind = draw(st.integers(0, 3)) if odd else None
    if kind == 0:
        return draw(st.sampled_from(["the", None, 3, [[1, 2]], (1,), 2.5]))
    if kind == 1:
        shape = draw(st.lists(st.integers(0, 3), max_size=4))
        return torch.zeros(shape, dtype=draw(st.sampled_from([torch.int64, torch.float32])))
    dtype = torch.int64
    if kind == 2:
        dtype = draw(
            st.sampled_from(
                [torch.int32, torch.int16, torch.uint8, torch.bool, torch.float64, torch.complex64]
            )
        )
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 10) | st.integers(20, 30))
    prompt = tokens(*shape, seed=draw(st.integers(0, 99)))
    if kind == 3:
        prompt[0, -1] = draw(st.sampled_from([-1, 13, 14, -(2**62), 2**62]))
    return prompt.to(dtype)


ARGUMENTS = [
    "prompt",
    "n_new",
    "cache",
    "past_block",
    "generator",
    "temperature",
    "top_k",
    "top_p",
    "noise",
]


@st.composite
def calls(draw, odd):
    """Arguments of generate: all good, but for the one that may be odd."""

    def pick(name, good, bad):
        return draw(bad if name == odd else good)

    # A bool as a number is Python's own way, and not tested.
    odd_floats = odd_numbers.filter(lambda v: not isinstance(v, bool))
    counts = st.sampled_from([0, -1, True, 2.0, "3", None, 30, math.nan])
    call = {
        "prompt": draw(prompts(odd == "prompt")),
        "n_new": pick("n_new", st.integers(1, 6), counts),
        "cache": pick(
            "cache",
            st.sampled_from([None, DynamicCache, StaticCache]),
            # A callable that builds no cache is refused at the first token only, see below.
            st.sampled_from([DynamicCache(), StaticCache(9), "dynamic", 0, True, False, []]),
        ),
        "past_block": pick(
            "past_block",
            st.sampled_from(["slide", "error"]),
            st.sampled_from(["Slide", "", None, 1, True, ["slide"]]),
        ),
        "generator": pick(
            "generator",
            st.none() | st.integers(0, 99).map(seeded),
            st.sampled_from([0, 1337, "cpu", True, 2.5, {}]),
        ),
    }
    if draw(st.integers(0, 4)) == 4:
        call["greedy"] = draw(st.booleans())
    given_too = draw(st.sets(st.sampled_from(ARGUMENTS[5:]))) | {odd}
    if "temperature" in given_too:
        call["temperature"] = pick(
            "temperature",
            st.floats(0.01, 9) | st.integers(1, 3),
            odd_floats.filter(lambda v: v != 10**30),
        )
    if "top_k" in given_too:
        call["top_k"] = pick(
            "top_k", st.none() | st.integers(1, VOCABULARY), odd_numbers | st.sampled_from([0, 14])
        )
    if "top_p" in given_too:
        call["top_p"] = pick("top_p", st.none() | st.floats(0.01, 1) | st.just(1), odd_floats)
    if "noise" in given_too and isinstance(call["prompt"], torch.Tensor) and call["prompt"].ndim:
        shape = [
            n if is_whole(n := call["n_new"]) and 0 < n < 99 else 1,
            len(call["prompt"]),
            VOCABULARY,
        ]
        shape[draw(st.integers(0, 2))] += odd == "noise"
        noise = torch.rand(shape, generator=seeded(draw(st.integers(0, 99)))) + 1e-3
        odd_noise = st.sampled_from(
            [noise, noise, noise, noise[None], noise.tolist(), [], "noise", 0]
        )
        call["noise"] = pick("noise", st.just(noise), odd_noise)
    return call


def refused(call) -> dict:
    """By the docstring of generate: the arguments that are wrong, and words that must be said."""
    said, prompt, n_new = {}, call["prompt"], call["n_new"]
    if not isinstance(prompt, torch.Tensor):
        said["prompt"] = type(prompt).__name__
    elif prompt.ndim != 2 or prompt.numel() == 0:
        said["prompt"] = str(tuple(prompt.shape))
    elif prompt.dtype not in (torch.int32, torch.int64):
        said["prompt"] = str(prompt.dtype)
    elif not 0 <= prompt.min() <= prompt.max() < VOCABULARY:
        said["prompt"] = f"{int(prompt.min())} to {int(prompt.max())}"
    if not is_whole(n_new) or n_new < 1:
        said["n_new"] = f"n_new={n_new!r}"
    temperature, top_k, top_p = call.get("temperature", 1.0), call.get("top_k"), call.get("top_p")
    if not is_number(temperature) or not 1e-6 <= temperature <= 1e38:
        said["temperature"] = f"temperature={temperature!r}"
    if top_k is not None and (not is_whole(top_k) or not 1 <= top_k <= VOCABULARY):
        said["top_k"] = f"top_k={top_k!r}"
    if top_p is not None and (not is_number(top_p) or not 1e-30 <= top_p <= 1):
        said["top_p"] = f"top_p={top_p!r}"
    if call.get("greedy") and (top_k is not None or top_p is not None or temperature != 1):
        said["greedy"] = "greedy=True"
    if call["past_block"] not in ("error", "slide"):
        said["past_block"] = f"past_block={call['past_block']!r}"
    sized = {"prompt", "n_new"}.isdisjoint(said)
    if sized and call["past_block"] == "error" and prompt.shape[1] + n_new - 1 > BLOCK:
        said["length"] = (
            f"a prompt of {prompt.shape[1]} and {n_new} new tokens exceed block_size {BLOCK}"
        )
    if call["cache"] not in (None, DynamicCache, StaticCache):
        said["cache"] = repr(call["cache"])
    if not isinstance(call["generator"], (torch.Generator, type(None))):
        said["generator"] = f"generator={call['generator']!r}"
    noise = None if call.get("greedy") else call.get("noise")
    if (
        sized
        and noise is not None
        and getattr(noise, "shape", ()) != (n_new, len(prompt), VOCABULARY)
    ):
        said["noise"] = f"need {(n_new, len(prompt), VOCABULARY)}"
    return said


HOW = ("temperature", "top_k", "top_p", "greedy")


def run(model, **call) -> torch.Tensor:
    how = SamplingParams(**{key: call.pop(key) for key in HOW if key in call})
    return torch.cat(list(generate(model, call.pop("prompt"), call.pop("n_new"), how, **call)), 1)


@torch.no_grad()
def slow(prompt, n_new, *, generator=None, noise=None, **settings):
    """The lecture's loop on its own heads: crop, compute everything again, draw."""
    generator = generator or seeded(1337)
    text = prompt.to(torch.int64)
    for step in range(n_new):
        logits = PLAIN(text[:, -BLOCK:])[0][:, -1]
        row = torch.ones(len(text), VOCABULARY)
        if not settings.get("greedy"):
            row = row.exponential_(generator=generator) if noise is None else noise[step]
        text = torch.cat([text, sample(logits, row, SamplingParams(**settings))], dim=1)
    return text[:, prompt.shape[1] :]


@pytest.mark.parametrize("odd", ["none", *ARGUMENTS])
@given(data=st.data(), per_head=st.booleans(), mode=st.booleans())
@examples(15)
def test_any_call_gives_the_slow_loops_tokens_or_is_refused_by_name_and_changes_nothing(
    odd, data, per_head, mode
):
    call = data.draw(calls(odd))
    model, generator = MODELS[per_head].train(mode), call["generator"]
    before, random = state_of(model), torch.random.get_rng_state()
    seed = generator.get_state() if isinstance(generator, torch.Generator) else None
    prompt = call["prompt"].clone() if isinstance(call["prompt"], torch.Tensor) else None
    wrong = refused(call)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "past block_size")
        found, error = attempt(lambda: run(model, **call), ValueError)
    assert state_of(model) == before
    if error is not None:
        assert any(words in error for words in wrong.values()), (error, wrong)
        assert seed is None or torch.equal(generator.get_state(), seed)
    else:
        assert not wrong
        if seed is not None:
            generator.set_state(seed)
        PLAIN.eval()
        settings = {key: value for key, value in call.items() if key not in ("cache", "past_block")}
        assert torch.equal(found, slow(**settings))
    assert equal(model.state_dict(), WEIGHTS[per_head])
    assert torch.equal(torch.random.get_rng_state(), random)
    assert prompt is None or torch.equal(call["prompt"], prompt)


ODD_CALLS = {
    "a tensor as generator": {"generator": torch.tensor(3)},
    "0 in a tensor as generator": {"generator": torch.tensor(0)},
    "a sparse prompt": {"prompt": tokens(1, 3).to_sparse()},
    "complex noise": {"noise": torch.ones(2, 1, 13, dtype=torch.complex64)},
    "noise elsewhere": {"noise": torch.ones(2, 1, 13, device="meta")},
    "noise of nothing": {"noise": torch.zeros(2, 1, 13)},
    "noise that is nan": {"noise": torch.full((2, 1, 13), math.nan)},
    "a dict as cache": {"cache": dict},
    "the abstract cache": {"cache": KVCache},
    "greedy of two minds": {"greedy": torch.tensor([1, 2])},
    "tokens beyond all memory": {"n_new": 10**30, "past_block": "slide"},
}


@pytest.mark.filterwarnings("ignore:past block_size")
@pytest.mark.parametrize("change", ODD_CALLS.values(), ids=ODD_CALLS)
def test_calls_that_are_odder_still_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        run(tiny_model(), **({"prompt": tokens(1, 3), "n_new": 2} | change))


@pytest.mark.parametrize(
    "change",
    [
        {"engine": 3},
        {"cache": int},
    ],
    ids=["engine", "cache"],
)
def test_what_is_refused_at_the_call_leaves_the_generator_where_it_was(change):
    generator = seeded(3)
    with pytest.raises(ValueError, match=r"engine=3|<class 'int'>"):
        generate(PLAIN, tokens(1, 3), 2, generator=generator, **change)
    assert torch.equal(generator.get_state(), seeded(3).get_state())
