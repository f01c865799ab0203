"""Notebook 02, blank 2: KVCache.update, which keeps all tokens so far and returns them."""

import torch
import torch.nn as nn
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..drivers import Arguments, form, numbers
from ..page import Blank, Case


class KVCache:
    """The keys, values and positions of all tokens so far; None before the first."""

    def __init__(self, capacity=None):
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
        """Keep the new ones, return all.  (B, T, hs) twice, (T,) -> (B, S, hs) twice, (S,)"""
        if self.k is not None:
            k = torch.cat([self.k, k], dim=1)
            v = torch.cat([self.v, v], dim=1)
            pos = torch.cat([self.pos, pos])
        self.k = k
        self.v = v
        self.pos = pos
        return k, v, pos


# ------------------------------------------------------------------ what a check runs


def run(answer, pieces, B=2, hs=3, start=0, capacity=None, dtype=torch.float64):
    """Fill two caches in turn, piece by piece: they must not share anything."""
    module = isinstance(answer, type) and issubclass(answer, nn.Module)
    yield "a cache is a plain class, not an nn.Module", module
    caches = [answer(capacity) if capacity else answer() for _ in range(2)]
    yield "the class has no method `update`", not hasattr(caches[0], "update")
    with Unwritten():
        for pos in torch.arange(start, start + sum(pieces)).split(pieces):
            for number, cache in enumerate(caches):
                after = f"after {int(pos[-1]) + 1 - start} tokens" + " in a second cache" * number
                given = new_tokens(pos, B, hs, dtype, seed=9000 * number)
                yield from update(cache, given, after)


def update(cache, given, after):
    """Yield what an update returns, its shapes before its numbers, and return it."""
    held = by_position(cache.update(*given.tensors.values()))
    yield from given.changes()
    yield f"what update returns {after}", kinds(held)
    yield f"the number of tokens returned {after}", lengths(held)
    for name, part in zip(("keys", "values", "positions"), held, strict=True):
        yield f"the shape of the {name} {after}", form(part)
    for name, part in zip(("keys", "values"), held[:2], strict=True):
        yield (
            f"an empty slot of the {name} {after} holds something",
            bool(part[:, held[2] < 0].any()),
        )
    for name, part in zip(("positions", "values", "keys"), held[::-1], strict=True):
        yield f"the {name} {after}", part
    return held


def by_position(held):
    """What update returned, with ascending positions: a head reads any order. Else what it is."""
    if kinds(held) != "three tensors":
        return held
    k, v, pos = held
    if pos.ndim != 1 or any(part.ndim != 3 or part.shape[1] != len(pos) for part in (k, v)):
        return held
    order = pos.argsort(stable=True)
    return k[:, order], v[:, order], pos[order]


def lengths(held):
    """The number of tokens, or of keys, values and positions if these are not equal."""
    k, v, pos = held
    counts = [part.shape[1] if part.ndim == 3 else len(part) for part in (k, v)] + [pos.numel()]
    if len(set(counts)) == 1:
        return str(counts[0])
    return "keys: {}, values: {}, positions: {}".format(*counts)


def run_past(answer, capacity):
    """One token more than the capacity: all tokens are returned, or an error is raised."""
    cache = answer(capacity)
    cache.update(*new_tokens(torch.arange(capacity)).tensors.values())
    try:
        held = cache.update(*new_tokens(torch.tensor([capacity])).tensors.values())
        lost = sorted(held[2][held[2] >= 0].tolist()) != [*range(capacity + 1)]
    except Exception:
        lost = False
    yield "one token past its capacity the cache silently loses a token", lost


def new_tokens(pos, B=1, hs=3, dtype=torch.float64, seed=0):
    """Keys, values and positions of new tokens; no two numbers are equal."""
    seed += 2 * int(pos[0])
    k = numbers(B, len(pos), hs, seed=seed, dtype=dtype)
    v = numbers(B, len(pos), hs, seed=seed + 1, dtype=dtype)
    return Arguments(k=k, v=v, pos=pos.clone())


def kinds(held):
    """What was returned, in words."""
    if not isinstance(held, (tuple, list)):
        return f"a {type(held).__name__}"
    if len(held) == 3 and all(isinstance(part, Tensor) for part in held):
        return "three tensors"
    return f"({', '.join(type(part).__name__ for part in held)})"


class Unwritten(TorchFunctionMode):
    """In its with-block, uninitialised memory holds 7 instead of leftovers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        return out.fill_(7) if name in ("empty", "empty_like", "new_empty") else out


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="02.2",
    minutes=8,
    solution=KVCache,
    method="update",
    cases=[
        Case(run, pieces=[1, 1, 1], dtype=torch.float32),
        Case(run, pieces=[2, 2, 1]),
        Case(run, pieces=[3, 1, 2], B=3, start=5, hs=4, capacity=11),
        Case(run, pieces=[3, 3], B=1, dtype=torch.bfloat16),
        Case(run_past, capacity=5),
        Case(run, pieces=[7, *[1] * 120, 40, 900], hs=2),
    ],
    mistakes={
        "joined along the batch: the tokens are dimension 1.": ["dim=1 -> dim=0"],
        "only one position is kept of a piece of several tokens: append all of pos.": [
            "[self.pos, pos] -> [self.pos, pos[-1:]]"
        ],
        "keys and values are swapped: the order is k, v, pos.": ["return k, v -> return v, k"],
        "a second cache goes on with the first one's tokens: keep them in self, not in the class or "
        "in a default argument.": [
            "self.k = self.v = self.pos = None -> pass",
            "self. -> KVCache.",
            "Cache: -> Cache:\n    k = v = pos = None",
        ],
    },
    wrong=[
        "return k -> k = k[:, -64:]\n        return k",
        "if self.k -> k *= 0.5\n        if self.k",
        "update -> append",
        "Cache: -> Cache(nn.Module):",
        "is not None: -> :",
    ],
    right=[
        """
class KVCache:
    def __init__(self, capacity=None):
        self.held = []

    def update(self, k, v, pos):
        self.held.append((k, v, pos))
        k, v, pos = zip(*self.held)
        return [torch.cat(k, 1), torch.cat(v, 1), torch.cat(pos)]
""",
        """
class KVCache:
    def __init__(self, capacity=None):
        self.used = self.room = 0

    def update(self, k, v, pos):
        end = self.used + len(pos)
        if end > self.room:  # twice as much, so that few tokens are copied
            self.room = 2 * end
            rooms = [x.new_zeros(len(x), self.room, x.shape[2]) for x in (k, v)]
            rooms.append(pos.new_zeros(self.room))
            if self.used:
                rooms[0][:, : self.used] = self.rooms[0][:, : self.used]
                rooms[1][:, : self.used] = self.rooms[1][:, : self.used]
                rooms[2][: self.used] = self.rooms[2][: self.used]
            self.rooms = rooms
        keys, values, places = self.rooms
        keys[:, self.used : end], values[:, self.used : end], places[self.used : end] = k, v, pos
        self.used = end
        return keys[:, :end], values[:, :end], places[:end]
""",
        """
class KVCache:
    def __init__(self, capacity=None):
        self.all = None

    def update(self, *new):
        old = self.all or [x[:, :0] if x.ndim == 3 else x[:0] for x in new]
        self.all = [torch.cat([b, a], -2 if b.ndim == 3 else 0) for a, b in zip(old, new)]
        return self.all
""",
    ],
    hints=(
        "After the second call, whose keys must `update` return: this call's, or all of them so "
        "far? Where do the earlier ones come from?",
        "`torch.cat([old, new], dim=1)` joins along the tokens. Keep the result in `self.k`, so "
        "that the next call can add to it. Positions have only one dimension, dim=0.",
        "if self.k is not None: k = torch.cat([self.k, k], dim=1), v likewise, pos along dim=0; "
        "then keep and return all three",
    ),
    advice={
        "no method `update`": "A head calls cache.update(k, v, pos).",
        "what update returns": "It must return three tensors: keys, values, positions.",
        "the number of tokens": "Return all tokens so far, once each: the cache forgets some, or "
        "holds some twice.",
        "the shape of the": "All texts and all tokens: (B, S, hs), joined along dimension 1.",
        "in a second cache": "Each cache needs its own tensors.",
        "the positions": "Keep the ones passed in.",
        "the values": "Return the values unchanged and in order.",
        "silently loses": "It must not forget one: keep all, or raise an error.",
    },
    axes=[("text", "token", "number"), ("token",)],
)
