"""Fields of a DecoderConfig by their usual names, models of either class, a table of decoders."""

import torch

from nanogpt.config import GPTConfig
from nanogpt.decoder.config import DecoderConfig, RopeScaling
from nanogpt.decoder.pack import build_model
from nanogpt.training.recipes import MODERN

ROPE = {"positions": "rotary"}
RMS = {"norm": "rms", "norm_weights": False, "norm_eps": None, "embed_norm": True}
RELU2 = {"activation": "relu2"}
NO_BIAS = {"proj_bias": False, "ffn_bias": False, "head_bias": False}
LLAMA3 = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=16)


def config_of(packed: bool = False, **fields) -> GPTConfig | DecoderConfig:
    """The lecture's config where it has all the fields, unless a packed one is asked for."""
    lecture = not packed and fields.keys() <= GPTConfig.__dataclass_fields__.keys()
    return (GPTConfig if lecture else DecoderConfig)(**fields)


def model_of(generator: torch.Generator | None = None, *, packed: bool = False, **fields):
    """A new model of config_of(…)."""
    return build_model(config_of(packed, **fields), generator)


def label(fields: dict) -> str:
    """A short id for a parametrised case."""
    return " ".join(key if value is True else f"{key}={value}" for key, value in fields.items())


# A shape whose numbers all differ, so that none can stand for another.
SMALL = {"vocab_size": 13, "block_size": 40, "n_layer": 3, "n_head": 4, "n_embd": 32}

# What differs from SMALL: one field after another, each beside those that it needs.
ONE_FIELD = [
    {"vocab_size": 14},
    {"block_size": 39},
    {"n_layer": 2},
    {"n_head": 8},
    {"n_embd": 24},
    {"n_kv_head": 2},
    {"n_kv_head": 1},
    {"head_dim": 12},
    {"head_dim": 5, "n_embd": 30},
    {"ffn_dim": 50},
    {"positions": "rotary"},
    {"rope_base": 100.0, **ROPE},
    {"rope_scaling": LLAMA3, **ROPE},
    {"norm": "rms"},
    {"norm_weights": False},
    {"norm_bias": False},
    {"norm_eps": 0.1},
    {"norm_eps": None, "norm": "rms"},
    {"embed_norm": True},
    {"qk_norm": True},
    {"qk_norm": True, "norm_weights": False},
    {"activation": "relu2"},
    {"activation": "gelu"},
    {"activation": "gelu_tanh"},
    {"activation": "silu"},
    {"gated": True},
    {"qkv_bias": True},
    {"proj_bias": False},
    {"ffn_bias": False},
    {"head_bias": False},
    {"tied": True},
    {"window": 5},
    {"sinks": 2, "window": 5},
    {"full_every": 2, "window": 5},
    {"logit_softcap": 1.0},
    {"dropout": 0.1},
]
SWIGLU = {"activation": "silu", "gated": True, "ffn_dim": 40, **NO_BIAS}
COMBINED = {
    "the keeper": MODERN,
    "GPT-2": {"activation": "gelu_tanh", "qkv_bias": True, "head_bias": False, "tied": True},
    "Llama 3": {**ROPE, "rope_scaling": LLAMA3, "norm": "rms", "n_kv_head": 2, **SWIGLU},
    "Qwen 3": {**ROPE, "norm": "rms", "qk_norm": True, "head_dim": 10, "n_kv_head": 1, "tied": True}
    | SWIGLU,
    "Gemma 2": {**ROPE, "norm": "rms", "n_kv_head": 2, "window": 7, "full_every": 2, "tied": True}
    | {**SWIGLU, "activation": "gelu_tanh", "logit_softcap": 3.0, "head_dim": 12},
    "all at once": {**ROPE, "rope_base": 50.0, "norm_bias": False, "embed_norm": True}
    | {"qk_norm": True, "qkv_bias": True, "gated": True, "activation": "gelu", "ffn_dim": 50}
    | {"n_kv_head": 2, "window": 6, "sinks": 3, "full_every": 3, "logit_softcap": 5.0}
    | {"head_dim": 10},
}
DECODERS = {label(fields): fields for fields in [{}, *ONE_FIELD]} | COMBINED
DECODERS["plain"] = DECODERS.pop("")
