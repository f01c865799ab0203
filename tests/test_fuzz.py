"""Anything at all at every door: the right result, or our own error that names what was wrong.

FUZZ=10 pytest tests/test_fuzz.py draws ten times as many examples, others at each run.
"""

import contextlib
import copy
import io
import json
import math
import os
import struct
import warnings
from dataclasses import fields
from itertools import chain
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded, state_of, tiny_model, tokens
from hypothesis import example, given
from hypothesis import settings as example_settings
from notebook_fixtures import write
from safetensors.torch import save_file

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
from nanogpt.cache import KVCache
from nanogpt.cli import main
from nanogpt.data import Corpus, CorpusError
from nanogpt.decoder.checkpoint import CheckpointError, read_tensors
from nanogpt.decoder.config import decoder_config
from nanogpt.decoder.pack import build_model
from nanogpt.device import Device
from nanogpt.files import sha256
from nanogpt.sampling import sample
from nanogpt.training.optimizers import make_optimizers

TIMES = int(os.environ.get("FUZZ", "1"))


def examples(n: int):
    """n examples, the same at each run; with FUZZ, that many times more, and others each time."""
    return example_settings(max_examples=n * TIMES, derandomize=TIMES == 1, deadline=None)


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
leaves = st.none() | st.booleans() | st.integers(-3, 40) | huge | st.floats() | st.text(max_size=5)
json_values = leaves | st.lists(leaves, max_size=2) | st.dictionaries(st.text(max_size=4), leaves)
anything = json_values | st.binary(max_size=3) | st.complex_numbers() | st.just([[]])

# ------------------------------------------------------------------ numbers


def is_switch(value) -> bool:
    return isinstance(value, bool)


def is_int(value, low=1, high=math.inf) -> bool:
    return isinstance(value, int) and not is_switch(value) and low <= value <= high


def is_number(value, low=0.0, high=math.inf) -> bool:
    return isinstance(value, (int, float)) and not is_switch(value) and low <= value <= high


def is_rate(value) -> bool:
    return is_number(value, 1e-30, 1e30)


def is_share(value) -> bool:
    return is_number(value) and value < 1


# For each field, what it takes; where a field also takes None, `or_none` says so.
SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
SWITCHES = ("norm_weights", "norm_bias", "embed_norm", "qk_norm", "gated", "tied")
SWITCHES += ("qkv_bias", "proj_bias", "ffn_bias", "head_bias")
FITS = {
    GPTConfig: {**dict.fromkeys(SIZES, is_int), "dropout": is_share},
    DecoderConfig: {
        **dict.fromkeys(SIZES, is_int),
        **dict.fromkeys(SWITCHES, is_switch),
        **dict.fromkeys(("head_dim", "ffn_dim", "window"), lambda v: v is None or is_int(v)),
        "positions": lambda v: v in ("learned", "rotary"),
        "norm": lambda v: v in ("layer", "rms"),
        "activation": lambda v: v in ("relu", "relu2", "gelu", "gelu_tanh", "silu"),
        "dropout": is_share,
        "rope_base": lambda v: is_number(v, 1, 1e30),
        "rope_scaling": lambda v: v is None,  # without rotary positions
        "norm_eps": lambda v: is_number(v, 0, 1),
        "n_kv_head": lambda v: v is None or is_int(v, 1, 1),  # of one head
        **dict.fromkeys(("sinks", "full_every"), lambda v: is_int(v, 0, 0)),  # without a window
        "logit_softcap": lambda v: v is None or is_rate(v),
    },
    TrainConfig: {
        **dict.fromkeys(("steps", "batch_size", "eval_every", "eval_batches"), is_int),
        **dict.fromkeys(("decay", "zero_init", "batched", "fused", "compile"), is_switch),
        **dict.fromkeys(("previous_token_init", "epochs", "bf16"), is_switch),
        "stages": lambda v: v in ((), []),  # or pairs, which chance does not make
        "lr": is_rate,
        **dict.fromkeys(("muon_lr", "clip"), lambda v: v is None or is_rate(v)),
        "warmup": lambda v: is_number(v, 0, 1e30),
        "weight_decay": lambda v: is_number(v, 0, 1e30),
        "seed": lambda v: is_int(v, 0, 2**63 - 1),
        "beta2": is_share,
        "final": lambda v: is_number(v, 0, 1),
        "accumulate": lambda v: is_int(v) and 4 % v == 0,
    },
    SamplingParams: {
        "temperature": lambda v: is_number(v, 1e-6, 1e38),
        "top_k": lambda v: v is None or is_int(v),
        "top_p": lambda v: v is None or is_number(v, 1e-30, 1),
        "greedy": is_switch,
    },
}
SMALL = {"vocab_size": 5, "block_size": 6, "n_layer": 1, "n_head": 1, "n_embd": 4}
TRAINED = GPT(GPTConfig(**SMALL))  # by whatever recipe
FIELDS = [(kind, field.name) for kind in FITS for field in fields(kind)]


def use(config) -> None:
    """Do once what the config is for, where it is small enough for that."""
    if isinstance(config, (GPTConfig, DecoderConfig)):
        packed = decoder_config(config)
        if max(packed.head_size, packed.hidden, *(getattr(config, name) for name in SIZES)) <= 40:
            build_model(config)(torch.zeros(1, 1, dtype=torch.int64))
    elif isinstance(config, TrainConfig):
        torch.Generator().manual_seed(config.seed)
        assert 0 <= config.scale(0) <= 1
        for parameter in TRAINED.parameters():
            parameter.grad = torch.ones_like(parameter)
        for optimizer in make_optimizers(TRAINED, config):
            optimizer.step()
    else:
        assert sample(torch.randn(2, 5), torch.rand(2, 5) + 1e-3, config).shape == (2, 1)


def check_value(kind, field, value) -> None:
    """The config is usable with this value of a field, or refuses it by its name."""
    fits = FITS[kind][field]
    changes = (SMALL if kind in (GPTConfig, DecoderConfig) else {}) | {field: value}
    errors = (ValueError, TypeError) if field == "rope_scaling" else (ValueError,)
    config, said = attempt(lambda: kind(**changes), *errors)
    huge = is_number(value, 1e6) and value < math.inf  # either is right
    if said is None:
        assert fits(value) or huge
        use(config)
    else:
        assert f"{field}={value}" in said or (field in said and repr(value)[:80] in said)
        assert not fits(value) or huge or "must be a multiple of" in said


# Values that versions of hypothesis draw at different times, or not at all.
EDGES = [0, -1, 2**63 - 1, 10**400, -0.0, 5e-324, 1e-310, 1e-45, 1e-30, 1e-6, 0.5, 1 - 1e-16, 1.0]
EDGES += [1e6, 1e30, 1e31, 1e38, 1e300, math.inf, -math.inf, math.nan, True, None, "", "é", [], {}]
of_every_field = pytest.mark.parametrize(
    ("kind", "field"), FIELDS, ids=[f"{k.__name__}.{f}" for k, f in FIELDS]
)


@of_every_field
def test_a_value_at_an_edge_is_usable_or_refused_by_name(kind, field):
    for value in EDGES:
        check_value(kind, field, value)


@of_every_field
@given(value=anything)
@examples(40)
def test_a_value_of_any_kind_is_usable_or_refused_by_name(kind, field, value):
    check_value(kind, field, value)


# ------------------------------------------------------------------ text


PIECES = [b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n", b"\0", b"\xc3", b"\xf0\x9f\x99\x82", b"aaaa"]
PIECES += [b"\xed\xa0\x80", b"First Citizen:\nBefore we proceed any further"]
pieces = st.binary(max_size=12) | st.text(max_size=12).map(str.encode) | st.sampled_from(PIECES)


@given(content=st.lists(pieces, max_size=5).map(b"".join))
@examples(300)
def test_any_bytes_are_the_corpus_that_they_spell_or_an_error_that_names_the_file(trained, content):
    path = trained.place / "any.txt"
    path.write_bytes(content)
    corpus, said = attempt(lambda: load_corpus(path), CorpusError)
    assert said is None or str(path) in said
    assert path.read_bytes() == content, "it is the reader's file"
    try:
        text = content.removeprefix(b"\xef\xbb\xbf").decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        text = ""
    cut = text.startswith("First Citizen:\nBefore we proceed any")
    assert (corpus is None) == (len(set(text)) < 2 or "\0" in text or cut)
    if corpus:
        assert (corpus.text, corpus.sha256, corpus.name) == (text, sha256(content), "any.txt")
        assert corpus.real
        assert CharTokenizer(corpus.text).encode(text).shape == (len(text),)


# ------------------------------------------------------------------ calls

MODELS = {form: tiny_model(per_head=form) for form in (True, False)}
WEIGHTS = {form: copy.deepcopy(model.state_dict()) for form, model in MODELS.items()}
PROMPT = tokens(1, 3)


def call_generate(model, prompt=PROMPT, n_new=2, **how):
    names = [field.name for field in fields(SamplingParams) if field.name in how]
    sampling = SamplingParams(**{name: how.pop(name) for name in names})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "past block_size")
        found = torch.cat(list(generate(model, prompt, n_new, sampling, **how)), 1)
    assert found.shape == (len(prompt), n_new)
    assert 0 <= int(found.min()) <= int(found.max()) < 13


def call_serve(model, prompt=PROMPT[0], max_new_tokens=2, **how):
    found = list(serve(model, [Request(prompt, max_new_tokens, **how)]))
    assert [output.index for output in found] == list(range(max_new_tokens))


def call_kv_cache(model, **how):
    with torch.random.fork_rng(), kv_cache(model, **how):  # dropout draws
        assert model(PROMPT, pos=torch.arange(3))[0].shape == (1, 3, 13)


DOORS = {
    call_generate: "prompt n_new cache past_block generator noise engine draft temperature top_k "
    "top_p greedy",
    call_serve: "prompt max_new_tokens sampling seed arrival",
    call_kv_cache: "cache capacity",
}
PLACES = [(door, name) for door, names in DOORS.items() for name in names.split()]
odd_tensors = st.builds(
    lambda shape, dtype, low: torch.full(shape, low).to(dtype),
    st.lists(st.sampled_from([0, 1, 2, 2, 13]), max_size=3),
    st.sampled_from([torch.int64, torch.int64, torch.int32, torch.float32, torch.cfloat]),
    st.sampled_from([1, 1, 0, -1, 13, 2**40]),
)
classes = st.sampled_from([int, dict, KVCache, DynamicCache, StaticCache, DynamicCache(), "native"])


@pytest.mark.parametrize(
    ("door", "name"), PLACES, ids=[f"{door.__name__}.{name}" for door, name in PLACES]
)
@given(value=anything | odd_tensors | classes, per_head=st.booleans(), mode=st.booleans())
@examples(40)
def test_a_call_of_anything_works_or_is_refused_by_name_and_changes_nothing(
    door, name, value, per_head, mode
):
    model = MODELS[per_head].train(mode)
    before = state_of(model)
    random = torch.random.get_rng_state()
    _, said = attempt(lambda: door(model, **{name: value}), ValueError)
    assert said is None or name in said or "block_size" in said, said
    assert state_of(model) == before
    assert equal(model.state_dict(), WEIGHTS[per_head])
    assert torch.equal(torch.random.get_rng_state(), random)


# ------------------------------------------------------------------ files

CPU = Device(torch.device("cpu"), torch.float32, "tests")
TEXT = "the quick brown fox jumps over the lazy dog.\n" * 10
CORPUS = Corpus(TEXT, "fox", "0" * 64)
RECIPE = TrainConfig(steps=2, batch_size=2, eval_every=2, eval_batches=1, warmup=1)
SHAPE = {"vocab_size": len(set(TEXT)), "block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 4}
ALIKE = [b"0123456789", b"abcdefghijklmnopqrstuvwxyz", b"FIUBC", b"[]{}", b",:"]  # still JSON


def small_run(out, **how) -> GPT:
    model = GPT(GPTConfig(**SHAPE, dropout=0.1), generator=seeded(1)).eval()
    train(model, CORPUS, RECIPE, out=out, device=CPU, **how)
    return model


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A checkpoint, and the state of a run of two steps: their bytes, and what is in them."""
    place = tmp_path_factory.mktemp("weights")
    model = small_run(place / "run")
    (state,) = place.glob("*state.safetensors")
    return SimpleNamespace(
        place=place,
        weights={key: t.clone() for key, t in model.state_dict().items()},
        checkpoint=(place / "run-last.safetensors").read_bytes(),
        state=state.read_bytes(),
        state_path=state,
        tensors=read_tensors(state)[0],
        meta=load_checkpoint(place / "run-last").meta,
    )


@st.composite
def damages(draw):
    """A function that damages a safetensors file in up to three places.

    Half of the places lie in the header, which is where a file says what it is; for half of the
    files the length of the header is then put right, so that reading does not stop there.
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
    """The same with the right length for its header, where that is still JSON."""
    text = data[8:].decode("latin-1")
    end, _ = attempt(lambda: json.JSONDecoder().raw_decode(text)[1], ValueError)
    if end is None:
        return data
    return struct.pack("<Q", len(text) - len(text[end:].lstrip(" "))) + data[8:]


def read_weights(path, trained) -> dict:
    found = load_checkpoint(path)
    str(found)
    assert "digest" not in found.meta
    return found.model.state_dict() if found.meta.keys() == trained.meta.keys() else trained.weights


def resumed(path, trained) -> dict:
    """Resume from a state: the weights in the end."""
    random = torch.random.get_rng_state()
    out = trained.place / "run"
    path.replace(trained.state_path)
    try:
        return small_run(out, resume=True).state_dict()
    finally:
        assert torch.equal(torch.random.get_rng_state(), random)


READERS = {
    "checkpoint": (read_weights, "weights", 150),
    "state": (lambda path, _: read_tensors(path)[0], "tensors", 120),
    "resumed": (resumed, "weights", 60),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_damaged_file_gives_the_very_tensors_or_our_error(trained, kind):
    read, expected, n = READERS[kind]
    name = "run-last.state.safetensors" if kind == "resumed" else "any.safetensors"
    data = trained.checkpoint if kind == "checkpoint" else trained.state
    path = trained.place / name

    @given(damage=damages())
    @examples(n)
    def check(damage):
        path.write_bytes(damage(data))
        # Of ValueErrors there is, beside the CheckpointError, the one for other settings.
        found, said = attempt(lambda: read(path, trained), ValueError)
        assert str(path) in said if said else equal(found, getattr(trained, expected))

    check()


def test_two_damaged_bytes_are_noticed_even_if_one_is_in_the_word_digest(trained):
    data = bytearray(trained.checkpoint.replace(b"digest", b"digesu"))
    data[-5] ^= 4
    path = trained.place / "two.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="digest"):
        load_checkpoint(path)


@st.composite
def swaps(draw):
    """A function that puts another JSON value into one place of nested dicts, or takes one out."""
    choices = draw(st.lists(st.integers(0, 30), min_size=3, max_size=3))
    new = draw(json_values)
    gone = draw(st.integers(0, 5)) == 0

    def swap(tree, choices=choices):
        key = sorted(tree)[choices[0] % len(tree)]
        if isinstance(tree[key], dict) and tree[key] and len(choices) > 1 and choices[0] < 28:
            return tree | {key: swap(tree[key], choices[1:])}
        return {k: v for k, v in tree.items() if k != key} if gone else tree | {key: new}

    return swap


@given(swap=swaps())
@examples(120)
@example(swap=lambda meta: meta | {"losses": {"val": 10**400}})
def test_metadata_that_says_anything_gives_the_very_weights_or_our_error(trained, swap):
    path = trained.place / "meta.safetensors"
    save_file(trained.weights, path, metadata={"nanogpt": json.dumps(swap(trained.meta))})
    found, said = attempt(lambda: load_checkpoint(path), CheckpointError)
    if said is not None:
        assert str(path) in said
        return
    assert equal(found.model.state_dict(), trained.weights)
    assert len(found.tokenizer) == SHAPE["vocab_size"]
    str(found)


# ------------------------------------------------------------------ commands

CELL = """profile: str = "auto"
n: int = 1
many: tuple[int, ...] = (1, 2)"""
word = st.text(st.characters(exclude_characters="\0"), max_size=8)
names = st.sampled_from(["n", "many", "profile", "steps", "ñ"])
setting = st.tuples(names, word | leaves.map(repr)).map("=".join) | word
flag = st.sampled_from("--fail-fast --no-html --profile --timeout -- -p --p 3 03_ first".split())
options = st.tuples(flag | word) | st.tuples(st.just("-p"), setting)


@given(words=st.lists(options, max_size=4).map(lambda parts: [*chain(*parts)]))
@examples(100)
@example(words=["--timeout", "9" * 5000])
@example(words=["-p", "many=[1, [None, True]]"])
@example(words=["-p", "many={[]: 1}"])
@example(words=["-p", "profile=\udcff", "--profile", "\udcff"])  # bytes that are no UTF-8
def test_any_words_are_a_run_or_end_with_2_and_a_line(trained, words):
    """The run itself stops where it looks for its corpus: all of its words are read by then."""
    error = io.StringIO()
    source = trained.place / "notebooks"
    out = trained.place / "out"
    write(source / "03_first.ipynb", parameters=CELL)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(error):
        patch.setenv("NANOGPT_DATA", "nowhere")
        try:
            code = main(["run", "--source", str(source), "--out", str(out), *words])
        except SystemExit as end:  # argparse's own way
            code = end.code
    assert not out.exists()
    assert code == 2
    said = error.getvalue().splitlines()
    assert any(line.startswith(("error: ", "python -m nanogpt run: error: ")) for line in said)
