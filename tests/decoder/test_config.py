"""DecoderConfig: what each field accepts, what follows from the fields, and the lecture's part."""

import json
import math
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from shapes import DECODERS, LLAMA3, ROPE, SMALL
from torch import nn

import nanogpt
from nanogpt.cache import kv_cache, measured_bytes
from nanogpt.config import SIZES, GPTConfig
from nanogpt.decoder.checkpoint import config_from_json, config_to_json
from nanogpt.decoder.config import (
    Activation,
    DecoderConfig,
    Norm,
    Positions,
    RopeScaling,
    beyond_lecture,
    decoder_config,
    lecture_config,
)
from nanogpt.decoder.model import Decoder

NAMES = [field.name for field in fields(DecoderConfig)]
every_decoder = pytest.mark.parametrize("row", DECODERS)


def config_in(row: str) -> DecoderConfig:
    return DecoderConfig(**SMALL | DECODERS[row])


# ------------------------------------------------------------------ what each field accepts

WINDOW = {"window": 4}
# Of some fields: values they accept, values beyond their limits, and fields needed beside them.
# n_head is 4 and n_embd is 64 unless the row says otherwise. Edges of all fields: test_fuzz.py.
VALUES = {
    **dict.fromkeys(("vocab_size", "block_size"), ([1, 2**40], [0, -1, 2**63])),
    "n_layer": ([1, 2**40], [0, -1, 2**63, 1.5, True, "2", None]),
    "n_head": ([1, 2, 64], [0, 3, 65, -1]),
    "n_embd": ([4, 4096], [0, 3, 66]),
    "n_kv_head": ([None, 1, 2], [0, 3, 8, -1]),
    "head_dim": ([None, 1, 15, 1024], [0, -1, 2**63]),
    "ffn_dim": ([None, 1, 100, 2**40], [0, -1, 2**63]),
    "positions": ([*Positions, "learned", "rotary"], ["rope", "ROTARY"]),
    "rope_base": ([1, 1.5, 2**40, 1e30], [0.999, 1e31]),
    "rope_scaling": ([None, RopeScaling()], [8.0, {"factor": 8.0}, "llama3", True], ROPE),
    "norm": ([*Norm, "layer", "rms"], ["batch"]),
    "norm_eps": ([None, 0, 1e-5, 1], [1.001, -1e-9], {"norm": "rms"}),
    "activation": ([*Activation, "gelu_tanh"], ["tanh"]),
    "window": ([None, 1, 2**31], [0, -1, 2**31 + 1]),
    "sinks": ([0, 2**31], [-1, 2**31 + 1], WINDOW),
    "full_every": ([0, 1, 2**40], [-1, 2**63], WINDOW),
    "logit_softcap": ([None, 1e-30, 30, 1e30], [0, -1e-9, math.nan, math.inf, "1"]),
    "tied": ([True, False], [1, "yes", None]),
    "dropout": ([0, 0.5, 1 - 2**-53], [1.0, -1e-9]),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_field_accepts_its_values_and_refuses_others_by_name(name):
    accepted, refused, *needed = VALUES[name]
    beside = needed[0] if needed else {}
    default = getattr(DecoderConfig(), name)
    for value in accepted:
        found = getattr(DecoderConfig(**{**beside, name: value}), name)
        assert found == value
        assert value is None or isinstance(found, (type(value), float))
        if isinstance(default, (Positions, Norm, Activation)):
            assert type(found) is type(default), "a string becomes its enum"
    for value in refused:
        with pytest.raises((ValueError, TypeError), match=name):
            DecoderConfig(**{**beside, name: value})


FLOATS = [
    name for name, hint in get_type_hints(DecoderConfig).items() if float in (hint, *get_args(hint))
]


@pytest.mark.parametrize("name", FLOATS)
def test_a_whole_number_becomes_the_float_that_pytorch_can_compute_with(name):
    """As JSON has it without a decimal point: rope_theta of Llama is 500000.0 and 500000."""
    value = next(x for x in VALUES[name][0] if type(x) is int)
    assert type(getattr(DecoderConfig(**{name: value}), name)) is float


@pytest.mark.parametrize(
    ("together", "message"),
    [
        ({**ROPE, "n_embd": 12}, "head_size=3 must be even"),
        ({**ROPE, "head_dim": 5}, "head_size=5 must be even"),
        ({"n_embd": 10}, "n_embd=10 must be .* n_head=4, or give a head_dim"),
        (
            {"n_head": 6, "n_kv_head": 4, "head_dim": 8},
            "n_head=6 must be a multiple of n_kv_head=4",
        ),
        ({"rope_scaling": LLAMA3}, "rope_scaling is for rotary positions"),
        ({"sinks": 2}, "sinks=2, full_every=0: also set a window"),
        ({"full_every": 2}, "sinks=0, full_every=2: also set a window"),
        ({"norm_eps": None}, "norm_eps=None is for norm='rms'"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(together, message):
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**together)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0}, "factor=0"),
        ({"factor": math.nan}, "factor=nan"),
        ({"low_freq_factor": 0}, "low_freq_factor=0"),
        ({"high_freq_factor": math.inf}, "high_freq_factor=inf"),
        ({"original_context": 0}, "original_context=0"),
        ({"original_context": 8192.0}, "original_context=8192.0"),
        ({"original_context": 2**63}, f"original_context={2**63}"),
        ({"low_freq_factor": 4.0}, "high_freq_factor=4.0 must be above low_freq_factor=4.0"),
    ],
)
def test_a_scaling_of_rotations_has_numbers_that_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        RopeScaling(**changes)


# ------------------------------------------------------------------ None is the usual number

# A field that may be None, the property that has its number, and the usual numbers.
USUAL = {"n_kv_head": ("kv_heads", 4), "head_dim": ("head_size", 16), "ffn_dim": ("hidden", 256)}


@pytest.mark.parametrize("name", USUAL)
def test_none_is_the_usual_number_and_equal_shapes_are_equal_configs(name):
    number, usual = USUAL[name]
    plain = DecoderConfig()
    given = DecoderConfig(**{name: usual})
    assert getattr(plain, name) is None
    assert getattr(plain, number) == usual
    assert given == plain
    assert hash(given) == hash(plain)
    other = DecoderConfig(**{name: 1})
    assert other != plain
    assert getattr(other, number) == 1


@pytest.mark.parametrize(
    ("given", "change", "numbers"),
    [  # what is given, what is replaced; then kv_heads, head_size, hidden
        ({}, {"n_head": 8}, (8, 8, 256)),
        ({}, {"n_embd": 128}, (4, 32, 512)),
        ({"n_kv_head": 4}, {"n_head": 8}, (8, 8, 256)),
        ({"n_kv_head": 2}, {"n_head": 8}, (2, 8, 256)),
        ({"head_dim": 16}, {"n_embd": 128}, (4, 32, 512)),
        ({"head_dim": 20}, {"n_embd": 128}, (4, 20, 512)),
        ({"head_dim": 20}, {"head_dim": None}, (4, 16, 256)),
        ({"ffn_dim": 100}, {"n_embd": 128}, (4, 32, 100)),
        ({"ffn_dim": 512}, {"n_embd": 128}, (4, 32, 512)),
    ],
)
def test_a_number_that_was_none_follows_a_replaced_field(given, change, numbers):
    config = replace(DecoderConfig(**given), **change)
    assert (config.kv_heads, config.head_size, config.hidden) == numbers


# ------------------------------------------------------------------ sizes


def test_the_table_of_decoders_changes_every_field():
    changed = set()
    for row in DECODERS:
        mine = config_in(row)
        usual = DecoderConfig(**SMALL)
        changed |= {name for name in NAMES if getattr(mine, name) != getattr(usual, name)}
    assert sorted(changed) == sorted(NAMES)


@every_decoder
def test_parameters_are_those_of_the_built_model(row):
    config = config_in(row)
    with torch.device("meta"):
        model = Decoder(config)
    matrices = [m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)]
    vectors = [p.numel() for p in model.parameters() if p.ndim == 1]
    assert config.n_params == model.n_params == sum(p.numel() for p in model.parameters())
    assert config.matrix_weights == sum(matrices)
    assert config.vector_weights == sum(vectors)
    assert config.weight_bytes(2) == 2 * (sum(matrices) + sum(vectors))


@every_decoder
def test_bytes_of_a_cache_are_those_that_a_model_holds(row):
    model = Decoder(config_in(row)).eval().double()
    with kv_cache(model), torch.no_grad():
        model(torch.zeros(3, 7, dtype=torch.long), pos=torch.arange(7))
        assert measured_bytes(model) == model.config.cache_bytes(7, batch=3, itemsize=8)
        assert measured_bytes(model) == model.cache_bytes(7, batch=3)


LLAMA = {**ROPE, "norm": "rms", "activation": "silu", "gated": True}
LLAMA |= dict.fromkeys(("proj_bias", "ffn_bias", "head_bias"), False)
GPT2 = {"activation": "gelu_tanh", "qkv_bias": True, "head_bias": False, "tied": True}
KNOWN = {  # the config, the parameters, and the bytes of a cache of 1024 tokens in 16 bits
    "GPT-2": (
        DecoderConfig(50257, 1024, 12, 12, 768, **GPT2),
        124_439_808,
        2 * 12 * 768 * 1024 * 2,
    ),
    "Llama 2 7B": (
        DecoderConfig(32000, 4096, 32, 32, 4096, ffn_dim=11008, **LLAMA),
        6_738_415_616,
        2**29,
    ),
    "Llama 3.2 1B": (
        DecoderConfig(128256, 131072, 16, 32, 2048, n_kv_head=8, ffn_dim=8192, tied=True, **LLAMA),
        1_235_814_400,
        2**25,
    ),
    "Qwen3 0.6B": (
        DecoderConfig(
            151936, 40960, 28, 16, 1024, 8, 128, ffn_dim=3072, tied=True, qk_norm=True, **LLAMA
        ),
        596_049_920,
        2 * 28 * 8 * 128 * 1024 * 2,
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_have_the_size_that_is_known_of_them(name):
    config, n_params, cache = KNOWN[name]
    assert config.n_params == n_params
    assert config.cache_bytes(1024, itemsize=2) == cache


# ------------------------------------------------------------------ the lecture's shapes


# Those of the table have as many heads as layers: here all numbers differ.
UNEVEN = [GPTConfig(13, 5, 1, 1, 3, 0.5), GPTConfig(150, 7, 3, 2, 8)]


@pytest.mark.parametrize("shape", [*SIZES.values(), *UNEVEN], ids=str)
def test_a_lecture_shape_comes_back_from_its_decoder(shape):
    config = decoder_config(shape)
    assert type(config) is DecoderConfig
    assert decoder_config(config) is config
    assert lecture_config(config) == shape
    assert beyond_lecture(config) == beyond_lecture(shape) == {}
    sizes = ("n_params", "matrix_weights", "head_size", "max_positions")
    assert all(getattr(config, name) == getattr(shape, name) for name in sizes)
    assert config.weight_bytes(2) == shape.weight_bytes(2)
    assert config.cache_bytes(7, 3, 2) == shape.cache_bytes(7, 3, 2)


@every_decoder
def test_fields_beyond_the_lecture_are_named(row):
    config = config_in(row)
    beyond = beyond_lecture(config)
    newer = DECODERS[row].keys() - GPTConfig.__dataclass_fields__.keys()
    if config.n_embd == 30:
        newer |= {"n_head"}  # 4 of them have no equal shares of it
    assert beyond == {name: getattr(config, name) for name in newer}
    if not beyond:
        assert decoder_config(lecture_config(config)) == config
        return
    with pytest.raises(ValueError, match="the lecture's model has no") as refused:
        lecture_config(config)
    assert all(f"{name}=" in str(refused.value) for name in beyond)


# ------------------------------------------------------------------ a field is declared once

# What a field of arithmetic needs: its declaration with its check, and its arithmetic three times.
NEEDED = ["decoder/config.py", "decoder/model.py", "decoder/step.py", "engines/decoder.cpp"]
# A rule of its own: padded tokens are ruled out by a bias of -inf, which a softcap would lift.
BESIDE = ["pretrained/padding.py"]
# Where a model of others has it, its own name for the field, and what a file of it may hold.
BESIDE += ["pretrained/families.py", "pretrained/configs.py", "pretrained/karpathy.py"]


def test_a_field_is_declared_once_and_computed_where_decoders_are_computed():
    """Native code's struct, the counts, the checkpoint and the test tables name no field."""
    package = Path(nanogpt.__file__).parent
    files = [file for kind in ("py", "cpp", "h") for file in package.rglob(f"*.{kind}")]
    found = []
    for file in files:
        if re.search(r"\blogit_softcap\b", file.read_text(encoding="utf-8")):
            found.append(file.relative_to(package).as_posix())
    assert sorted(found) == sorted(NEEDED + BESIDE)


# ------------------------------------------------------------------ as JSON


@every_decoder
def test_a_config_comes_back_from_json(row):
    config = config_in(row)
    text = json.dumps(config_to_json(config))
    assert config_from_json(json.loads(text)) == config
    assert config_to_json(config) == asdict(config)
