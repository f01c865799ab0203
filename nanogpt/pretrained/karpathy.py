"""Karpathy's checkpoints, written by torch.save: which of his programs wrote one, and its shape.

| program | the file | its config |
|---|---|---|
| nanoGPT | ckpt.pt, a dictionary | `model_args` in it |
| build-nanogpt | log/model_19072.pt, a dictionary | `config` in it, an object of its GPTConfig |
| nanochat | model_021400.pt, a state_dict | `model_config` in meta_021400.json beside it |
| ng-video-lecture | a state_dict | none: the tensors show it |

A dictionary with a state_dict under `model_state_dict` or `state_dict` is read as the state_dict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..decoder.config import Activation, DecoderConfig
from .configs import checked, decoder_config_of, not_computed, same
from .families import NANOCHAT, NANOCHAT_OWN_NAMES, NANOGPT_NAMES, Names
from .lecture import config_of_lecture, is_lecture, lecture_names
from .needs import PretrainedError, shown, shown_value
from .pt_file import PickledConfig, contents_of_pt, tensors_of_state
from .stored import AGAIN, Tensors, read_json

_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
_STATES = ("model", "model_state_dict", "state_dict")  # nanoGPT, PyTorch's tutorial, Lightning
_NANOCHAT_QUERIES = "transformer.h.0.attn.c_q.weight"
_GPT2_QUERIES = "transformer.h.0.attn.c_attn.weight"
# The config of nanochat's first models, such as d32 of October 2025. Later ones mix earlier layers
# into each layer and have windows in some: they have more tensors and more fields.
_NANOCHAT_SIZES = {
    "vocab_size": "vocab_size",
    "sequence_len": "block_size",
    "n_layer": "n_layer",
    "n_head": "n_head",
    "n_kv_head": "n_kv_head",
    "n_embd": "n_embd",
}
_NANOCHAT_ONLY = {"window_pattern": ("L",)}
NANOCHAT_SOFTCAP = 15.0


class ForeignCheckpoint(NamedTuple):
    """The shape, names and tensors of one of these files."""

    config: DecoderConfig
    names: Names
    tensors: Tensors


def open_checkpoint(path: Path) -> ForeignCheckpoint:
    """Read the headers of one of Karpathy's checkpoints. Raises PretrainedError."""
    where = str(path)
    contents = contents_of_pt(path)
    state = next((contents[name] for name in _STATES if name in contents), contents)
    if not isinstance(state, dict):
        raise PretrainedError(
            f"{where} has no state_dict under 'model', only {shown_value(state)}: {AGAIN}"
        )
    named = state is not contents or any(isinstance(value, Tensor) for value in state.values())
    tensors = tensors_of_state(state, where) if named else {}
    # 1. By its config.
    if "model_args" in contents:
        config = config_from_nanogpt(contents["model_args"], where)
        return ForeignCheckpoint(config, NANOGPT_NAMES, tensors)
    if isinstance(contents.get("config"), PickledConfig) and _GPT2_QUERIES in tensors:
        config = config_from_build_nanogpt(vars(contents["config"]), where)
        return ForeignCheckpoint(config, NANOGPT_NAMES, tensors)
    # 2. By the names of its tensors.
    if is_lecture(tensors):
        config = config_of_lecture(tensors, where)
        return ForeignCheckpoint(config, lecture_names(config.n_head), tensors)
    if _NANOCHAT_QUERIES in tensors:
        return ForeignCheckpoint(_nanochat_config(path), NANOCHAT_OWN_NAMES, tensors)
    if _GPT2_QUERIES in tensors and not _is_transposed(tensors):
        raise PretrainedError(
            f"{where} has nanoGPT's tensors and no config: load it with torch, and "
            f"torch.save({{'model': state_dict, 'model_args': {{'n_layer': …, 'n_head': …, "
            f"'n_embd': …, 'block_size': …, 'vocab_size': …, 'bias': …}}}}, PATH)"
        )
    names = ", ".join(shown(str(name)) for name in list(state)[:3])
    raise PretrainedError(
        f"{where} has {names or 'nothing'}: neither a checkpoint of nanoGPT, build-nanogpt or "
        f"nanochat nor the lecture's state_dict; save a transformers model with save_pretrained, "
        f"and name its folder"
    )


def _is_transposed(tensors: Tensors) -> bool:
    """Whether matrices are (in, out), as in transformers' GPT-2: queries, keys and values widen."""
    shape = tensors[_GPT2_QUERIES].shape
    return len(shape) == 2 and shape[0] < shape[1]


def config_from_nanogpt(arguments: Any, where: str) -> DecoderConfig:
    """The shape described by the `model_args` of nanoGPT's ckpt.pt. Raises PretrainedError.

    Source: GPTConfig in model.py of https://github.com/karpathy/nanoGPT. Its `bias` applies to
    every linear layer and norm except the head. A checkpoint without it is of January 2023, when
    the activation was GPT-2's approximation of GELU; pull request 274 replaced that in June.
    """
    if not isinstance(arguments, dict):
        raise PretrainedError(f"{where} has no model_args, unlike nanoGPT's ckpt.pt: {AGAIN}")
    made = _sizes(arguments, {name: name for name in _SIZES}, ("bias", "dropout"), where)
    bias = checked(where, "bias", arguments.get("bias", True), "qkv_bias")
    made |= dict.fromkeys(("norm_bias", "qkv_bias", "proj_bias", "ffn_bias"), bias)
    activation = Activation.GELU if "bias" in arguments else Activation.GELU_TANH
    made |= {"activation": activation, "head_bias": False, "tied": True}
    return decoder_config_of(made, where)


def config_from_build_nanogpt(fields: dict[str, Any], where: str) -> DecoderConfig:
    """The shape described by the config of build-nanogpt's log/model_*.pt. Raises PretrainedError.

    Source: train_gpt2.py of https://github.com/karpathy/build-nanogpt. It is GPT-2.
    """
    made = _sizes(fields, {name: name for name in _SIZES}, (), where)
    made |= {"activation": Activation.GELU_TANH, "qkv_bias": True}
    made |= {"head_bias": False, "tied": True}
    return decoder_config_of(made, where)


def _nanochat_config(path: Path) -> DecoderConfig:
    """The shape in the file beside a nanochat model. Raises PretrainedError.

    Source: nanochat/gpt.py and checkpoint_manager.py of https://github.com/karpathy/nanochat.
    """
    beside = path.with_name(path.name.replace("model_", "meta_", 1)).with_suffix(".json")
    if not path.name.startswith("model_"):
        raise PretrainedError(
            f"{path} is nanochat's: give it back its name, such as model_021400.pt, and put the "
            f"meta_021400.json of the same step beside it"
        )
    if not beside.is_file():
        raise PretrainedError(
            f"{path} is nanochat's, and its config is in {beside.name}, which is not there: put "
            f"that file beside it"
        )
    where = str(beside)
    fields = read_json(beside).get("model_config")
    if not isinstance(fields, dict):
        raise PretrainedError(f"{where} has no model_config: {AGAIN}")
    for name, values in _NANOCHAT_ONLY.items():
        if name in fields and not any(same(fields[name], value) for value in values):
            raise not_computed(where, name, fields[name])
    made = _sizes(fields, _NANOCHAT_SIZES, tuple(_NANOCHAT_ONLY), where)
    made |= NANOCHAT.fixed | {"activation": Activation.RELU2, "norm_eps": None}
    return decoder_config_of(made | {"logit_softcap": NANOCHAT_SOFTCAP}, where)


def _sizes(
    fields: dict[Any, Any], ours: dict[str, str], others: tuple[str, ...], where: str
) -> dict[str, Any]:
    """The sizes in a config, by our names. Raises PretrainedError for one missing or unknown."""
    for name, value in fields.items():
        if name not in ours and name not in others:
            raise not_computed(where, str(name), value)
    for name in ours:
        if name not in fields:
            raise PretrainedError(f"{where}: its config has no {name}: {AGAIN}")
    return {mine: checked(where, name, fields[name], mine) for name, mine in ours.items()}
