"""A config.json and a DecoderConfig: one from the other, by the rows of a family.

A field that would change the arithmetic is refused by name; one that nobody here knows is ignored
with a warning.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any

from ..config import LARGEST_INT, check_int, check_number, check_positive, check_switch
from ..decoder.config import ROPE_BASE, DecoderConfig, RopeScaling
from .families import ACTIVATIONS, FAMILIES, Family
from .known_fields import ARITHMETIC, HARMLESS
from .needs import PretrainedError, shown, shown_value
from .stored import AGAIN

NOT_OURS = "only transformers or llama.cpp can run this model"
LARGEST_SIZE = 2**31 - 1
SWITCHES = frozenset(["tied", "qkv_bias", "proj_bias", "ffn_bias"])
OPTIONAL = frozenset(["n_kv_head", "head_dim", "ffn_dim", "logit_softcap"])  # may be None
_LISTED = 5  # unknown fields named in a warning
# The parts of a config.json with rotary positions: in transformers until 4, and since 5.
ROPE = ("rope_scaling", "rope_parameters")
# The fields of Llama 3's scaling, in the order of RopeScaling's.
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def family_of(name: Any, where: str) -> Family:
    """Look up a family by name. Raises PretrainedError for one that is not supported."""
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise PretrainedError(f"{where}={shown_value(name)}: the supported families are {known}")
    return FAMILIES[name]


# ------------------------------------------------------------------ from a config.json


def config_from_hf(fields: dict[str, Any], where: str) -> tuple[Family, DecoderConfig]:
    """The family and shape described by the fields of a config.json. Raises PretrainedError.

    Warns of fields that are unknown to this package, once for all of them.
    """
    family = family_of(fields.get("model_type"), f"{where}: model_type")
    # 1. Every field is one of the family's, neutral, harmless, or unknown.
    warn_of_unknown(_unknown(fields, family, where), where)
    # 2. What the family's models share, then what its rows say of the fields.
    made = dict(family.fixed)
    for name, ours in family.fields.items():
        if name not in fields and name not in family.defaults:
            raise PretrainedError(f"{where} has no {name}, which its family needs: {AGAIN}")
        value = checked(where, name, fields.get(name, family.defaults.get(name)), ours[0])
        made |= dict.fromkeys(ours, value)
    # 3. Rotary positions.
    if family.rotary:
        made |= _rope_fields(fields, where, made["block_size"])
    return family, decoder_config_of(made, where)


def _unknown(fields: dict[str, Any], family: Family, where: str) -> dict[str, Any]:
    """The fields that no table knows. Raises PretrainedError for one that changes arithmetic."""
    neutral = {name: values for name, (_, values) in ARITHMETIC.items()} | family.only
    own = {*family.fields, *family.harmless, *family.written}
    if family.rotary:
        own |= {"rope_theta", *ROPE}
    unknown = {}
    for name, value in fields.items():
        if name in own or name in HARMLESS:
            continue
        if name == "layer_types":
            listed = value if isinstance(value, list) else [value]
            if value is not None and any(one != "full_attention" for one in listed):
                raise not_computed(where, name, value)
        elif name in ("rope_theta", *ROPE):
            if value not in (None, {}):
                raise not_computed(where, name, value)  # this family has no rotary positions
        elif name not in neutral:
            unknown[name] = value
        elif not any(same(value, one) for one in neutral[name]):
            raise not_computed(where, name, value)
    return unknown


def warn_of_unknown(unknown: dict[str, Any], where: str) -> None:
    """Warn of fields that are ignored, if there are any: one warning for all of them."""
    if unknown:
        named = ", ".join(shown(name) for name in list(unknown)[:_LISTED])
        more = f" and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
        warnings.warn(
            f"{where}: {named:.150}{more}: unknown to this package and ignored; if it changes the "
            f"arithmetic, the model's texts are not its own",
            stacklevel=2,
        )


def same(value: Any, other: Any) -> bool:
    """Whether two values of a config are equal; 1 and True are not."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def not_computed(where: str, name: str, value: Any) -> PretrainedError:
    """The error for a field that changes the arithmetic in a way that a Decoder does not have."""
    return PretrainedError(
        f"{where}: {shown(name)}={shown_value(value)} is not supported: {NOT_OURS}"
    )


def checked(where: str, name: str, value: Any, ours: str) -> Any:
    """Check a field's value for the DecoderConfig. Raises PretrainedError, naming the field."""
    if value is None and ours in OPTIONAL:
        return value
    if ours == "activation":
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise not_computed(where, name, value)
        return ACTIVATIONS[value]
    if not is_number(value):  # the checks below would show all of it
        kind = "true or false" if ours in SWITCHES else "a number of at most 64 bits"
        raise PretrainedError(f"{where}: {shown(name)}={shown_value(value)}: must be {kind}")
    try:
        if ours in SWITCHES:
            check_switch(name, value)
        elif ours == "logit_softcap":
            check_positive(name, value)
            return float(value)
        elif ours in ("norm_eps", "rope_base"):
            check_number(name, value, 0 if ours == "norm_eps" else 1)
            return float(value)
        else:
            check_int(name, value, 1, LARGEST_SIZE)
    except ValueError as error:
        raise PretrainedError(f"{where}: {error}") from None
    return value


def is_number(value: Any) -> bool:
    """Whether this is a number or a switch that torch and C++ can hold."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST_INT)


def decoder_config_of(made: dict[str, Any], where: str) -> DecoderConfig:
    """The DecoderConfig with these fields. Raises PretrainedError."""
    try:
        return DecoderConfig(**made)
    except (TypeError, ValueError) as error:
        raise PretrainedError(f"{where} does not describe a decoder: {error}") from error


# ------------------------------------------------------------------ rotary positions


def _rope_fields(fields: dict[str, Any], where: str, context: int) -> dict[str, Any]:
    """The base and scaling of rotary positions, from the fields of transformers 4 or 5.

    If a file has both fields, programs differ in which one they read. So both must say the same.
    """
    given: dict[str, dict[str, Any]] = {}
    for name in ROPE:
        part = fields.get(name) or {}
        if not isinstance(part, dict):
            raise not_computed(where, name, part)
        if part:
            given[name] = part
    found = [_rope_of(name, part, fields, where, context) for name, part in given.items()]
    if not found:
        return _rope_of("rope_parameters", {}, fields, where, context)
    if found[0] != found[-1]:
        raise PretrainedError(
            f"{where}: rope_scaling={shown_value(given['rope_scaling'])} and rope_parameters="
            f"{shown_value(given['rope_parameters'])} disagree: remove the wrong one"
        )
    return found[0]


def _rope_of(
    part_name: str, part: dict[str, Any], fields: dict[str, Any], where: str, context: int
) -> dict[str, Any]:
    """The base and scaling according to one of the two fields, and a rope_theta beside it."""
    given = dict(part)
    # 1. The base, which may stand in two places.
    base = checked(where, "rope_theta", fields.get("rope_theta", ROPE_BASE), "rope_base")
    inner = checked(where, "rope_theta", given.pop("rope_theta", base), "rope_base")
    if "rope_theta" in fields and inner != base:
        raise PretrainedError(f"{where}: rope_theta is {base:g} and, in {part_name}, {inner:g}")
    # 2. The kind of scaling, under its older or newer name.
    older = given.pop("type", None)
    kind = given.pop("rope_type", older)
    if older is not None and older != kind:
        raise PretrainedError(
            f"{where}: {part_name} has type={shown_value(older)} and rope_type="
            f"{shown_value(kind)}: remove the wrong one"
        )
    share = given.pop("partial_rotary_factor", None)
    if share is not None and not same(share, 1.0):
        raise not_computed(where, "partial_rotary_factor", share)
    # 3. Its parameters. Positions that are divided by 1 are as they were.
    if kind in (None, "default", "linear") and same(given.get("factor"), 1.0):
        del given["factor"]
        kind = None
    if kind == "llama3":
        return {"rope_base": inner, "rope_scaling": _llama3(given, part_name, where, context)}
    if kind not in (None, "default"):
        raise not_computed(where, "rope_type", kind)
    if given:
        name = min(given, key=str)
        raise not_computed(where, f"{part_name}'s {name}", given[name])
    return {"rope_base": inner}


def _llama3(given: dict[str, Any], part_name: str, where: str, context: int) -> RopeScaling:
    """Llama 3's scaling from its parameters. Raises PretrainedError."""
    given = {"original_max_position_embeddings": context, **given}
    unknown = sorted(given.keys() - {*LLAMA3})
    lost = [name for name in LLAMA3 if name not in given]
    if unknown:
        raise not_computed(where, f"{part_name}'s {unknown[0]}", given[unknown[0]])
    if lost:
        raise PretrainedError(f"{where}: rope_type='llama3' without {lost[0]}: {AGAIN}")
    original = given[LLAMA3[3]]
    if isinstance(original, float) and original.is_integer():
        given[LLAMA3[3]] = int(original)
    elif type(original) is not int:
        value = shown_value(original)
        raise PretrainedError(f"{where}: {part_name}: {LLAMA3[3]}={value}: must be an integer")
    for name in LLAMA3:
        if not is_number(given[name]):
            value = shown_value(given[name])
            raise PretrainedError(f"{where}: {part_name}: {name}={value}: must be a number")
    try:
        return RopeScaling(*(given[name] for name in LLAMA3))
    except (TypeError, ValueError) as error:
        raise PretrainedError(f"{where}: {part_name}: {error}") from error


# ------------------------------------------------------------------ to a config.json


def fields_of(c: DecoderConfig, family: Family) -> dict[str, Any]:
    """The config.json of that family that comes closest to a shape: `config_from_hf` in reverse."""
    numbers = {"n_kv_head": c.kv_heads, "head_dim": c.head_size, "ffn_dim": c.hidden}
    names = {activation: name for name, activation in reversed(ACTIVATIONS.items())}
    values = asdict(c) | numbers | {"activation": names[c.activation]}
    fields = {name: values[ours[0]] for name, ours in family.fields.items()}
    fields |= {"model_type": family.model_type, **family.written}
    if not family.rotary:
        return fields
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": c.rope_base}
    if c.rope_scaling is not None:
        scaling = zip(LLAMA3, asdict(c.rope_scaling).values(), strict=True)
        rope |= {"rope_type": "llama3", **dict(scaling)}
    return fields | {"rope_parameters": rope}
