"""Export a pretrained Decoder in the format of its family, for Hugging Face's transformers.

The tables of nanogpt.pretrained.families, which turn a config.json and its tensors into a Decoder,
are used in reverse. A shape's family is found by trial: its config.json, read back, must give the
same shape.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ..data import CharTokenizer
from ..decoder.config import BIASES, DecoderConfig, beyond_lecture
from ..decoder.model import Decoder
from ..decoder.standard import check_standard
from ..files import atomic_path, check_replaceable, real_path, write_json, write_whole
from ..pretrained.configs import LLAMA3, config_from_hf
from ..pretrained.families import ACTIVATIONS, FAMILIES, GPT2, Family, Part, layout
from ..pretrained.needs import PretrainedError
from ..pretrained.tokenizer import PretrainedTokenizer
from .huggingface import EXPORT_FORMAT, EXPORT_MARK, EXPORT_WEIGHTS, Exported, ExportError
from .huggingface import tokenizer as character_tokenizer

CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}


def family_form(model: Decoder) -> Exported:
    """config.json and the tensors of a Decoder, in its dtype, for the family that fits it.

    A bias that the family requires and the model lacks, as with nanoGPT's bias=False, is zeros.
    Raises ExportError for a shape that fits no family, ValueError for changed modules.
    """
    check_standard(model)
    family, config, described = _family_of(model.config)
    state = model.state_dict()
    tensors: dict[str, Tensor] = {}
    for part in layout(described):
        tensor = state.get(part.path)
        if tensor is None:
            rows = sum(shape[0] for shape in part.shapes)
            tensor = torch.zeros(rows, dtype=model.dtype)
        tensors |= _as_stored(part, tensor.detach().cpu(), family)
    dtype = str(model.dtype).removeprefix("torch.")
    about: dict[str, Any] = {"architectures": [CLASSES[family.model_type]], "dtype": dtype}
    about |= dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"])
    return config | about, tensors


def _family_of(c: DecoderConfig) -> tuple[Family, dict[str, Any], DecoderConfig]:
    """The family of a shape, its config.json, and the shape described by that config.json.

    Raises ExportError.
    """
    c = replace(c, dropout=0.0)
    filled = []  # families with an additional bias, which may be zeros
    for family in FAMILIES.values():
        config = _fields(c, family)
        try:
            described = config_from_hf(config, "config.json")[1]
        except PretrainedError:
            continue
        if described == c:
            return family, config, described
        more: dict[str, Any] = {name: True for name in BIASES if getattr(described, name)}
        if described == replace(c, **more):
            filled.append((family, config, described))
    if filled:
        return filled[0]
    fields = ", ".join(f"{name}={value}" for name, value in beyond_lecture(c).items())
    raise ExportError(
        f"none of the families {', '.join(FAMILIES)} has this shape "
        f"({fields or 'the lecture, whose head has a bias'}): save it as a checkpoint"
    )


def _fields(c: DecoderConfig, family: Family) -> dict[str, Any]:
    """The config.json fields of that family that come closest to the shape."""
    numbers = {"n_kv_head": c.kv_heads, "head_dim": c.head_size, "ffn_dim": c.hidden}
    names = {activation: name for name, activation in reversed(ACTIVATIONS.items())}
    values = asdict(c) | numbers | {"activation": names[c.activation]}
    fields = {name: values[ours[0]] for name, ours in family.fields.items()}
    fields["model_type"] = family.model_type
    if family is GPT2:
        return fields
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": c.rope_base}
    if c.rope_scaling is not None:
        scaling = zip(LLAMA3, asdict(c.rope_scaling).values(), strict=True)
        rope |= {"rope_type": "llama3", **dict(scaling)}
    return fields | {"rope_parameters": rope}


def _as_stored(part: Part, tensor: Tensor, family: Family) -> dict[str, Tensor]:
    """One parameter of a Decoder, as the tensors in the family's files."""
    names = family.names
    modules = names.modules[part.module]
    pieces = [tensor]
    if len(modules) > 1:
        pieces = list(tensor.split([shape[0] for shape in part.shapes]))
    if names.transposed and part.matrix:
        pieces = [piece.t() for piece in pieces]
    return {
        f"{module.format(i=part.layer)}.{part.kind}": piece.contiguous()
        for module, piece in zip(modules, pieces, strict=True)
    }


# ------------------------------------------------------------------ the folder


def write_pretrained(
    model: Decoder, tokenizer: PretrainedTokenizer | CharTokenizer, folder: Path, source: str
) -> dict[str, Any]:
    """Write a folder that transformers and `load_pretrained` load, and return its config.json.

    The weights keep the model's dtype. `source` says where the model came from. Replaces an earlier
    export there, each file atomically. Raises ExportError for a shape that fits no family, and
    OSError.
    """
    config, tensors = family_form(model)
    folder = real_path(folder)
    others = _tokenizer_files(tokenizer, model.config.block_size)
    ids = list(tokenizer.stop) if isinstance(tokenizer, PretrainedTokenizer) else []
    config["eos_token_id"] = ids or None
    others["config.json"] = config
    for name in (EXPORT_MARK, EXPORT_WEIGHTS, *others):
        check_replaceable(folder / name)  # check all before writing the first
    write_json(folder / EXPORT_MARK, {"format": EXPORT_FORMAT, "source": source})
    with atomic_path(folder / EXPORT_WEIGHTS) as temporary:
        try:
            save_file(
                {name: tensor.clone() for name, tensor in tensors.items()},
                temporary,
                metadata={"format": "pt"},
            )
        except SafetensorError as error:  # not an OSError, even for a full disk
            raise OSError(f"{folder} could not be written ({error}): make room") from error
    for name, data in others.items():
        text = json.dumps(data, indent=2, ensure_ascii=False)
        write_whole(folder / name, f"{text}\n".encode())
    return config


def _tokenizer_files(
    tokenizer: PretrainedTokenizer | CharTokenizer, block_size: int
) -> dict[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json, with the chat template if any."""
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": block_size,
    }
    if isinstance(tokenizer, CharTokenizer):
        return {
            "tokenizer.json": character_tokenizer(tokenizer.chars),
            "tokenizer_config.json": about,
        }
    about |= tokenizer.specials
    if tokenizer.template is not None:
        about["chat_template"] = tokenizer.template
    return {
        "tokenizer.json": json.loads(tokenizer.tokenizer.to_str()),
        "tokenizer_config.json": about,
    }
