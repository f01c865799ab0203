"""A config is computed exactly, or refused in one line with the name of the field."""

from __future__ import annotations

import json
import re

import pytest
import torch
import transformers
from pretrained_fixtures import LLAMA3, MODELS, OLD_LLAMA3, ON_THE_HUB, change_json, write_gguf

from nanogpt import load_pretrained
from nanogpt.decoder.config import Activation, DecoderConfig, RopeScaling
from nanogpt.pretrained.configs import config_from_hf
from nanogpt.pretrained.families import FAMILIES
from nanogpt.pretrained.karpathy import config_from_nanogpt
from nanogpt.pretrained.known_fields import ARITHMETIC, HARMLESS
from nanogpt.pretrained.needs import PretrainedError

# A family, the fields that are changed (... removes one), and what the message must say.
REFUSED = [
    ("llama", {"model_type": "mamba"}, r"model_type='mamba'.*llama, qwen2, qwen3, opt, gpt2"),
    ("llama", {"model_type": "llava", "text_config": {"model_type": "llama"}}, "='llava'"),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config=.*gptq"),
    ("llama", {"hidden_act": "mish"}, "hidden_act='mish'"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type='yarn'"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type='linear'"),
    ("llama", {"rope_parameters": ..., "rope_scaling": {"type": "dynamic"}}, "rope_type='dynamic'"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention="),
    ("llama 3.2", {"rope_parameters": {**LLAMA3, "attention_factor": 1.2}}, "attention_factor=1.2"),
    ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "llama3.* without factor"),
    ("llama", {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}}, "rope_theta is 5"),
    ("llama", {"rope_parameters": {"type": "linear", "rope_type": "default"}}, "has type='linear'"),
    ("llama", {"mlp_bias": 1}, "mlp_bias=1"),
    ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps='1e-5'"),
    ("llama", {"rope_parameters": {"rope_theta": 10**30}}, "rope_theta=1000000000000000"),
    ("llama", {"rope_parameters": {**LLAMA3, "factor": 2**64}}, "factor=18446744073709551616"),
    (
        "llama",
        {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32.5}},
        "rope_parameters: original_max_position_embeddings=32.5: must be an integer",
    ),
    ("gpt2", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling="),
    ("llama", {"num_hidden_layers": ...}, "no num_hidden_layers"),
    ("llama", {"num_hidden_layers": 2**40}, "num_hidden_layers=1099511627776"),
    ("llama", {"num_hidden_layers": 3}, r"no tensor model\.layers\.2\."),
    ("llama", {"hidden_size": "32"}, "hidden_size='32'"),
    ("llama", {"num_key_value_heads": 4}, "k_proj.weight has the shape"),
    ("llama", {"head_dim": 16}, r"q_proj.weight has the shape \(32, 32\).* needs \(64, 32\)"),
    ("llama", {"head_dim": 7}, "head_size=7 must be even"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps=nan"),
    ("llama", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types="),
    ("llama", {"attention_bias": True}, r"no tensor .*q_proj\.bias"),
    ("qwen3", {"tie_word_embeddings": False}, "no tensor lm_head.weight"),
    ("qwen2", {"use_sliding_window": True}, "use_sliding_window=True"),
    ("qwen2", {"model_type": "llama"}, r"the tensor .*k_proj\.bias"),
    ("gpt2", {"rope_theta": 1e4}, "rope_theta=10000.0"),
    ("gpt2", {"n_positions": 65}, "wpe.weight has the shape"),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before=False"),  # opt-350m
    ("opt", {"word_embed_proj_dim": 16, "hidden_size": 64}, "embed_tokens.weight has the shape"),
    ("opt", {"enable_bias": False}, "enable_bias=False"),  # Galactica
    ("nanochat", {"attention_bias": True}, "attention_bias=True"),
    ("nanochat", {"final_logit_softcapping": -1.0}, "final_logit_softcapping=-1.0"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_a_config_that_is_not_computed_is_refused_by_name(name, changes, words, own_folder):
    folder = own_folder(name)
    change_json(folder / "config.json", **changes)
    with pytest.raises(PretrainedError, match=words) as caught:
        load_pretrained(folder)
    assert "\n" not in str(caught.value)


# Two statements about rotations, which must agree: both fields are in files that tools have merged.
YARN = {"rope_type": "yarn", "factor": 4.0}
BASE = {"rope_theta": 1e6}
DISAGREE = [
    {"rope_scaling": OLD_LLAMA3, "rope_parameters": {"rope_type": "default"}},
    {"rope_scaling": OLD_LLAMA3, "rope_parameters": OLD_LLAMA3 | {"factor": 32.0}},
    {"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "default", **BASE}},
    {"rope_scaling": BASE, "rope_parameters": {"rope_type": "default"}},
]
AGREE = [
    {"rope_scaling": OLD_LLAMA3, "rope_parameters": OLD_LLAMA3},
    {"rope_theta": 10_000, "rope_scaling": None, "rope_parameters": {}},
    {"rope_scaling": {"type": "linear", "factor": 1.0}},
    {"rope_scaling": OLD_LLAMA3 | {"original_max_position_embeddings": 8192.0}},
    {"rope_scaling": OLD_LLAMA3, "rope_parameters": OLD_LLAMA3 | {"low_freq_factor": 1}},
]


def fields_of_llama(**changes):
    """A Llama's config.json, as transformers 4 wrote it."""
    return ON_THE_HUB["TinyLlama-1.1B"][0] | changes


@pytest.mark.parametrize("rope", DISAGREE)
def test_rope_scaling_and_rope_parameters_that_disagree_are_refused(rope):
    with pytest.raises(PretrainedError, match=r"rope_scaling=.* rope_parameters=.* disagree"):
        config_from_hf(fields_of_llama(**rope), "config.json")


@pytest.mark.parametrize("rope", AGREE)
def test_rope_scaling_and_rope_parameters_may_say_the_same(rope):
    config = config_from_hf(fields_of_llama(**rope), "config.json")[1]
    assert config.rope_base == (1e6 if "1000000" in str(rope) else 1e4)
    assert (config.rope_scaling is not None) == ("llama3" in str(rope))


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_family_without_rotary_positions_may_have_an_empty_field_for_them(nothing):
    fields = ON_THE_HUB["GPT-2"][0]
    plain = config_from_hf(fields, "config.json")
    assert config_from_hf(fields | {"rope_scaling": nothing}, "config.json") == plain
    assert config_from_hf(fields | {"rope_parameters": nothing}, "config.json") == plain


NEUTRAL_GGUF = {"rope.scaling.factor": 1.0, "rope.scaling.finetuned": False, "residual_scale": 1.0}
NEUTRAL_GGUF |= {"leading_dense_block_count": 0, "rope.scaling.type": "none", "expert_count": 0}


@pytest.mark.filterwarnings("error")
def test_neutral_keys_of_a_gguf_file_change_nothing(tmp_path):
    plain = load_pretrained(write_gguf(tmp_path / "plain.gguf", "llama"))[0].config
    metadata = {f"llama.{name}": value for name, value in NEUTRAL_GGUF.items()}
    path = write_gguf(tmp_path / "x.gguf", "llama", metadata=metadata)
    assert load_pretrained(path)[0].config == plain


# ------------------------------------------------------------------ unknown fields


def test_unknown_fields_are_ignored_with_one_warning_that_names_them(own_folder):
    folder = own_folder("llama")
    plain = load_pretrained(folder)[0]
    change_json(folder / "config.json", trained_by="me", **{f"note_{i}": i for i in range(7)})
    with pytest.warns(UserWarning, match="trained_by, note_0, .* and 3 more: unknown") as caught:
        model = load_pretrained(folder)[0]
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert model.config == plain.config
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.mark.filterwarnings("error")
def test_harmless_fields_are_ignored_silently():
    harmless = dict.fromkeys(HARMLESS - {"model_type"}, "x")
    marked = config_from_hf(fields_of_llama(**harmless), "config.json")
    assert marked == config_from_hf(fields_of_llama(), "config.json")


@pytest.mark.parametrize("name", ARITHMETIC)
def test_a_field_that_changes_the_arithmetic_is_refused_unless_neutral(name):
    _, neutral = ARITHMETIC[name]
    plain = config_from_hf(fields_of_llama(), "config.json")
    for value in neutral:
        assert config_from_hf(fields_of_llama(**{name: value}), "config.json") == plain
    for value in (7, {"x": 1}, "x"):
        with pytest.raises(PretrainedError, match=re.escape(f"{name}={value!r} is not supported")):
            config_from_hf(fields_of_llama(**{name: value}), "config.json")


def test_the_architectures_beside_these_fields_have_them():
    """Those of transformers; the others are in files of older versions and of other programs."""
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    found = 0
    for field, (architecture, _) in ARITHMETIC.items():
        if architecture in known:
            found += 1
            config = known[architecture]()
            rope = getattr(config, "rope_parameters", None) or {}
            assert field in config.to_dict() or field in rope, field
    assert found > 30


LONG = ["x" * 10_000, [["y"] * 5000] * 9, {"a" * 5000: "b" * 5000}, "\ud800" * 3000, 10**4000]


@pytest.mark.parametrize("value", LONG, ids=["text", "lists", "names", "surrogates", "digits"])
def test_a_long_value_is_cut_in_messages(value):
    fields = fields_of_llama()
    fields |= {"rope_parameters": {}, "layer_types": None, "auto_map": None}
    for name in fields:
        if name in HARMLESS:
            continue
        with pytest.raises(PretrainedError) as caught:
            config_from_hf(fields | {name: value}, "config.json")
        assert len(str(caught.value)) < 300, name
        assert str(caught.value).isprintable()
    names = ["y\n\ud800", *(f"{i}" + "x" * 10_000 for i in range(7))]
    with pytest.warns(UserWarning, match="unknown") as caught:
        config_from_hf(fields | dict.fromkeys(names, value), "config.json")
    assert len(str(caught[0].message)) <= 300
    assert str(caught[0].message).isprintable()


# Fields of real files, and what they make of the DecoderConfig.
BIG = {"max_position_embeddings": 2048, "rope_parameters": ..., "rope_theta": 1e5}
ACCEPTED = [
    ({"transformers.js_config": {"x": 1}, "is_llama_config": True, "rope_interleaved": False}, {}),
    ({"torch_dtype": "bfloat16", "pretraining_tp": 4, "quantization_config": None}, {}),
    ({**BIG, "rope_scaling": None}, {"rope_base": 1e5, "block_size": 2048}),
    ({**BIG, "rope_scaling": {"type": "default"}}, {"rope_base": 1e5, "block_size": 2048}),
    (
        {**BIG, "rope_scaling": OLD_LLAMA3},
        {"rope_base": 1e5, "block_size": 2048, "rope_scaling": RopeScaling()},
    ),
    ({"hidden_act": "relu"}, {"activation": Activation.RELU}),
    ({"head_dim": None, "num_key_value_heads": 2}, {}),
    ({"rms_norm_eps": ...}, {"norm_eps": 1e-6}),
]


@pytest.mark.parametrize(("changes", "expected"), ACCEPTED)
def test_fields_of_real_files_are_understood(changes, expected, own_folder):
    folder = own_folder("llama")
    plain = load_pretrained(folder)[0].config
    change_json(folder / "config.json", **changes)
    model = load_pretrained(folder)[0]
    differing = {
        name: getattr(model.config, name)
        for name in DecoderConfig.__dataclass_fields__
        if getattr(model.config, name) != getattr(plain, name)
    }
    assert differing == expected


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_models_of_the_hub_have_their_number_of_parameters(name):
    fields, n_params = ON_THE_HUB[name]
    assert config_from_hf(fields, "config.json")[1].n_params == n_params


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in MODELS.values()}))
@pytest.mark.filterwarnings("error")
def test_every_default_field_of_transformers_is_known(kind):
    config = getattr(transformers, kind)()
    fields = json.loads(json.dumps(config.to_dict()))
    family, made = config_from_hf(fields, "config.json")
    assert family.model_type == config.model_type
    assert made.n_layer == config.num_hidden_layers
    assert made.block_size == config.max_position_embeddings


@pytest.mark.parametrize("name", FAMILIES)
def test_a_missing_field_has_the_default_of_transformers(name):
    """Of every field that a family may leave out."""
    theirs = next(x for x, _ in MODELS.values() if x.lower().startswith(name))
    config = getattr(transformers, theirs)()
    for field, default in FAMILIES[name].defaults.items():
        if default is not None:
            assert getattr(config, field) == default, field


# ------------------------------------------------------------------ GGUF

RMS_EPS = "attention.layer_norm_rms_epsilon"
LAYER_EPS = "attention.layer_norm_epsilon"


@pytest.mark.parametrize(
    ("name", "own", "other"),
    [
        ("llama", RMS_EPS, LAYER_EPS),
        ("qwen3", RMS_EPS, LAYER_EPS),
        ("gpt2", LAYER_EPS, RMS_EPS),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_of_two_epsilons_the_one_of_the_architectures_norm_counts(name, own, other, last, tmp_path):
    values = {f"{name}.{other}": 0.25, f"{name}.{own}": 0.125}
    if last:
        values = dict(reversed(values.items()))
    path = write_gguf(tmp_path / "x.gguf", name, metadata=values)
    assert load_pretrained(path)[0].config.norm_eps == 0.125
    write_gguf(path, name, metadata={f"{name}.{other}": 0.25, f"{name}.{own}": ...})
    with pytest.raises(PretrainedError, match=f"no {name}.{own}"):
        load_pretrained(path)


def test_an_unknown_key_is_ignored_with_a_warning(tmp_path):
    path = write_gguf(tmp_path / "x.gguf", "llama", metadata={"llama.mark": "x", "mark": 3})
    with pytest.warns(UserWarning, match=r"x\.gguf: llama\.mark: unknown") as caught:
        load_pretrained(path)
    assert len(caught) == 1


REFUSED_GGUF = [
    ({"general.architecture": "gemma"}, "general.architecture='gemma'"),
    ({"general.type": "adapter"}, "general.type='adapter'"),
    ({"split.count": 3}, "one of the 3 parts of a split model"),
    ({"llama.logit_scale": 2.0}, "llama.logit_scale=2.0"),
    ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type='yarn'"),
    ({"llama.rope.scale_linear": 4.0}, "llama.rope.scale_linear=4.0"),
    ({"llama.residual_scale": 0.5}, "llama.residual_scale=0.5"),
    ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count=4"),
    ({"llama.attention.head_count_kv": [2, 1]}, r"llama.attention.head_count_kv=\[2, 1\]"),
    ({"llama.block_count": ...}, "no llama.block_count"),
    ({"llama.feed_forward_length": ...}, "ffn_gate.weight has the shape"),
    ({"general.alignment": 0}, "general.alignment=0"),
    ({"tokenizer.ggml.pre": "viking"}, "tokenizer.ggml.pre='viking'.*gpt-2, smollm, refact"),
    ({"tokenizer.ggml.pre": "x" * 10_000}, r"tokenizer\.ggml\.pre='xxx"),
    ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model='bert', and only gpt2, llama"),
    ({"tokenizer.ggml.merges": ...}, "tokenizer.ggml.merges is missing"),
    ({"tokenizer.ggml.merges": ["ab"]}, "'ab', not a pair"),
    ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens is missing or not a list"),
    (
        {"tokenizer.ggml.tokens": ["$A:x", "a", "b", "ab"], "tokenizer.ggml.merges": ["a b"]}
        | {"tokenizer.ggml.add_bos_token": True},
        r"no text can begin or end with '\$A:x'",
    ),
    (
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 5000},
        "bos_token_id=5000",
    ),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED_GGUF)
def test_a_gguf_file_that_is_not_computed_is_refused_by_name(changes, words, tmp_path):
    path = write_gguf(tmp_path / "x.gguf", "llama", metadata=changes)
    with pytest.raises(PretrainedError, match=words) as caught:
        load_pretrained(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value).replace(str(path), "")) < 300


# ------------------------------------------------------------------ nanoGPT

SIZES = {"vocab_size": 65, "block_size": 32, "n_layer": 2, "n_head": 4, "n_embd": 32}
REFUSED_NANOGPT = [
    (None, "no model_args"),
    ({**SIZES, "n_experts": 4}, "n_experts=4"),
    ({**SIZES, "bias": "yes"}, "bias='yes'"),
    ({**SIZES, "n_head": 0}, "n_head=0"),
    ({name: SIZES[name] for name in SIZES if name != "n_embd"}, "no n_embd"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED_NANOGPT)
def test_arguments_of_nanogpt_that_are_not_computed_are_refused_by_name(arguments, words):
    with pytest.raises(PretrainedError, match=words):
        config_from_nanogpt(arguments, "ckpt.pt")
