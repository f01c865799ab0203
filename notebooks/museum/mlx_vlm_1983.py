"""https://github.com/Blaizzy/mlx-vlm/issues/1983 (positions)

Positions start at 0 in every call, whatever the cache holds: each decoded token is at position 0.
The prefill is correct. Notebook 04's third trap.
"""

import torch
from parts import small
from torch import nn


class Restarted(nn.Embedding):
    def forward(self, pos):
        return super().forward(torch.arange(pos.shape[-1]))


def model(seed, bug):
    ours = small(seed)
    if bug:
        table = ours.model.position_embedding_table
        ours.model.position_embedding_table = Restarted.from_pretrained(table.weight)
    return ours
