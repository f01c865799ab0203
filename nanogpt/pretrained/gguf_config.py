"""The metadata of a GGUF file as a DecoderConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..decoder.config import ROPE_BASE, DecoderConfig, Norm, RopeScaling
from ..decoder.layers import rotation_speeds
from .configs import (
    NOT_OURS,
    checked,
    decoder_config_of,
    family_of,
    not_computed,
    same,
    warn_of_unknown,
)
from .families import ROPE_FREQS, Names
from .gguf_file import SPLIT_NAME, how_to_join
from .known_fields import (
    GGUF_BIASES,
    GGUF_FIELDS,
    GGUF_HARMLESS,
    GGUF_HEAD_SIZES,
    GGUF_NEEDED,
    GGUF_ONLY,
    LAYER_EPS,
    RMS_EPS,
)
from .needs import PretrainedError, shown_value
from .stored import AGAIN, Tensors


def config_from_gguf(
    metadata: dict[str, Any], tensors: Tensors, path: Path
) -> tuple[Names, DecoderConfig]:
    """The names and shape that a GGUF file describes. Raises PretrainedError.

    Whether there are biases, and whether the head is tied, is inferred from the tensors. Warns of
    keys that are unknown to this package and to the gguf package.
    """
    where = str(path)
    # 1. A whole model, not a part of one and not something beside one.
    check_whole(metadata, path)
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise PretrainedError(f"{where}: general.type={shown_value(kind)}: name a model's file")
    if not tensors:
        raise PretrainedError(f"{where} has no tensors, only a header: name the file of a model")
    arch = metadata.get("general.architecture")
    family = family_of(arch, f"{where}: general.architecture")
    names = family.gguf_names
    if names is None:
        raise not_computed(where, "general.architecture", arch)
    # 2. The keys of its architecture.
    given = {
        name.removeprefix(f"{arch}."): value
        for name, value in metadata.items()
        if name.startswith(f"{arch}.")
    }
    # Converters may write the epsilon of both norms; an architecture has one of them.
    rms = family.fixed["norm"] is Norm.RMS
    eps, other_eps = (RMS_EPS, LAYER_EPS) if rms else (LAYER_EPS, RMS_EPS)
    given.pop(other_eps, None)
    for name in (*GGUF_NEEDED, eps):
        if name not in given:
            raise PretrainedError(f"{where} has no {arch}.{name}: {AGAIN}")
    made: dict[str, Any] = dict(family.fixed)
    unknown = _unknown(given, eps, where, str(arch))
    warn_of_unknown({f"{arch}.{name}": given[name] for name in unknown}, where)
    for name, ours in {**GGUF_FIELDS, eps: "norm_eps"}.items():
        if name in given:
            made[ours] = checked(where, f"{arch}.{name}", _decimal(given[name]), ours)
    # 3. What the tensors show.
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise PretrainedError(f"{where} has no matrix token_embd.weight: {AGAIN}")
    made["vocab_size"] = embedding.shape[0]
    made["tied"] = "output.weight" not in tensors
    made["activation"] = family.usual_activation
    if family.rotary:
        optional = {ours for names in family.fields.values() for ours in names}
        for field in optional & GGUF_BIASES.keys():
            made[field] = any(name in tensors for name in GGUF_BIASES[field])
        if ROPE_FREQS in tensors:
            made["rope_scaling"] = _scaling_from(tensors, made, where)
    config = decoder_config_of(made, where)
    for name in GGUF_HEAD_SIZES:
        if given.get(name, config.head_size) != config.head_size:
            raise not_computed(where, f"{arch}.{name}", given[name])
    return names, config


def check_whole(metadata: dict[str, Any], path: Path) -> None:
    """Raise PretrainedError for one part of a split model, with the command that joins them."""
    named = SPLIT_NAME.search(path.name)
    count = metadata.get("split.count", int(named[2]) if named else 1)
    if count in (0, 1):  # llama-gguf-split writes 0 into the file that it has joined
        return
    raise PretrainedError(
        f"{path} is one of the {shown_value(count)} parts of a split model: put all of them into "
        f"one folder, {how_to_join(path.name)}"
    )


def _unknown(given: dict[str, Any], eps: str, where: str, arch: str) -> list[str]:
    """The keys that nobody here knows. Raises PretrainedError for one that changes arithmetic."""
    known = {*GGUF_FIELDS, *GGUF_HEAD_SIZES, *GGUF_HARMLESS, eps}
    theirs = _keys_of_llama_cpp()
    unknown = []
    for name, value in given.items():
        allowed = GGUF_ONLY.get(name)
        if name in known:
            continue
        if allowed is None and name not in theirs:
            unknown.append(name)
        elif allowed is None or not any(same(value, one) for one in allowed):
            raise not_computed(where, f"{arch}.{name}", value)
    return unknown


def _keys_of_llama_cpp() -> set[str]:
    """The keys of an architecture that the gguf package names, because llama.cpp reads them."""
    from gguf.constants import Keys

    groups = [group for group in vars(Keys).values() if isinstance(group, type)]
    keys = [value for group in groups for value in vars(group).values() if isinstance(value, str)]
    return {key.removeprefix("{arch}.") for key in keys if key.startswith("{arch}.")}


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
    base = made.get("rope_base", ROPE_BASE)
    plain = rotation_speeds(head_size, base, None)
    expected = plain / rotation_speeds(head_size, base, scaling)
    if not torch.allclose(divisors, expected, rtol=1e-4, atol=0.0):
        raise PretrainedError(refused)
    return scaling
