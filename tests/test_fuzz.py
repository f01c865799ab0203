"""Random models, bytes and arguments: the right result, or our own error that names what is wrong.

The examples are the same in every run.
"""

import copy
import io
import json
import math
import struct
from contextlib import redirect_stderr
from dataclasses import fields
from enum import Enum
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded, state_of, tiny_model, tokens
from hypothesis import given
from hypothesis import settings as example_settings
from model_fixtures import all_logits
from shapes import ONE_FIELD

from nanogpt import (
    GPT,
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
    load_checkpoint,
    load_corpus,
    serve,
    train,
)
from nanogpt.caches.paged import PagedCache
from nanogpt.cli import main
from nanogpt.data import Corpus, CorpusError
from nanogpt.decoder.checkpoint import read_tensors
from nanogpt.decoder.model import Decoder
from nanogpt.device import Device


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


# ------------------------------------------------------------------ texts

PIECES = [b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n", b"\0", b"\xc3", b"\xf0\x9f\x99\x82", b"aaaa"]
PIECES += [b"\xed\xa0\x80", b"First Citizen:\nBefore we proceed any further"]
pieces = st.binary(max_size=12) | st.text(max_size=12).map(str.encode) | st.sampled_from(PIECES)


@given(content=st.lists(pieces, max_size=5).map(b"".join))
@examples(100)
def test_any_bytes_are_the_corpus_that_they_spell_or_an_error_that_names_the_file(trained, content):
    path = trained.place / "any.txt"
    path.write_bytes(content)
    corpus, message = attempt(lambda: load_corpus(path), CorpusError)
    assert message is None or str(path) in message
    assert path.read_bytes() == content, "it is the user's file"
    try:
        text = content.removeprefix(b"\xef\xbb\xbf").decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        text = ""
    # A part of Tiny Shakespeare is refused, because it would be taken for the whole.
    cut = text.startswith("First Citizen:\nBefore we proceed any")
    assert (corpus is None) == (len(set(text)) < 2 or "\0" in text or cut)
    if corpus:
        assert corpus.text == text
        assert CharTokenizer(corpus.text).encode(text).shape == (len(text),)


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


# ------------------------------------------------------------------ damaged files

CPU = Device(torch.device("cpu"), torch.float32, "tests")
TEXT = "the quick brown fox jumps over the lazy dog.\n" * 10
RECIPE = TrainConfig(steps=2, batch_size=2, eval_every=2, eval_batches=1, warmup=1)
SHAPE = {"vocab_size": len(set(TEXT)), "block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 4}
ALIKE = [b"0123456789", b"abcdefghijklmnopqrstuvwxyz", b"FIUBC", b"[]{}", b",:"]  # still JSON


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A checkpoint, and the state of a run of two steps: their bytes and their tensors."""
    place = tmp_path_factory.mktemp("weights")
    model = GPT(GPTConfig(**SHAPE, dropout=0.1), generator=seeded(1)).eval()
    train(model, Corpus(TEXT, "fox", "0" * 64), RECIPE, out=place / "run", device=CPU)
    (state,) = place.glob("*state.safetensors")
    return SimpleNamespace(
        place=place,
        weights={key: t.clone() for key, t in model.state_dict().items()},
        checkpoint=(place / "run-last.safetensors").read_bytes(),
        state=state.read_bytes(),
        tensors=read_tensors(state)[0],
    )


@st.composite
def damages(draw):
    """A function that damages a safetensors file in up to three places.

    Half of the places are in the header, which says what the file contains; for half of the files
    the length of the header is then corrected, so that reading does not stop there.
    """
    kinds = ["alike", "alike", "alike", "change", "flip", "cut", "end", "insert", "double"]
    new = st.binary(min_size=1, max_size=4) | st.sampled_from([b"0", b"9", b'"', b"}", b"[", b"\\"])
    place = st.tuples(st.booleans(), st.integers(0, 9999), st.integers(1, 8))
    step = st.tuples(st.sampled_from(kinds), place, new)
    steps = draw(st.lists(step, min_size=1, max_size=3))
    mended = draw(st.booleans())

    def damage(data: bytes) -> bytes:
        header = 8 + struct.unpack("<Q", data[:8])[0]
        for kind, (early, place, n), new in steps:
            at = min(header if early else len(data), len(data)) * place // 10_000
            byte = data[at : at + 1] or b"\0"
            flipped = bytes([byte[0] ^ (1 << (n - 1))])
            alike = next((c[n % len(c) :][:1] for c in ALIKE if byte in c), flipped)
            length, instead = {
                "alike": (1, alike),
                "flip": (1, flipped),
                "change": (len(new), new),
                "cut": (n, b""),
                "end": (len(data), b""),
                "insert": (0, new),
                "double": (0, data[at : at + n]),
            }[kind]
            data = data[:at] + instead + data[at + length :]
        return mend(data) if mended else data

    return damage


def mend(data: bytes) -> bytes:
    """The same with the right length for its header, if that is still JSON."""
    text = data[8:].decode("latin-1")
    end, _ = attempt(lambda: json.JSONDecoder().raw_decode(text)[1], ValueError)
    if end is None:
        return data
    return struct.pack("<Q", len(text) - len(text[end:].lstrip(" "))) + data[8:]


@given(damage=damages())
@examples(80)
def test_a_damaged_checkpoint_gives_its_very_weights_or_our_error(trained, damage):
    path = trained.place / "any.safetensors"
    path.write_bytes(damage(trained.checkpoint))
    found, message = attempt(lambda: load_checkpoint(path), ValueError)
    assert str(path) in message if message else equal(found.model.state_dict(), trained.weights)


@given(damage=damages())
@examples(80)
def test_a_damaged_state_gives_its_very_tensors_or_our_error(trained, damage):
    path = trained.place / "any.safetensors"
    path.write_bytes(damage(trained.state))
    found, message = attempt(lambda: read_tensors(path)[0], ValueError)
    assert str(path) in message if message else equal(found, trained.tensors)


# ------------------------------------------------------------------ commands


# Words that once ended in a traceback.
@pytest.mark.parametrize(
    "words",
    [["--timeout", "9" * 5000], ["-p", "many=[1, [None, True]]"], ["-p", "many={[]: 1}"]],
    ids=["a long number", "a nested list", "an unhashable key"],
)
def test_odd_words_of_a_command_end_with_2_and_a_line(tmp_path, monkeypatch, words):
    monkeypatch.setenv("NANOGPT_DATA", "nowhere")
    error = io.StringIO()
    with redirect_stderr(error):
        try:
            code = main(["run", "--out", str(tmp_path / "out"), *words])
        except SystemExit as end:  # argparse's own
            code = end.code
    assert code == 2
    lines = error.getvalue().splitlines()
    assert any(line.startswith(("error: ", "python -m nanogpt run: error: ")) for line in lines)
    assert not (tmp_path / "out").exists()
