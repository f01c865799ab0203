"""Export the weights for Karpathy's own class in gpt.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ..decoder.config import beyond_lecture
from ..decoder.model import Decoder
from ..decoder.pack import unpack_state
from ..decoder.standard import check_standard
from ..model import LanguageModel


def lecture_state_dict(model: LanguageModel) -> dict[str, Tensor]:
    """A state_dict that Karpathy's own class loads unchanged: separate heads, with `tril` buffers.

    Raises ValueError for an architecture that is not his.
    """
    extras = beyond_lecture(model.config)
    if extras:
        given = ", ".join(f"{name}={value}" for name, value in extras.items())
        raise ValueError(f"the lecture's class has no {given}: it cannot load this model's weights")
    check_standard(model)
    state = dict(model.state_dict())
    if isinstance(model, Decoder):
        state = unpack_state(state, model.config)
    T = model.config.block_size
    for layer in range(model.config.n_layer):
        for h in range(model.config.n_head):
            state[f"blocks.{layer}.sa.heads.{h}.tril"] = torch.ones(T, T).tril()
    return state
