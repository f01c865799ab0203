"""The weights as Karpathy's own class in gpt.py loads them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..decoder.pack import convert_state
from ..decoder.standard import check_standard
from ..model import GPT


def lecture_state_dict(model: GPT) -> dict[str, Tensor]:
    """A state_dict that Karpathy's own class loads unchanged: per-Head, with his `tril` buffers.

    Raises ValueError for an architecture that is not his.
    """
    extras = model.config.beyond_lecture
    if extras:
        raise ValueError(
            f"the lecture's class has no {', '.join(extras)}: it cannot load this model's weights"
        )
    check_standard(model)
    state = dict(model.state_dict())
    if not model.config.per_head:
        state = convert_state(state, model.config, per_head=True)
    T = model.config.block_size
    for layer in range(model.config.n_layer):
        for h in range(model.config.n_head):
            state[f"blocks.{layer}.sa.heads.{h}.tril"] = torch.ones(T, T).tril()
    return state
