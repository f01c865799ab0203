"""Anything at all, at every door: the right result, or our own error that names what was wrong.

FUZZ=10 pytest tests/test_fuzz.py draws ten times as many examples, others at each run.
"""

import contextlib
import io
import json
import math
import os
import struct
import warnings
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded, state_of, tiny_model, tokens
from hypothesis import assume, example, given
from hypothesis import settings as example_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from notebook_fixtures import write
from safetensors.torch import save_file

from nanogpt.cache.adapters import LayerCaches
from nanogpt.cache.base import KVCache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.static import StaticCache
from nanogpt.cli import run
from nanogpt.config import GPTConfig, TrainConfig
from nanogpt.data.corpus import CorpusError, load_corpus
from nanogpt.data.tokenizer import CharTokenizer
from nanogpt.decoding.generate import generate
from nanogpt.decoding.sampling import sample
from nanogpt.model.checkpoint import FORMAT, CheckpointError, load_checkpoint, read_tensors
from nanogpt.model.gpt import GPT
from nanogpt.publishing import runner
from nanogpt.publishing.parameters import Parameter, RunError, assign, convert
from nanogpt.system.device import Device
from nanogpt.system.files import sha256
from nanogpt.training import loop
from nanogpt.training.loop import train
from nanogpt.training.optimizers import make_optimizers
from nanogpt.training.state import state_path

TIMES = int(os.environ.get("FUZZ", "1"))
CPU = Device(torch.device("cpu"), torch.float32, "tests")


def examples(n: int, **more):
    """n examples, the same at each run; with FUZZ, that many times more, and others each time."""
    return example_settings(max_examples=n * TIMES, derandomize=TIMES == 1, deadline=None, **more)


def attempt(call, *errors) -> tuple:
    """What the call gives, and None; or None, and what the error that it may raise says."""
    try:
        return call(), None
    except errors as error:
        return None, str(error)


def equal(one: dict, other: dict) -> bool:
    """Whether both hold the same tensors: names, types, shapes and bits."""
    return one.keys() == other.keys() and all(
        t.dtype == other[key].dtype and t.shape == other[key].shape and t.equal(other[key])
        for key, t in one.items()
    )


huge = st.sampled_from([2**31, 2**63, 2**64, -(2**70), 10**30, 10**400])
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    huge,
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
    st.just({}),
)


# ------------------------------------------------------------------ characters


@given(vocabulary=st.text(min_size=1), text=st.text())
@examples(200)
def test_a_text_is_encoded_and_comes_back_or_each_unknown_character_is_named(vocabulary, text):
    tokenizer = CharTokenizer(vocabulary)
    unknown = set(text) - set(vocabulary)
    if text and not unknown:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        return
    with pytest.raises(
        ValueError, match="not in the vocabulary" if text else "the prompt is empty"
    ) as error:
        tokenizer.encode(text)
    assert all(repr(char) in str(error.value) for char in unknown)


@given(
    vocabulary=st.text(min_size=1, max_size=300),
    numbers=st.lists(st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1), max_size=6),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]),
)
@examples(200)
def test_any_numbers_are_a_text_or_the_first_that_is_no_token_is_named(vocabulary, numbers, dtype):
    tokenizer, chars = CharTokenizer(vocabulary), sorted(set(vocabulary))
    given_numbers = torch.tensor(numbers, dtype=torch.int64).to(dtype)
    numbers = given_numbers.tolist()
    wrong = [n for n in numbers if not 0 <= n < len(chars)]
    if not wrong:
        assert tokenizer.decode(given_numbers) == "".join(chars[n] for n in numbers)
        return
    with pytest.raises(ValueError, match=f"token {wrong[0]} is none of 0 to {len(chars) - 1}:"):
        tokenizer.decode(given_numbers)


def test_tokens_that_are_no_integers_are_refused():
    with pytest.raises(ValueError, match="integers"):
        CharTokenizer("abc").decode(torch.tensor([1.0]))


# ------------------------------------------------------------------ the corpus

pieces = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(str.encode),
    st.sampled_from(
        [
            b"\xef\xbb\xbf",
            b"\r\n",
            b"\r",
            b"\n",
            b"\0",
            b"\xc3",
            b"\xf0\x9f\x99\x82",
            b"aaaa",
            b"\xed\xa0\x80",
            b"First Citizen:\nBefore we proceed any further",
        ]
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@given(content=st.lists(pieces, max_size=5).map(b"".join))
@examples(300)
def test_any_bytes_are_the_corpus_that_they_spell_or_an_error_that_names_the_file(folder, content):
    path = folder / "any.txt"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGPT_DATA", str(path))
        corpus, said = attempt(load_corpus, CorpusError)
    assert said is None or str(path) in said
    assert path.read_bytes() == content, "it is the reader's file"
    try:
        text = content.removeprefix(b"\xef\xbb\xbf").decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        assert corpus is None
        return
    unfit = (
        len(set(text)) < 2
        or "\0" in text
        or text.startswith("First Citizen:\nBefore we proceed any")
    )
    assert (corpus is None) == unfit
    if corpus:
        assert (corpus.text, corpus.sha256, corpus.name) == (text, sha256(content), "any.txt")
        assert corpus.real
        assert CharTokenizer(corpus.text).encode(text).shape == (len(text),)
        str(corpus)


@given(
    named=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
)
@examples(100)
@example(named="~")
@example(named="/")
@example(named="./nowhere/../.")
def test_any_name_that_is_no_file_is_refused_by_name(named):
    path = Path(named)
    assume(named[0] != "~" or named == "~")  # a user that is not there: see below
    assume(not path.is_file())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGPT_DATA", named)
        _, said = attempt(load_corpus, CorpusError)
    assert f"NANOGPT_DATA names {path.expanduser()}" in said


@pytest.mark.parametrize(
    "named",
    [
        "~nobody-of-this-name/x.txt",
        "x" * 5000,
    ],
    ids=["a home of nobody", "a name too long"],
)
def test_a_name_that_no_file_can_have_is_refused_too(named, monkeypatch):
    monkeypatch.setenv("NANOGPT_DATA", named)
    with pytest.raises(CorpusError, match="NANOGPT_DATA names"):
        load_corpus()


# ------------------------------------------------------------------ shapes and recipes


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


COUNT = (lambda v: is_whole(v) and 1 <= v <= 10**6), (lambda v: not is_whole(v) or v < 1)
SHARE = (
    (lambda v: is_number(v) and 0 <= v < 1),
    (lambda v: not isinstance(v, (int, float)) or not 0 <= v < 1),
)
RATE = (
    lambda v: is_number(v) and 0 < v < 1e30,
    lambda v: not isinstance(v, (int, float)) or not 0 < v <= 3e38,  # no float32 is larger
)
RATE_OR_NONE = (lambda v: v is None or RATE[0](v)), (lambda v: v is not None and RATE[1](v))
FROM_0 = (lambda v: v == 0 and is_number(v) or RATE[0](v)), (lambda v: v != 0 and RATE[1](v))
STEPS = (
    (lambda v: is_whole(v) and 0 <= v <= 10**6),
    (lambda v: not isinstance(v, (int, float)) or not 0 <= v < math.inf),
)
SWITCH = (lambda v: isinstance(v, bool)), (lambda v: not isinstance(v, (bool, int)))
PART = (lambda v: is_number(v) and 0 <= v <= 1), (lambda v: v != 1 and SHARE[1](v))
FROM_1 = (lambda v: RATE[0](v) and v >= 1), (lambda v: RATE[1](v) or v < 1)
FEW = (lambda v: is_whole(v) and 1 <= v <= 3), (lambda v: not is_whole(v) or not 1 <= v <= 3)
COUNT_OR_NONE = (lambda v: v is None or COUNT[0](v)), (lambda v: v is not None and COUNT[1](v))
ONE_OR_NONE = (lambda v: v is None or v == 1 and is_whole(v)), (lambda v: v is not None and v != 1)
NOUGHT = (lambda v: v == 0 and is_whole(v)), (lambda v: not isinstance(v, int) or v != 0)
DIVIDES_4 = (
    (lambda v: is_whole(v) and v in (1, 2, 4)),
    (lambda v: not is_whole(v) or v not in (1, 2, 4)),
)
SEED = (
    lambda v: is_whole(v) and 0 <= v < 2**63,
    lambda v: not isinstance(v, int) or not -(2**63) <= v < 2**64,
)

# For each field: what must be taken, and what must be refused. Between the two either is right.
RULES = {
    GPTConfig: {
        **dict.fromkeys(("vocab_size", "block_size", "n_layer", "n_head", "n_embd"), COUNT),
        "dropout": SHARE,
        **dict.fromkeys(("per_head", "rms_norm", "rope", "qk_norm", "relu2", "bias"), SWITCH),
        "rope_base": FROM_1,
        "ngrams": FEW,
        "n_kv_head": ONE_OR_NONE,  # of one head
        "window": COUNT_OR_NONE,
        **dict.fromkeys(("sinks", "full_every"), NOUGHT),  # without a window
    },
    TrainConfig: {
        **dict.fromkeys(("steps", "batch_size", "eval_every", "eval_batches"), COUNT),
        **{
            "lr": RATE,
            "muon_lr": RATE_OR_NONE,
            "warmup": STEPS,
            "weight_decay": FROM_0,
            "seed": SEED,
        },
        **{"beta2": SHARE, "final": PART, "clip": RATE_OR_NONE, "accumulate": DIVIDES_4},
        **dict.fromkeys(("decay", "zero_init", "batched", "fused", "compile"), SWITCH),
    },
}
SMALL = {"vocab_size": 5, "block_size": 6, "n_layer": 1, "n_head": 1, "n_embd": 4}
FIELDS = [(kind, field.name) for kind in RULES for field in fields(kind)]


def use(config) -> None:
    """Do once what the config is for, where it is small enough for that."""
    if isinstance(config, GPTConfig):
        if max(getattr(config, name) for name in SMALL) <= 40:
            GPT(config)(torch.zeros(1, 1, dtype=torch.int64))
        return
    model = GPT(GPTConfig(**SMALL))
    torch.Generator().manual_seed(config.seed)
    assert 0 <= config.scale(0) <= 1
    for optimizer in make_optimizers(model, config):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind, field in FIELDS],
    ids=[field for _, field in FIELDS],
)
@given(value=anything)
@examples(100)
def test_a_value_of_any_kind_is_usable_or_refused_by_name(kind, field, value):
    must_take, must_refuse = RULES[kind][field]
    changes = (SMALL | {"per_head": False} if kind is GPTConfig else {}) | {field: value}
    config, said = attempt(lambda: kind(**changes), ValueError, TypeError)
    if said is not None:
        assert field in said
        assert repr(value) in said or f"{field}={value}" in said
        assert not must_take(value) or "is no multiple of" in said
        return
    assert not must_refuse(value)
    use(config)


@given(changes=st.fixed_dictionaries({}, optional={name: st.integers(-1, 12) for name in SMALL}))
@examples(100)
def test_numbers_together_make_a_model_or_are_refused_by_name(changes):
    shape = SMALL | changes
    config, said = attempt(lambda: GPTConfig(**shape), ValueError)
    if said is not None:
        assert min(shape.values()) < 1 or shape["n_embd"] % shape["n_head"]
        assert any(f"{name}={value}" in said for name, value in shape.items())
        return
    assert min(shape.values()) >= 1
    assert shape["n_embd"] % shape["n_head"] == 0
    use(config)


# ------------------------------------------------------------------ generate

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
    """By the docstring of generate: the arguments that are wrong, and some words that must be said."""
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
    if not is_number(temperature) or not 1e-6 <= temperature < 1e38:
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
            f"a prompt of {prompt.shape[1]} and {n_new} new tokens pass block_size {BLOCK}"
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


@torch.no_grad()
def slow(prompt, n_new, *, generator=None, noise=None, greedy=False, **settings):
    """The lecture's loop on its own heads: crop, compute all anew, draw."""
    generator = generator or seeded(1337)
    text = prompt.to(torch.int64)
    for step in range(n_new):
        logits = PLAIN(text[:, -BLOCK:])[0][:, -1]
        row = (
            None
            if greedy
            else noise[step]
            if noise is not None
            else torch.empty(len(text), VOCABULARY)
        )
        if not greedy and noise is None:
            row.exponential_(generator=generator)
        text = torch.cat([text, sample(logits, row, **settings)], dim=1)
    return text[:, prompt.shape[1] :]


@pytest.mark.parametrize("odd", ["none", *ARGUMENTS])
@given(data=st.data(), per_head=st.booleans(), mode=st.booleans())
@examples(50)
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
        found, error = attempt(lambda: torch.cat(list(generate(model, **call)), dim=1), ValueError)
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
        list(generate(tiny_model(), **({"prompt": tokens(1, 3), "n_new": 2} | change)))


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


@pytest.mark.parametrize("top_p", [1e-46, 5e-324])
def test_the_smallest_top_p_still_keeps_the_likeliest(top_p):
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0]])
    assert sample(logits, torch.ones(1, 4), top_p=top_p).item() == 2


# ------------------------------------------------------------------ caches

ROOM, LAYOUTS = 10, [(1,), (3,), (2, 2)]


def known(cache) -> dict:
    """All that a cache knows, in copies."""
    return {key: v.clone() if isinstance(v, torch.Tensor) else v for key, v in vars(cache).items()}


def unchanged(cache, before: dict) -> bool:
    now = vars(cache)
    return now.keys() == before.keys() and all(
        torch.equal(v, before[key]) and v.dtype == before[key].dtype
        if isinstance(v, torch.Tensor) and isinstance(before[key], torch.Tensor)
        else v is before[key] or v == before[key]
        for key, v in now.items()
    )


class Rows(RuleBasedStateMachine):
    """One cache beside a list of rows; each row that is ever made is another number."""

    @initialize(design=st.sampled_from([DynamicCache, StaticCache]))
    def begin(self, design):
        self.cache, self.design, self.made = design(ROOM), design, 0
        self.forget()

    def forget(self):
        self.held: dict[int, float] = {}  # position: the number that fills its row
        self.form = None  # the layout and the dtype, from the first update on

    def rows(self, layout, T, hs=2, dtype=torch.float32):
        numbers = torch.arange(self.made, self.made + T, dtype=dtype)
        self.made += T
        return numbers[:, None].expand(*layout, T, hs).clone()

    @property
    def last(self):
        return max(self.held, default=-1)

    def refuse(self, k, v, pos, words):
        before = known(self.cache)
        with pytest.raises(ValueError, match=words):
            self.cache.update(k, v, pos)
        assert unchanged(self.cache, before)

    @rule(
        gaps=st.lists(st.sampled_from([1, 1, 1, 2, 5]), max_size=4),
        layout=st.sampled_from(LAYOUTS),
        dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
    )
    def append(self, gaps, layout, dtype):
        layout, dtype = self.form or (layout, dtype)
        places = [self.last + sum(gaps[: i + 1]) for i in range(len(gaps))]
        first, k, pos = (
            self.made,
            self.rows(layout, len(gaps), dtype=dtype),
            torch.tensor(places).long(),
        )
        if self.design is StaticCache and places and places[-1] >= ROOM:
            self.refuse(k, -k, pos, f"was given position {places[-1]}")
            return
        self.form = layout, dtype
        self.held |= {place: float(first + i) for i, place in enumerate(places)}
        returned = self.cache.update(k.clone(), -k, pos.clone())
        now = (self.cache.k, self.cache.v, self.cache.pos)
        assert all(torch.equal(r, n) for r, n in zip(returned, now, strict=True))

    @rule(back=st.integers(0, 12), more=st.integers(0, 2))
    def an_old_or_negative_position(self, back, more):
        layout, dtype = self.form or ((3,), torch.float32)
        k = self.rows(layout, 1 + more, dtype=dtype)
        start = self.last - back
        self.refuse(k, -k, torch.arange(start, start + 1 + more), f"position {start} comes after")

    @rule(
        what=st.sampled_from(
            ["v shape", "v rows", "v dtype", "few positions", "many positions", "2-d"]
        )
    )
    def parts_that_do_not_belong_together(self, what):
        layout, dtype = self.form or ((3,), torch.float32)
        k, next_ = self.rows(layout, 2, dtype=dtype), self.last + 1
        pos, v = torch.arange(next_, next_ + 2), -k
        if what.startswith("v"):
            v = {"v shape": v[..., :1], "v rows": v[..., :1, :], "v dtype": v.to(torch.bfloat16)}[
                what
            ]
        else:
            pos = {
                "few positions": pos[:1],
                "many positions": torch.arange(next_, next_ + 3),
                "2-d": pos[None],
            }[what]
        self.refuse(k, v, pos, "belong together|both need one dtype")

    @precondition(lambda self: self.form)
    @rule(
        layout=st.sampled_from([*LAYOUTS, (3, 2), ()]),
        hs=st.integers(1, 3),
        dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
    )
    def rows_of_another_text(self, layout, hs, dtype):
        assume((layout, dtype) != self.form or hs != 2)
        k = self.rows(layout, 1, hs, dtype)
        self.refuse(
            k, -k, torch.tensor([self.last + 1]), "one batch and head size|after moving or casting"
        )

    @rule()
    def reset(self):
        self.cache.reset()
        self.forget()

    @invariant()
    def the_same_rows(self):
        if not self.form:
            assert (self.cache.k, self.cache.v, self.cache.pos, self.cache.length) == (
                None,
                None,
                None,
                0,
            )
            return
        (layout, dtype), cache = self.form, self.cache
        assert (cache.length, cache.last) == (len(self.held), self.last)
        places = cache.pos.tolist()
        if self.design is StaticCache:
            assert places == [p if p in self.held else -1 for p in range(ROOM)]
        else:
            assert places == sorted(self.held)
        numbers = torch.tensor([self.held.get(p, 0.0) for p in places], dtype=dtype)
        expected = numbers[:, None].expand(*layout, len(places), 2)
        assert cache.k.dtype == cache.v.dtype == dtype
        assert torch.equal(cache.k, expected)
        assert torch.equal(cache.v, -expected)
        assert cache.nbytes == 2 * expected.numel() * dtype.itemsize


class Layers(RuleBasedStateMachine):
    """LayerCaches beside one list of numbers for each layer."""

    @initialize(design=st.sampled_from([DynamicCache, StaticCache]), n=st.integers(1, 3))
    def begin(self, design, n):
        self.caches, self.design, self.made = LayerCaches(n, design, ROOM), design, 0
        self.held, self.done = [[] for _ in range(n)], 0
        self.begun = [False] * n  # had an update, were it of no row

    def refuse(self, call, words):
        before, length = [known(cache) for cache in self.caches.caches], self.caches.length
        with pytest.raises(ValueError, match=words):
            call()
        assert all(unchanged(c, b) for c, b in zip(self.caches.caches, before, strict=True))
        assert self.caches.length == length

    @rule(
        layer=st.sampled_from([0, 0, 1, 1, 2, 3, -1]),
        T=st.sampled_from([1, 1, 2, 5, 0]),
        hs=st.sampled_from([2, 2, 2, 3]),
    )
    def update(self, layer, T, hs):
        numbers = torch.arange(self.made, self.made + T, dtype=torch.float32)
        k = numbers[:, None].expand(2, T, hs).clone()
        self.made += T

        def call():
            self.caches.update(layer, k, -k)

        if not 0 <= layer < len(self.held):
            self.refuse(call, f"layer {layer} does not exist")
        elif len(self.held[layer]) > self.done:
            self.refuse(call, "call advance")
        elif hs == 3 and self.begun[layer]:
            self.refuse(call, "one batch and head size")
        elif T and self.design is StaticCache and self.done + T > ROOM:
            self.refuse(call, "has room for")
        elif hs == 2:
            call()
            self.held[layer] += numbers.tolist()
            self.begun[layer] = True

    @rule(layer=st.integers(-2, 4))
    def get_what_is_not_there(self, layer):
        if not 0 <= layer < len(self.held) or not self.begun[layer]:
            self.refuse(lambda: self.caches.get(layer), "does not exist|holds nothing yet")

    @rule(n=st.integers(-2, 4))
    def advance(self, n):
        if {len(numbers) for numbers in self.held} == {self.done + n}:
            self.caches.advance(n)
            self.done += n
        else:
            self.refuse(lambda: self.caches.advance(n), rf"advance\({n}\) from {self.done}")

    @rule()
    def advance_as_it_should(self):
        if len({len(numbers) for numbers in self.held}) == 1:
            self.advance(len(self.held[0]) - self.done)

    @rule()
    def reset(self):
        self.caches.reset()
        self.held, self.done = [[] for _ in self.held], 0
        self.begun = [False] * len(self.held)

    @invariant()
    def the_same_rows(self):
        assert self.caches.length == self.done
        for layer, numbers in enumerate(self.held):
            if self.begun[layer]:
                expected = torch.tensor(numbers)[:, None].expand(2, len(numbers), 2)
                k, v = self.caches.get(layer)
                assert torch.equal(k, expected)
                assert torch.equal(v, -expected)
        used = self.caches.get_memory_usage()
        assert used["cache_tensors"] == 2 * sum(self.begun)
        reserved = [ROOM if self.design is StaticCache else len(numbers) for numbers in self.held]
        rows = sum(n for n, begun in zip(reserved, self.begun, strict=True) if begun)
        assert used["total_bytes"] == rows * 2 * 2 * 2 * 4


TestRows = Rows.TestCase
TestRows.settings = examples(80, stateful_step_count=20)
TestLayers = Layers.TestCase
TestLayers.settings = examples(80, stateful_step_count=20)

PLACES = {
    "that descend": [5, 3],
    "twice in a chunk": [5, 5],
    "past the room, but for the last": [99, 3],
    "negative within a chunk": [5, -2, 7],
    "of floats": [5.0, 6.0],
    "half-way": [5.5],
    "of complex numbers": [5j],
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("design", [DynamicCache, StaticCache])
def test_positions_that_do_not_ascend_are_refused_and_change_nothing(design, places):
    cache, k = design(ROOM), torch.ones(2, len(places), 4)
    cache.update(k[:, :1], k[:, :1], torch.tensor([0]))
    before = known(cache)
    try:
        with pytest.raises(ValueError, match="position"):
            cache.update(k, k, torch.tensor(places))
    finally:
        assert unchanged(cache, before)


BAD_CACHES = {
    "rows of one dimension": lambda: DynamicCache().update(
        torch.ones(4), torch.ones(4), torch.tensor(0)
    ),
    "no tensors": lambda: DynamicCache().update([[1.0]], [[1.0]], [0]),
    "half a row of room": lambda: StaticCache(2.5).update(
        *[torch.ones(1, 4)] * 2, torch.tensor([0])
    ),
    "a layer by name": lambda: LayerCaches(2).update("a", torch.ones(1, 4), torch.ones(1, 4)),
    "half a layer": lambda: LayerCaches(2).update(0.5, torch.ones(1, 4), torch.ones(1, 4)),
    "a layer's rows of one dimension": lambda: LayerCaches(2).update(
        0, torch.ones(4), torch.ones(4)
    ),
    "an advance by name": lambda: LayerCaches(2).advance("a"),
}


@pytest.mark.parametrize("call", BAD_CACHES.values(), ids=BAD_CACHES)
def test_what_is_no_row_no_room_and_no_layer_is_refused(call):
    with pytest.raises(ValueError, match="row|room|layer|advance"):
        call()


# ------------------------------------------------------------------ the command line

CELL = """profile: str = "auto"
n: int = 1
x: float = 0.5
flag: bool = True
word: str = "w"
maybe: int | None = None
many: tuple[int, ...] = (1, 2)"""
STEMS = ["00_first", "03_last", "10_other_one"]
# A command line holds no NUL; bytes that are no UTF-8 arrive as surrogates.
word = st.text(st.characters(exclude_characters="\0"), max_size=8)
spelled = st.sampled_from(
    "0 00 first 00_first 3 03.ipynb x/last 10_other_one.ipynb other_one ./10 000 ² ٣ 3. .ipynb -3 03_".split()
    + [""]
)
lists = st.recursive(
    st.none() | st.booleans() | st.integers(), lambda inner: st.lists(inner, max_size=3)
)
value = st.one_of(
    word,
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["true", "FALSE", "none", "1_0", " 7 "]),
    lists.map(repr),
)
setting = st.one_of(
    word,
    st.tuples(st.sampled_from(["n", "x", "flag", "word", "maybe", "many"]), value).map("=".join),
    st.tuples(st.sampled_from(["n", "profile", "steps", "n ", "", "ñ"]), value).map("=".join),
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    for stem in STEMS:
        write(
            folder / f"{stem}.ipynb",
            parameters=CELL if stem != "10_other_one" else CELL.splitlines()[0],
        )
    return folder


@given(names=st.lists(spelled | word, max_size=3))
@examples(200)
def test_any_names_are_notebooks_in_order_or_the_first_unknown_is_named(sources, names):
    spellings = {stem: {stem, stem[:2], stem[3:], str(int(stem[:2]))} for stem in STEMS}
    meant = [
        {stem for stem in STEMS if Path(name).name.removesuffix(".ipynb") in spellings[stem]}
        for name in names
    ]
    if all(meant):
        chosen = [path.stem for path in runner.select(names, sources)]
        assert chosen == (sorted(set().union(*meant)) if names else STEMS)
        return
    with pytest.raises(RunError) as error:
        runner.select(names, sources)
    assert f"{names[meant.index(set())]!r} is no notebook: there is {', '.join(STEMS)}" in str(
        error.value
    )


def read_literal(text: str):
    """Lists of whole numbers, True, False and None, read by another reader."""
    return json.loads(
        text.replace("True", "true").replace("False", "false").replace("None", "null")
    )


READERS = {
    "n": int,
    "x": float,
    "flag": lambda text: {"true": True, "false": False}[text.lower()],
    "word": str,
    "maybe": lambda text: None if text.lower() == "none" else int(text),
}


@given(settings=st.lists(setting, max_size=3))
@examples(300)
@example(settings=["n=1", "n=1"])
@example(settings=["profile=smoke"])
@example(settings=["many=[1, [None, True]]"])
def test_any_settings_are_values_of_their_type_or_the_wrong_one_is_named(sources, settings):
    paths = [sources / f"{stem}.ipynb" for stem in STEMS]
    values, said = attempt(lambda: assign(paths, settings, "smoke"), RunError)
    assert said is None or any(
        f"-p {text.partition('=')[0]}" in said or f"-p {text!r}" in said for text in settings
    )
    pairs = [text.partition("=") for text in settings]
    names = [name for name, _, _ in pairs]
    sound = len(set(names)) == len(names) and all(
        e and name in (*READERS, "many") for name, e, _ in pairs
    )
    wanted = {"profile": "smoke"}
    for name, _, text in pairs if sound else ():
        try:
            wanted[name] = READERS[name](text) if name in READERS else values["00_first"]["many"]
        except (ValueError, KeyError, TypeError):
            sound = False
    assert (values is not None) == sound
    if sound:
        assert repr(values["00_first"]) == repr(values["03_last"]) == repr(wanted)  # nan is nan
        assert values["10_other_one"] == {"profile": "smoke"}
        for name, _, text in pairs:
            assert (
                name != "many"
                or text[:1] != "["
                or values["00_first"]["many"] == read_literal(text)
            )


def test_a_literal_that_cannot_be_built_is_refused():
    with pytest.raises(RunError, match="a value of type dict is needed"):
        convert(Parameter("d", "dict", {}), "{[]: 1}")


options = st.one_of(
    spelled.map(lambda text: [text]),
    word.map(lambda text: [text]),
    setting.map(lambda text: ["-p", text]),
    st.sampled_from(["auto", "smoke", "cpu", "gpu", "AUTO", "", "tpu"]).map(
        lambda text: ["--profile", text]
    ),
    (value | st.integers().map(str)).map(lambda text: ["--timeout", text]),
    st.sampled_from("--fail-fast --no-html --publish -h -- -p --out --p".split()).map(
        lambda text: [text]
    ),
    st.sampled_from(["outputs", "nanogpt", ".", "outputs/x"]).map(lambda text: ["--out", text]),
)


@given(words=st.lists(options, max_size=4).map(lambda parts: [w for part in parts for w in part]))
@examples(300)
@example(words=["3", "first", "-p", "n=7", "--timeout", "9", "--out", "outputs/x", "--no-html"])
@example(words=["--timeout", "9" * 5000])
@example(words=["-p", "word=\udcff", "--profile", "\udcff"])
def test_any_words_are_a_run_or_end_with_2_and_a_line(sources, words):
    """The run itself is stopped where it looks for its corpus: all of its words are read by then."""

    def stop():
        raise CorpusError("this is where the test stops")

    error, output = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "load_corpus", stop)
        patch.setattr(runner.publish, "recover", lambda *_: None)
        with (
            contextlib.redirect_stderr(error),
            contextlib.redirect_stdout(output),
            pytest.raises(SystemExit) as end,
        ):
            run.main(["--source", str(sources), *words])
    if end.value.code == 0:
        assert output.getvalue().startswith("usage: python -m nanogpt.run")
        return
    assert end.value.code == 2
    last = error.getvalue().splitlines()
    assert any(line.startswith(("run: ", "python -m nanogpt.run: error: ")) for line in last)
    if words[:3] == ["3", "first", "-p"]:
        assert "where the test stops" in error.getvalue()


# ------------------------------------------------------------------ files of weights

TEXT = "the quick brown fox jumps over the lazy dog.\n" * 10
CORPUS = SimpleNamespace(text=TEXT, name="fox", sha256="0" * 64)
RECIPE = TrainConfig(steps=2, batch_size=2, eval_every=2, eval_batches=1, warmup=1)
SHAPE = {
    "vocab_size": len(set(TEXT)),
    "block_size": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 4,
    "dropout": 0.1,
}


ALIKE = [
    b"0123456789",
    b"abcdefghijklmnopqrstuvwxyz",
    b"FIUBC",
    b"[]{}",
    b",:",
]  # still JSON, perhaps


@st.composite
def damages(draw):
    """A function that damages bytes: some are changed, cut out, put in, or doubled, in one place to three.

    Half of the places lie in the header, which is where a file says what it is.
    """
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["alike", "alike", "alike", "change", "flip", "cut", "end", "insert", "double"]
                ),
                st.booleans(),
                st.integers(0, 9999),
                st.integers(1, 8),
                st.binary(min_size=1, max_size=4)
                | st.sampled_from([b"0", b"9", b'"', b"}", b"[", b"\\", b" "]),
            ),
            min_size=1,
            max_size=3,
        )
    )

    def damage(data: bytes) -> bytes:
        header = 8 + struct.unpack("<Q", data[:8])[0]
        for what, early, place, n, new in steps:
            at = min(header if early else len(data), len(data)) * place // 10_000
            if what == "alike" and (
                kind := next((c for c in ALIKE if data[at : at + 1] in c), None)
            ):
                data = data[:at] + kind[n % len(kind) :][:1] + data[at + 1 :]
            elif what == "change":
                data = data[:at] + new + data[at + len(new) :]
            elif what in ("flip", "alike") and at < len(data):
                data = data[:at] + bytes([data[at] ^ (1 << (n - 1))]) + data[at + 1 :]
            elif what == "cut":
                data = data[:at] + data[at + n :]
            elif what == "end":
                data = data[:at]
            elif what == "insert":
                data = data[:at] + new + data[at:]
            elif what == "double":
                data = data[: at + n] + data[at:]
        return data

    return damage


def mend(data: bytes) -> bytes:
    """The same, but the length that it gives for its header is right again, so that reading goes on."""
    try:
        text = data[8:].decode("latin-1")
        end = json.JSONDecoder().raw_decode(text)[1]
    except ValueError:
        return data
    return struct.pack("<Q", len(text) - len(text[end:].lstrip(" "))) + data[8:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint, and the state of a run of two steps: their bytes, and what is in them."""
    place = tmp_path_factory.mktemp("weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "headless", lambda: True)
        patch.setattr(loop, "report", lambda *_: None)
        model = GPT(GPTConfig(**SHAPE))
        train(model, CORPUS, RECIPE, out=place / "run", device=CPU)
        state = state_path(place / "run")
        whole = SimpleNamespace(
            place=place,
            weights={key: t.clone() for key, t in model.state_dict().items()},
            checkpoint=(place / "run-last.safetensors").read_bytes(),
            state=state.read_bytes(),
            tensors=read_tensors(state),
            meta=load_checkpoint(place / "run-last").meta,
        )
        yield whole


def check_checkpoint(saved, data: bytes) -> None:
    path = saved.place / "any.safetensors"
    path.write_bytes(data)
    found, said = attempt(lambda: load_checkpoint(path), CheckpointError)
    if said is not None:
        assert str(path) in said
        return
    # Whoever damages the word "digest" as well as a weight goes unnoticed: see below.
    assert "digest" not in found.meta
    if set(found.meta) == set(saved.meta):
        assert equal(found.model.state_dict(), saved.weights)
    str(found)


@given(
    content=st.binary(max_size=60)
    | st.binary(max_size=60).map(lambda b: struct.pack("<Q", len(b)) + b)
)
@examples(100)
@example(content=b"\2\0\0\0\0\0\0\0{}")
@example(content=b"\xff" * 8)
def test_any_bytes_are_no_checkpoint(saved, content):
    path = saved.place / "bytes.safetensors"
    path.write_bytes(content)
    for read in (load_checkpoint, read_tensors):
        with pytest.raises(CheckpointError) as error:
            read(path)
        assert str(path) in str(error.value)


@given(damage=damages(), mended=st.booleans())
@examples(400)
def test_a_damaged_checkpoint_gives_the_very_weights_or_our_error(saved, damage, mended):
    data = damage(saved.checkpoint)
    check_checkpoint(saved, mend(data) if mended else data)


def test_two_damaged_bytes_are_noticed_even_if_one_is_in_the_word_digest(saved):
    data = bytearray(saved.checkpoint.replace(b"digest", b"digesu"))
    data[-5] ^= 4
    path = saved.place / "two.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="digest"):
        load_checkpoint(path)


@given(damage=damages(), mended=st.booleans())
@examples(300)
def test_a_damaged_file_of_tensors_gives_the_very_tensors_or_our_error(saved, damage, mended):
    path, data = saved.place / "tensors.safetensors", damage(saved.state)
    path.write_bytes(mend(data) if mended else data)
    found, said = attempt(lambda: read_tensors(path), CheckpointError)
    if said is not None:
        assert str(path) in said
        return
    assert equal(found[0], saved.tensors[0])
    assert found[1] == saved.tensors[1]


def resume(saved, write_state) -> dict | None:
    """Resume from a state: the weights in the end, or None after our error; nothing else may move."""
    out = saved.place / "again"
    write_state(state_path(out))
    model, random = GPT(GPTConfig(**SHAPE)).eval(), torch.random.get_rng_state()
    # Of ValueErrors there is, beside the CheckpointError, the one for other settings.
    _, said = attempt(
        lambda: train(model, CORPUS, RECIPE, out=out, device=CPU, resume=True), ValueError
    )
    assert said is None or str(state_path(out)) in said
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), random)
    return model.state_dict() if said is None else None


@given(damage=damages(), mended=st.booleans())
@examples(150)
def test_a_damaged_state_gives_the_very_weights_or_our_error(saved, damage, mended):
    data = damage(saved.state)
    found = resume(saved, lambda path: path.write_bytes(mend(data) if mended else data))
    assert found is None or equal(found, saved.weights)


leaves = st.none() | st.booleans() | st.integers(-3, 40) | huge | st.floats() | st.text(max_size=4)
json_values = st.one_of(
    leaves,
    st.lists(leaves, max_size=2),
    st.dictionaries(st.text(max_size=4), leaves, max_size=2),
    st.just([[]]),
)


@st.composite
def swaps(draw):
    """A function that puts another JSON value into one place of nested dicts, or takes one out."""
    choices, new, gone = (
        draw(st.lists(st.integers(0, 30), min_size=3, max_size=3)),
        draw(json_values),
        draw(st.integers(0, 5)),
    )

    def swap(tree, choices=choices):
        key = sorted(tree)[choices[0] % len(tree)]
        if isinstance(tree[key], dict) and tree[key] and len(choices) > 1 and choices[0] < 28:
            return tree | {key: swap(tree[key], choices[1:])}
        return {k: v for k, v in tree.items() if k != key} if gone == 0 else tree | {key: new}

    return swap


@given(swap=swaps())
@examples(300)
def test_metadata_that_says_anything_gives_the_very_weights_or_our_error(saved, swap):
    meta = swap(saved.meta)
    losses = meta.get("losses")
    # A loss beyond all floats: see below.
    assume(
        not (
            isinstance(losses, dict) and is_whole(losses.get("val")) and abs(losses["val"]) > 1e300
        )
    )
    path = saved.place / "meta.safetensors"
    save_file(saved.weights, path, metadata={"nanogpt": json.dumps(meta)})
    found, said = attempt(lambda: load_checkpoint(path), CheckpointError)
    if said is not None:
        assert str(path) in said
        return
    assert equal(found.model.state_dict(), saved.weights)
    assert len(found.tokenizer) == SHAPE["vocab_size"]
    str(found)


def test_a_loss_beyond_all_floats_ends_in_our_error(saved):
    path = saved.place / "loss.safetensors"
    meta = saved.meta | {"losses": {"val": 10**400}}
    save_file(saved.weights, path, metadata={"nanogpt": json.dumps(meta)})
    with pytest.raises(CheckpointError, match="not our metadata"):
        load_checkpoint(path)


BYTES = {
    1: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 ?",
    2: "I16 U16 F16 BF16",
    4: "I32 U32 F32",
    8: "F64 I64 U64 C64",
}
DTYPES = {name: size for size, names in BYTES.items() for name in names.split()}


@given(
    tensors=st.lists(
        st.tuples(
            st.text(max_size=4),
            st.sampled_from(list(DTYPES)),
            st.lists(st.integers(0, 3), max_size=3),
            st.integers(-1, 1),
        ),
        max_size=3,
    ),
    meta=st.none()
    | json_values
    | json_values.map(lambda value: {"format": FORMAT, "digest": value}),
)
@examples(200)
def test_a_file_of_any_tensors_is_read_or_refused(saved, tensors, meta):
    header = {} if meta is None else {"__metadata__": {"nanogpt": json.dumps(meta)}}
    end = 0
    for name, dtype, shape, wrong in tensors:
        size = math.prod(shape) * DTYPES[dtype] + (wrong if name == "" else 0)
        header[name], end = (
            {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]},
            end + size,
        )
    text = json.dumps(header).encode()
    path = saved.place / "any-tensors.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(256))[: max(end, 0)])
    for read in (load_checkpoint, read_tensors):
        with pytest.raises(CheckpointError) as error:
            read(path)
        assert str(path) in str(error.value)
