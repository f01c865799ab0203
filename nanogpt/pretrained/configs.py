"""Convert other people's configs to a DecoderConfig, or name the field that is not supported."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..config import check_int, check_number, check_switch
from ..decoder.config import Activation, DecoderConfig, RopeScaling
from ..decoder.layers import rotation_speeds
from .families import (
    ACTIVATIONS,
    FAMILIES,
    GGUF_BIASES,
    GGUF_FIELDS,
    GGUF_HARMLESS,
    GGUF_HEAD_SIZES,
    GGUF_NEEDED,
    GGUF_ONLY,
    GPT2,
    HARMLESS,
    ONLY,
    ROPE_FREQS,
    Family,
)
from .needs import PretrainedError, shown
from .stored import AGAIN, Tensors

NOT_OURS = "only transformers or llama.cpp can run this model"
LARGEST_SIZE = 2**31 - 1
SWITCHES = frozenset(["tied", "qkv_bias", "proj_bias", "ffn_bias"])
OPTIONAL = frozenset(["n_kv_head", "head_dim", "ffn_dim"])  # None: DecoderConfig's default
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def family_of(name: Any, where: str) -> Family:
    """Look up a family by name. Raises PretrainedError for one that is not supported."""
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise PretrainedError(f"{where}={name!r:.80}: the supported families are {known}")
    return FAMILIES[name]


# ------------------------------------------------------------------ config.json


def config_from_hf(fields: dict[str, Any], where: str) -> tuple[Family, DecoderConfig]:
    """The family and shape described by the fields of a config.json. Raises PretrainedError."""
    family = family_of(fields.get("model_type"), f"{where}: model_type")
    known = {*family.fields, *family.only, *family.harmless, *ONLY, *HARMLESS, "layer_types"}
    if family is not GPT2:
        known |= {*_ROPE}
    for name, value in fields.items():
        if name not in known:
            raise PretrainedError(
                f"{where}: {shown(name)}={value!r:.80} is a field unknown to this package, "
                f"and it may change the arithmetic: {NOT_OURS}"
            )
        allowed = (ONLY | family.only).get(name)
        if allowed is not None and not any(_same(value, one) for one in allowed):
            raise _not_computed(where, name, value)
    types = fields.get("layer_types")
    if types is not None and (
        not isinstance(types, list) or {*map(str, types)} - {"full_attention"}
    ):
        raise _not_computed(where, "layer_types", types)
    made = dict(family.fixed)
    for name, ours in family.fields.items():
        if name not in fields and name not in family.defaults:
            raise PretrainedError(f"{where} has no {name}, which its family needs: {AGAIN}")
        value = _checked(where, name, fields.get(name, family.defaults.get(name)), ours[0])
        made |= dict.fromkeys(ours, value)
    if family is not GPT2:
        made |= _rope_fields(fields, where, made["block_size"])
    return family, _decoder_config(made, where)


def _same(value: Any, other: Any) -> bool:
    """Whether two values of a config are equal; 1 and True are not."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _not_computed(where: str, name: str, value: Any) -> PretrainedError:
    return PretrainedError(f"{where}: {shown(name)}={value!r:.80} is not supported: {NOT_OURS}")


def _checked(where: str, name: str, value: Any, ours: str) -> Any:
    """Check a field's value for the DecoderConfig. Raises PretrainedError, naming the field."""
    try:
        if ours == "activation":
            if not isinstance(value, str) or value not in ACTIVATIONS:
                raise _not_computed(where, name, value)
            return ACTIVATIONS[value]
        if ours in SWITCHES:
            check_switch(name, value)
        elif ours in ("norm_eps", "rope_base"):
            check_number(name, value, 0 if ours == "norm_eps" else 1)
            return float(value)
        elif value is not None or ours not in OPTIONAL:
            check_int(name, value, 1, LARGEST_SIZE)
    except PretrainedError:
        raise
    except ValueError as error:
        raise PretrainedError(f"{where}: {error}") from None
    return value


def _decoder_config(made: dict[str, Any], where: str) -> DecoderConfig:
    try:
        return DecoderConfig(**made)
    except (TypeError, ValueError) as error:
        raise PretrainedError(f"{where} does not describe a decoder: {error}") from error


def _rope_fields(fields: dict[str, Any], where: str, context: int) -> dict[str, Any]:
    """The base and scaling of rotary positions, from the fields of transformers 4 or 5."""
    given: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        part = fields.get(name) or {}
        if not isinstance(part, dict):
            raise _not_computed(where, name, part)
        given |= part
    base = _checked(where, "rope_theta", fields.get("rope_theta", 10_000.0), "rope_base")
    inner = _checked(where, "rope_theta", given.pop("rope_theta", base), "rope_base")
    if "rope_theta" in fields and inner != base:
        raise PretrainedError(f"{where}: rope_theta is {base:g} and, in rope_parameters, {inner:g}")
    kind = given.pop("type", "default")
    kind = given.pop("rope_type", kind)
    share = given.pop("partial_rotary_factor", 1.0)
    if not _same(share, 1.0):
        raise _not_computed(where, "partial_rotary_factor", share)
    if kind == "default" and not given:
        return {"rope_base": inner}
    if kind == "llama3":
        given.setdefault("original_max_position_embeddings", context)
        unknown = sorted(given.keys() - {*LLAMA3})
        lost = [name for name in LLAMA3 if name not in given]
        if unknown:
            raise _not_computed(where, f"rope_scaling's {unknown[0]}", given[unknown[0]])
        if lost:
            raise PretrainedError(f"{where}: rope_type='llama3' without {lost[0]}: {AGAIN}")
        try:
            return {"rope_base": inner, "rope_scaling": RopeScaling(*(given[x] for x in LLAMA3))}
        except (TypeError, ValueError) as error:
            raise PretrainedError(f"{where}: rope_scaling: {error}") from error
    if kind == "default":
        name = min(given)
        raise _not_computed(where, f"rope_scaling's {name}", given[name])
    raise _not_computed(where, "rope_type", kind)


# ------------------------------------------------------------------ the metadata of GGUF


def config_from_gguf(
    metadata: dict[str, Any], tensors: Tensors, where: str
) -> tuple[Family, DecoderConfig]:
    """The family and shape that a GGUF file describes. Raises PretrainedError.

    Whether there are biases, and whether the head is tied, is inferred from the tensors.
    """
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise PretrainedError(f"{where}: general.type={kind!r:.80}: name the file of a model")
    if not tensors:
        raise PretrainedError(f"{where} has no tensors, only a header: name the file of a model")
    if metadata.get("split.count", 1) not in (0, 1):
        raise PretrainedError(f"{where} is one of several parts: join them with llama-gguf-split")
    arch = metadata.get("general.architecture")
    family = family_of(arch, f"{where}: general.architecture")
    known = {*GGUF_FIELDS, *GGUF_ONLY, *GGUF_HEAD_SIZES, *GGUF_HARMLESS}
    given = {
        name.removeprefix(f"{arch}."): value
        for name, value in metadata.items()
        if name.startswith(f"{arch}.")
    }
    made: dict[str, Any] = dict(family.fixed)
    for name, value in given.items():
        full = f"{arch}.{name}"
        allowed = GGUF_ONLY.get(name)
        if name not in known or (allowed and not any(_same(value, one) for one in allowed)):
            raise _not_computed(where, full, value)
        ours = GGUF_FIELDS.get(name)
        if ours:
            made[ours] = _checked(where, full, _decimal(value), ours)
    for name in GGUF_NEEDED:
        if name not in given:
            raise PretrainedError(f"{where} has no {arch}.{name}: {AGAIN}")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise PretrainedError(f"{where} has no matrix token_embd.weight: {AGAIN}")
    made["vocab_size"] = embedding.shape[0]
    made["tied"] = "output.weight" not in tensors
    made["activation"] = Activation.GELU_TANH if family is GPT2 else Activation.SILU
    if family is not GPT2:
        optional = {ours for names in family.fields.values() for ours in names}
        for field in optional & GGUF_BIASES.keys():
            made[field] = any(name in tensors for name in GGUF_BIASES[field])
        if ROPE_FREQS in tensors:
            made["rope_scaling"] = _scaling_from(tensors, made, where)
    config = _decoder_config(made, where)
    for name in GGUF_HEAD_SIZES:
        if given.get(name, config.head_size) != config.head_size:
            raise _not_computed(where, f"{arch}.{name}", given[name])
    return family, config


def _decimal(value: Any) -> Any:
    """The decimal number intended by a file's float32: 1e-05, not 9.99999975e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _scaling_from(tensors: Tensors, made: dict[str, Any], where: str) -> RopeScaling:
    """Recover Llama 3's scaling from the divisors that llama.cpp stores, if they fit its formula.

    The file has the results, not the parameters of the formula. Only one of those, the factor,
    differs between the releases of Llama 3 (8 in 3.1, 32 in 3.2).
    """
    stored = tensors[ROPE_FREQS]
    head_size = made.get("head_dim") or made["n_embd"] // made["n_head"]
    refused = f"{where}: {ROPE_FREQS} is not Llama 3's scaling, the only supported one: {NOT_OURS}"
    if stored.shape != (head_size // 2,) or not stored.floating:
        raise PretrainedError(refused)
    divisors = stored.read().double()
    largest = float(divisors.max())
    if not 1.0 < largest < 1e6:
        raise PretrainedError(refused)
    scaling = RopeScaling(factor=float(str(np.float32(largest))))
    base = made.get("rope_base", 10_000.0)
    plain = rotation_speeds(head_size, base, None)
    expected = plain / rotation_speeds(head_size, base, scaling)
    if not torch.allclose(divisors, expected, rtol=1e-4, atol=0.0):
        raise PretrainedError(refused)
    return scaling


# ------------------------------------------------------------------ nanoGPT


NANOGPT_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")


def config_from_nanogpt(arguments: Any, where: str) -> DecoderConfig:
    """The shape described by the `model_args` of nanoGPT's ckpt.pt. Raises PretrainedError.

    Source: GPTConfig in model.py of https://github.com/karpathy/nanoGPT. Its `bias` applies to
    every linear layer and norm except the head.
    """
    if not isinstance(arguments, dict):
        raise PretrainedError(
            f"{where} has no model_args, unlike nanoGPT's ckpt.pt: pass that file"
        )
    for name, value in arguments.items():
        if name not in (*NANOGPT_SIZES, "bias", "dropout"):
            raise _not_computed(where, str(name), value)
    for name in NANOGPT_SIZES:
        if name not in arguments:
            raise PretrainedError(f"{where}: model_args has no {name}: {AGAIN}")
    made: dict[str, Any] = {
        name: _checked(where, name, arguments[name], name) for name in NANOGPT_SIZES
    }
    bias = _checked(where, "bias", arguments.get("bias", True), "qkv_bias")
    made |= dict.fromkeys(("norm_bias", "qkv_bias", "proj_bias", "ffn_bias"), bias)
    made |= {"activation": Activation.GELU, "head_bias": False, "tied": True}
    return _decoder_config(made, where)
