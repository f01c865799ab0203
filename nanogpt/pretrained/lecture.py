"""The weights of Karpathy's own class, GPTLanguageModel in gpt.py of ng-video-lecture: in and out.

Its heads are separate, and its matrices have the names of the lecture.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from ..decoder.config import DecoderConfig, beyond_lecture, decoder_config
from ..decoder.pack import pack_state
from ..decoder.standard import check_standard
from ..model import GPT, LanguageModel
from .families import Names
from .needs import PretrainedError
from .parameters import layout, to_file
from .stored import AGAIN, Tensors

LECTURE_TABLES = ("token_embedding_table", "position_embedding_table")
_HEAD = re.compile(r"blocks\.(\d+)\.sa\.heads\.(\d+)\.key\.weight")


def lecture_names(n_head: int) -> Names:
    """The lecture's names: each head has its own query, key and value."""
    heads = [
        f"blocks.{{i}}.sa.heads.{h}.{part}"
        for part in ("query", "key", "value")
        for h in range(n_head)
    ]
    modules = {
        **{name: (name,) for name in (*LECTURE_TABLES, "ln_f", "lm_head")},
        **{f"blocks.{{i}}.{name}": (f"blocks.{{i}}.{name}",) for name in ("ln1", "ln2", "sa.proj")},
        "blocks.{i}.sa.qkv": tuple(heads),
        "blocks.{i}.ffwd.up": ("blocks.{i}.ffwd.net.0",),
        "blocks.{i}.ffwd.down": ("blocks.{i}.ffwd.net.2",),
    }
    return Names(modules, ignored=(".tril",))


def lecture_state_dict(model: LanguageModel) -> dict[str, Tensor]:
    """A state_dict that Karpathy's own class loads unchanged: separate heads, with `tril` buffers.

    Raises ValueError for an architecture that is not his.
    """
    extras = beyond_lecture(model.config)
    if extras:
        given = ", ".join(f"{name}={value}" for name, value in extras.items())
        raise ValueError(f"the lecture's class has no {given}: it cannot load this model's weights")
    check_standard(model)
    c = decoder_config(model.config)
    state: dict[str, Tensor] = {name: w.detach() for name, w in model.state_dict().items()}
    if isinstance(model, GPT):
        state = pack_state(state, c)
    names = lecture_names(c.n_head)
    found: dict[str, Tensor] = {}
    for part in layout(c):
        found |= to_file(part, state[part.path], names, c)
    for layer in range(c.n_layer):
        for h in range(c.n_head):
            found[f"blocks.{layer}.sa.heads.{h}.tril"] = torch.ones(
                c.block_size, c.block_size
            ).tril()
    return found


def is_lecture(state: dict[Any, Any]) -> bool:
    """Whether these are the names of a lecture model."""
    names = {f"{name}.weight" for name in LECTURE_TABLES} | {"blocks.0.sa.heads.0.key.weight"}
    return names <= state.keys()


def config_of_lecture(tensors: Tensors, where: str) -> DecoderConfig:
    """The shape of a lecture model, which its tensors show. Raises PretrainedError."""
    tokens, positions = (tensors[f"{name}.weight"].shape for name in LECTURE_TABLES)
    if len(tokens) != 2 or len(positions) != 2:
        raise PretrainedError(f"{where}: the tables are not matrices: {AGAIN}")
    # Counted, not read from the names: a hostile file may call one head the billionth.
    heads = [found for found in map(_HEAD.fullmatch, tensors) if found]
    try:
        return DecoderConfig(
            vocab_size=tokens[0],
            block_size=positions[0],
            n_layer=len({found[1] for found in heads}),
            n_head=len({found[2] for found in heads}),
            n_embd=tokens[1],
        )
    except ValueError as error:
        raise PretrainedError(f"{where} does not describe a lecture model: {error}") from error
