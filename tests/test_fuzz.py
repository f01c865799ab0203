"""Random models and arguments: the right result, or our own error that names what is wrong.

The examples are the same in every run.
"""

import copy
import math
from dataclasses import fields
from enum import Enum

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded, state_of, tiny_model, tokens
from hypothesis import given
from hypothesis import settings as example_settings
from model_fixtures import all_logits
from shapes import ONE_FIELD

from nanogpt import (
    CharTokenizer,
    DecoderConfig,
    DynamicCache,
    GPTConfig,
    Request,
    SamplingParams,
    StaticCache,
    TrainConfig,
    generate,
    kv_cache,
    load_corpus,
    serve,
    train,
)
from nanogpt.caches.paged import PagedCache
from nanogpt.cli import main
from nanogpt.decoder.model import Decoder


def examples(n: int):
    """n examples, the same in every run."""
    return example_settings(max_examples=n, derandomize=True, deadline=None, database=None)


def attempt(call, *errors) -> tuple:
    """The result of the call, and None; or None, and the message of the error that it may raise."""
    try:
        return call(), None
    except errors as error:
        return None, str(error)


def equal(one: dict, other: dict) -> bool:
    """Whether both have the same tensors: names, types, shapes and bits."""
    return one.keys() == other.keys() and all(
        t.dtype == other[key].dtype and t.shape == other[key].shape and t.equal(other[key])
        for key, t in one.items()
    )


huge = st.sampled_from([2**31, 2**63, 2**64, -(2**70), 10**400])
leaves = st.none() | st.booleans() | st.integers(-3, 40) | huge | st.floats() | st.text(max_size=5)
anything = leaves | st.lists(leaves, max_size=2) | st.dictionaries(st.text(max_size=4), leaves)

# ------------------------------------------------------------------ models


@st.composite
def decoder_configs(draw) -> DecoderConfig:
    """A small config with any combination of fields that fit together."""
    n_head = draw(st.sampled_from([1, 2, 4]))
    window = draw(st.none() | st.integers(1, 9))
    # 1. Fields that must fit together.
    drawn = {
        "vocab_size": 11,
        "block_size": 16,
        "n_layer": draw(st.integers(1, 3)),
        "n_head": n_head,
        "n_kv_head": draw(st.sampled_from([n for n in (1, 2, 4) if n <= n_head])),
        "n_embd": 8,
        "head_dim": draw(st.sampled_from([2, 4, 6])),
        "rope_scaling": None,
        "norm_eps": 1e-5,
        "window": window,
        "sinks": draw(st.integers(0, 3)) if window else 0,
        "full_every": draw(st.sampled_from([0, 2])) if window else 0,
    }
    # 2. All others: the members of an enum, and otherwise the values in tests/shapes.py.
    for field in fields(DecoderConfig):
        if field.name not in drawn:
            kind = field.type
            enum = list(kind) if isinstance(kind, type) and issubclass(kind, Enum) else []
            values = enum or [row[field.name] for row in ONE_FIELD if field.name in row]
            drawn[field.name] = draw(st.sampled_from([field.default, *values]))
    return DecoderConfig(**drawn)


@given(
    config=decoder_configs(),
    chunks=st.lists(st.integers(1, 8), min_size=2, max_size=6),
    cache=st.sampled_from([DynamicCache, StaticCache, PagedCache]),
)
@examples(40)
@torch.no_grad()
def test_a_random_decoder_computes_the_same_cached_and_uncached(config, chunks, cache):
    """The same but for rounding, which in float64 is far below any difference of a mistake."""
    model = Decoder(config, generator=seeded(1)).double().eval()
    for weight in model.parameters():
        noise = torch.randn(weight.shape, dtype=torch.float64, generator=seeded(4))
        weight.add_(noise, alpha=0.4)
    ids = torch.randint(11, (2, 16), generator=seeded(5))
    parts = []
    for size in chunks + [1] * 16:  # chunks of these sizes, and then token by token
        parts.append(min(size, 16 - sum(parts)))
    found = all_logits(model, ids, cache, [size for size in parts if size])
    torch.testing.assert_close(found, all_logits(model, ids), rtol=0, atol=1e-9)


# ------------------------------------------------------------------ values of a field

EDGES = [0, -1, 2**63 - 1, 10**400, -0.0, 5e-324, 0.5, 1.0, 1e31, math.inf, math.nan, True, None]
EDGES += ["", "é", [], {}]
CONFIGS = (GPTConfig, DecoderConfig, TrainConfig, SamplingParams)
FIELDS = [(kind, field.name) for kind in CONFIGS for field in fields(kind)]


@pytest.mark.parametrize(
    ("kind", "field"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS]
)
def test_a_value_at_an_edge_is_taken_or_refused_by_name(kind, field):
    for value in EDGES:
        _, message = attempt(lambda value=value: kind(**{field: value}), ValueError, TypeError)
        assert message is None or field in message or "must be a multiple of" in message, value


# ------------------------------------------------------------------ calls

MODEL = tiny_model()
WEIGHTS = copy.deepcopy(MODEL.state_dict())
PROMPT = tokens(1, 3)


def call_generate(prompt=PROMPT, n_new=2, **how):
    names = [field.name for field in fields(SamplingParams) if field.name in how]
    sampling = SamplingParams(**{name: how.pop(name) for name in names})
    found = torch.cat(list(generate(MODEL, prompt, n_new, sampling, **how)), 1)
    assert found.shape == (len(prompt), n_new)
    assert 0 <= int(found.min()) <= int(found.max()) < 13


def call_serve(prompt=PROMPT[0], max_new_tokens=2, **how):
    found = list(serve(MODEL, [Request(prompt, max_new_tokens, **how)]))
    assert [output.index for output in found] == list(range(max_new_tokens))


def call_kv_cache(**how):
    with kv_cache(MODEL, **how):
        assert MODEL(PROMPT, pos=torch.arange(3))[0].shape == (1, 3, 13)


CALLS = {
    call_generate: "prompt n_new cache past_block generator noise engine draft temperature top_k "
    "top_p greedy",
    call_serve: "prompt max_new_tokens sampling seed arrival",
    call_kv_cache: "cache capacity",
}
ARGUMENTS = [(call, name) for call, names in CALLS.items() for name in names.split()]
odd_tensors = st.builds(
    lambda shape, dtype, low: torch.full(shape, low).to(dtype),
    st.lists(st.sampled_from([0, 1, 2, 2, 13]), max_size=3),
    st.sampled_from([torch.int64, torch.int64, torch.int32, torch.float32, torch.cfloat]),
    st.sampled_from([1, 1, 0, -1, 13, 2**40]),
)
classes = st.sampled_from([int, dict, DynamicCache, StaticCache, DynamicCache(), "native"])


@pytest.mark.parametrize(
    ("call", "name"), ARGUMENTS, ids=[f"{call.__name__}.{name}" for call, name in ARGUMENTS]
)
@given(value=anything | odd_tensors | classes)
@examples(15)
def test_any_argument_works_or_is_refused_by_name_and_changes_nothing(call, name, value):
    before = state_of(MODEL)
    random = torch.random.get_rng_state()
    _, message = attempt(lambda: call(**{name: value}), ValueError)
    assert message is None or name in message or "block_size" in message, message
    assert state_of(MODEL) == before
    assert equal(MODEL.state_dict(), WEIGHTS)
    assert torch.equal(torch.random.get_rng_state(), random)


# An argument, and calls with a value of another type.
OTHER_TYPES = {
    "idx": lambda: MODEL([[1, 2]]),
    "pos": lambda: MODEL(PROMPT, pos=3),
    "team": lambda: train(tiny_model(), load_corpus(), TrainConfig(steps=1), team=3),
    "text": lambda: CharTokenizer("abc").encode(torch.tensor(3)),
    "tokens": lambda: CharTokenizer("abc").decode(None),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_a_value_of_another_type_is_refused_by_name(name):
    with pytest.raises(TypeError, match=f"^{name} must be a "):
        OTHER_TYPES[name]()


# ------------------------------------------------------------------ commands


# Words that once ended in a traceback.
@pytest.mark.parametrize(
    "words",
    [["--timeout", "9" * 5000], ["-p", "many=[1, [None, True]]"], ["-p", "many={[]: 1}"]],
    ids=["a long number", "a nested list", "an unhashable key"],
)
def test_odd_words_of_a_command_end_with_2_and_a_line(tmp_path, monkeypatch, capsys, words):
    monkeypatch.setenv("NANOGPT_DATA", "nowhere")
    try:
        code = main(["run", "--out", str(tmp_path / "out"), *words])
    except SystemExit as end:  # argparse's own
        code = end.code
    assert code == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith(("error: ", "python -m nanogpt run: error: ")) for line in lines)
    assert not (tmp_path / "out").exists()
