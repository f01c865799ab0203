"""https://github.com/Blaizzy/mlx-vlm/issues/1983 (positions)

Positions are counted from 0 in every call, whatever the cache holds: each decoded token stands at
position 0. The prefill is right. Notebook 04's third trap.
"""

import torch
from parts import small

from nanogpt.model import GPT


class Restarted(GPT):
    def embed(self, idx, pos):
        return super().embed(idx, torch.arange(idx.shape[1]))


def model(seed, bug):
    return small(seed, gpt=Restarted if bug else GPT)
