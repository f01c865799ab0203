"""Notebook 02, blank 6: StaticKVCache."""

import torch

from ..page import Blank


class StaticKVCache:
    """Slots for positions 0 to capacity - 1, allocated at the first update; empty ones have position -1."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
        """Write the new ones, return all S slots.  (B, T, hs) twice, (T,) -> (B, S, hs) twice, (S,)"""
        if self.k is None:
            self.k = k.new_zeros(k.shape[0], self.capacity, k.shape[2])
            self.v = torch.zeros_like(self.k)
            self.pos = pos.new_full((self.capacity,), -1)
        self.k[:, pos] = k
        self.v[:, pos] = v
        self.pos[pos] = pos
        return self.k, self.v, self.pos


BLANK = Blank(
    number="02.6",
    solution=StaticKVCache,
    method="update",
    cases=[],
    mistakes={},
    hints=(
        "The token at position 7 arrives. Which slot does it belong in? And how can the mask tell that slot 8 is still empty?",
        "`k.new_zeros(B, self.capacity, hs)` has the dtype and the device of `k`. A tensor of positions is an index: `self.k[:, pos] = k`.",
        "self.k[:, pos] = k, self.v[:, pos] = v and self.pos[pos] = pos, where self.pos begins as pos.new_full((self.capacity,), -1)",
    ),
    advice={
        "not an nn.Module": "Inside a head it would become part of the model, and kv_cache(model) could not remove it.",
        "no method `update`": "A head calls cache.update(k, v, pos).",
        "what update returns": "It must return three tensors: keys, values, positions.",
        "the number of tokens": "Return all `capacity` slots, filled or not.",
        "the shape of": "Return all `capacity` slots, filled or not.",
        "makes new tensors": "Allocate once, then write into them.",
        "holds something": "Allocate zeros, and write where `pos` says.",
        "in a second cache": "Each cache needs its own tensors.",
        "the positions": "Each position is stored in the slot of the same index; empty slots hold -1.",
        "the keys": "The token at position n belongs in slot n; an empty slot holds 0.",
        "the values": "The token at position n belongs in slot n; an empty slot holds 0.",
        "silently loses": "It must not overwrite or drop a token: let it raise an error.",
    },
    axes=[("text", "token", "number"), ("token",)],
)
