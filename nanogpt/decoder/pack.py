"""Convert the lecture's model to a `Decoder` and back, bit-identically; either as plain tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import GPTConfig
from ..model import GPT, LanguageModel
from .config import DecoderConfig, decoder_config, lecture_config
from .layout import all_parameters
from .model import Decoder
from .skeleton import class_of
from .standard import check_standard, modules_with_paths
from .step import Weights, from_names, rotations

# Parts of a block: the lecture's name and the decoder's name.
FEED_FORWARD = {"net.0": "up", "net.2": "down"}


def pack_heads(model: LanguageModel) -> Decoder:
    """Convert a lecture model to a Decoder: the same function, all heads of a layer in one matrix.

    Raises ValueError for a model that `not_standard` rejects.
    """
    check_standard(model)
    if not isinstance(model, GPT):
        raise ValueError("the model is packed already: it is a Decoder")
    packed = Decoder(decoder_config(model.config))
    state = {name: t.clone() for name, t in pack_state(model.state_dict(), model.config).items()}
    packed.load_state_dict(state, assign=True)
    return packed.train(model.training)


def unpack_heads(model: LanguageModel) -> GPT:
    """The exact inverse of pack_heads. Raises ValueError for a model beyond the lecture's."""
    check_standard(model)
    if not isinstance(model, Decoder):
        raise ValueError("the model is a list of heads already: it is a GPT")
    return lecture_with(model)


def lecture_with(model: Decoder) -> GPT:
    """A new lecture model with a Decoder's weights, without checking the Decoder's code."""
    config = lecture_config(model.config)
    lecture = GPT(config)
    state = {name: t.clone() for name, t in unpack_state(model.state_dict(), config).items()}
    lecture.load_state_dict(state, assign=True)
    return lecture.train(model.training)


def build_model(
    config: GPTConfig | DecoderConfig, generator: torch.Generator | None = None
) -> GPT | Decoder:
    """A new model with this config, initialised from the generator (seed 1337 if None)."""
    return class_of(config)(config, generator=generator)


def as_decoder(model: LanguageModel) -> Decoder:
    """The model itself if it is a Decoder, else the packed lecture model. Raises ValueError."""
    return model if isinstance(model, Decoder) else pack_heads(model)


# ------------------------------------------------------------------ named tensors


def pack_state(state: dict[str, Tensor], config: GPTConfig | DecoderConfig) -> dict[str, Tensor]:
    """A lecture model's state_dict under a Decoder's names; copies only the heads' matrices."""
    packed = {}
    for name, tensor in state.items():
        if ".sa.heads." not in name:
            packed[_renamed(name, FEED_FORWARD)] = tensor
    for layer in range(config.n_layer):
        heads = f"blocks.{layer}.sa.heads"
        names = [
            f"{heads}.{h}.{part}.weight"
            for part in ("query", "key", "value")
            for h in range(config.n_head)
        ]
        packed[f"blocks.{layer}.sa.qkv.weight"] = _joined([state[name] for name in names])
    return packed


def unpack_state(state: dict[str, Tensor], config: GPTConfig | DecoderConfig) -> dict[str, Tensor]:
    """A Decoder's state_dict under the lecture's names: the inverse of pack_state."""
    back = {theirs: ours for ours, theirs in FEED_FORWARD.items()}
    lecture = {}
    for name, tensor in state.items():
        if not name.endswith(".sa.qkv.weight"):
            lecture[_renamed(name, back)] = tensor
    for layer in range(config.n_layer):
        qkv = state[f"blocks.{layer}.sa.qkv.weight"]  # (3 C, C): queries, keys, values
        for part, rows in zip(("query", "key", "value"), qkv.chunk(3), strict=True):
            for h, weight in enumerate(rows.chunk(config.n_head)):
                lecture[f"blocks.{layer}.sa.heads.{h}.{part}.weight"] = weight.clone()
    return lecture


def _renamed(name: str, parts: dict[str, str]) -> str:
    """The name of a feed-forward tensor in the other model; other names are unchanged."""
    before, found, after = name.partition(".ffwd.")
    for ours, theirs in parts.items():
        if found and after.startswith(f"{ours}."):
            return before + found + theirs + after.removeprefix(ours)
    return name


def _joined(matrices: list[Tensor]) -> Tensor:
    """Concatenate matrices by rows. Raises ValueError for mixed dtypes, which cat would convert."""
    if len({matrix.dtype for matrix in matrices}) > 1:
        raise ValueError("the heads' weights have different dtypes: cast the whole model")
    return torch.cat(matrices)


# ------------------------------------------------------------------ plain tensors


@torch.no_grad()
def flatten(model: LanguageModel) -> Weights:
    """The model's own tensors, for `step`; separate heads are copied into one matrix.

    Only for a model made of the package's own modules: an engine checks `not_standard` first.
    """
    c = decoder_config(model.config)
    # 1. Its parameters under a Decoder's names. A tied head is named twice.
    state = {}
    for path, module in modules_with_paths(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                state[f"{path}.{name}"] = parameter.detach()
    if isinstance(model, GPT):
        state = pack_state(state, model.config)
    # 2. The same under the names of a step.
    named = {parameter.name: state[parameter.path] for parameter in all_parameters(c)}
    # 3. Rotary positions have no parameters: a step reads their sines and cosines from a table.
    if c.rotary:
        head = named["head_weight"]
        named["positions"] = rotations(c.block_size, c, head.dtype, head.device)
    return from_names(named, c.n_layer)
