"""Notebook 02, blank 6: StaticKVCache.update, which writes each token into the slot of its position."""

import torch
import torch.nn as nn
from torch import Tensor

from ..page import Blank, Case
from .kv_cache import Unwritten, new_tokens, run_past, update


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


# ------------------------------------------------------------------ what a check runs


def run_slots(answer, pieces, capacity, B=2, hs=3, start=0, dtype=torch.float64):
    """Fill two caches in turn, piece by piece, and watch whether their tensors stay the same."""
    module = isinstance(answer, type) and issubclass(answer, nn.Module)
    yield "a cache is a plain class, not an nn.Module", module
    caches = [answer(capacity) for _ in range(2)]
    yield "the class has no method `update`", not hasattr(caches[0], "update")
    places = [None, None]
    with Unwritten():
        for pos in torch.arange(start, start + sum(pieces)).split(pieces):
            for number, cache in enumerate(caches):
                after = f"up to position {int(pos[-1])}" + " in a second cache" * number
                given = new_tokens(pos, B, hs, dtype, seed=9000 * number)
                held = yield from update(cache, given, after)
                moved = places[number] not in (None, storages(cache, held))
                yield f"the update {after} makes new tensors", moved
                places[number] = storages(cache, held)


def run_again(answer):
    """A slot that is written twice."""
    cache = answer(4)
    with Unwritten():
        cache.update(*new_tokens(torch.arange(3)).tensors.values())
    held = cache.update(*new_tokens(torch.tensor([2]), seed=50).tensors.values())
    for name, part in zip(("keys", "values", "positions"), held, strict=True):
        yield f"the {name} after slot 2 is written a second time", part


def storages(cache, held):
    """The memory addresses of a cache's large tensors, or of those it returns."""
    tensors = [x for x in getattr(cache, "__dict__", {}).values() if isinstance(x, Tensor)]
    large = [x for x in tensors if x.ndim > 1] or held[:2]
    return sorted(x.untyped_storage().data_ptr() for x in large)


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="02.6",
    minutes=9,
    solution=StaticKVCache,
    method="update",
    cases=[
        Case(run_slots, pieces=[2, 1, 1], capacity=6, dtype=torch.float32),
        Case(run_slots, pieces=[2, 1, 2], capacity=9, B=3, hs=5, start=2),
        Case(run_slots, pieces=[1], capacity=1, B=1, dtype=torch.bfloat16),
        Case(run_past, capacity=5),
        Case(run_again),
        Case(run_slots, pieces=[7, *[1] * 60, 233], capacity=300),
    ],
    mistakes={
        "an empty slot has the position of a token: use -1 for empty slots.": [
            "pos.new_full((self.capacity,), -1) -> torch.arange(self.capacity)"
        ],
        "each update allocates new slots, so what was kept is gone: allocate once.": [
            "if self.k is None: -> if True:"
        ],
        "the positions are counted, or not stored: store the ones passed in, self.pos[pos] = pos.": (
            ["        self.pos[pos] = pos\n -> "],
            [
                "        self.k[:, pos] ->         pos = int((self.pos >= 0).sum()) + torch.arange(len(pos))\n"
                "        self.k[:, pos]",
            ],
        ),
        "a second cache goes on with the first one's slots: keep them in self, not in the class.": [
            "self.k = self.v = self.pos = None -> pass",
            "self.k, self.v, self.pos -> (self.k, self.v, self.pos)",
            "self.k = k.new -> StaticKVCache.k = k.new",
            "self.v = torch -> StaticKVCache.v = torch",
            "self.pos = pos.new -> StaticKVCache.pos = pos.new",
            "KVCache: -> KVCache:\n    k = v = pos = None\n",
        ],
    },
    wrong=[
        "[:, pos] -> [:, pos % 64]",
        "self.k[:, pos] = k -> self.k[:, pos] = k[:1]",
        "self.capacity = capacity -> self.capacity = max(8, capacity)",
        "update -> append",
        "self.k[:, pos] = k -> self.k[:, pos] += k",
    ],
    right=[
        """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.kv = None

    def update(self, k, v, pos):
        if self.kv is None:
            self.kv = k.new_zeros(2, k.shape[0], self.capacity, k.shape[2])
            self.pos = pos.new_full((self.capacity,), -1)
        self.kv[0, :, pos], self.kv[1, :, pos], self.pos[pos] = k, v, pos
        return self.kv[0].clone(), self.kv[1].clone(), self.pos.clone()
""",
        """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity = capacity

    def update(self, k, v, pos):
        if not hasattr(self, "k"):
            room = -(-self.capacity // 8) * 8
            self.k, self.v = (torch.zeros(len(k), room, k.shape[-1], dtype=k.dtype) for _ in range(2))
            self.pos = torch.full((room,), -1, dtype=torch.int64)
        if pos.max() >= self.capacity:
            raise IndexError(f"position {pos.max()} of {self.capacity}")
        self.k[:, pos], self.v[:, pos], self.pos[pos] = k, v, pos
        c = self.capacity
        return [self.k[:, :c], self.v[:, :c], self.pos[:c]]
""",
    ],
    hints=(
        "The token at position 7 arrives. Which slot does it belong in? And how can the mask tell that slot 8 is still empty?",
        "`k.new_zeros(B, self.capacity, hs)` has the dtype and the device of `k`. A tensor of positions is an index: `self.k[:, pos] = k`.",
        "self.k[:, pos] = k, self.v[:, pos] = v and self.pos[pos] = pos, where self.pos begins as pos.new_full((self.capacity,), -1)",
    ),
    advice={
        "what update returns": "It must return three tensors: keys, values, positions.",
        "the number of tokens": "Return all `capacity` slots, filled or not.",
        "the shape of": "Return all `capacity` slots, filled or not.",
        "makes new tensors": "Allocate once, then write into them.",
        "holds something": "Allocate zeros, and write where `pos` says.",
        "in a second cache": "Each cache needs its own tensors.",
        "the positions": "Each position is stored in the slot of the same index; empty slots hold -1.",
        "the keys": "The token at position n belongs in slot n; an empty slot holds 0.",
        "the values": "The token at position n belongs in slot n; an empty slot holds 0.",
    },
    axes=[("text", "token", "number"), ("token",)],
)
