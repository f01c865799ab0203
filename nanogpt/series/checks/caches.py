"""The checks of KVCache and StaticKVCache."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .exercise import Anew, Answer, Case, Exercise, Pairs
from .observing import Arguments, form, numbers

Held = list[Tensor]  # keys and values (B, S, hs), positions (S,)
NAMES = ("keys", "values", "positions")
AXES = [("text", "token", "number"), ("token",)]
SHARED = (
    "a second cache continues with what the first one holds: each needs its own tensors, made "
    "in __init__ or at the first update and kept in self, not in the class or in a default "
    "argument."
)
MIXED = "keys and values are mixed up: the order is k, v, pos, in the call and in the result."
ROOM = 2048  # more tokens than any case has
LONG = [7, *[1] * 120, 40]  # tokens in each piece


# ------------------------------------------------------------------ drivers


def run_cache(
    answer: Answer,
    pieces: list[int],
    B: int = 2,
    hs: int = 3,
    start: int = 0,
    capacity: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Pairs:
    """Two caches, filled alternately, piece by piece."""
    module = isinstance(answer, type) and issubclass(answer, nn.Module)
    yield "a cache is a plain class, not an nn.Module", module
    caches = [answer(capacity) if capacity else answer() for _ in range(2)]
    yield "the class has no method `update`", not hasattr(caches[0], "update")
    with Unwritten():
        for pos in torch.arange(start, start + sum(pieces)).split(pieces):
            for number, cache in enumerate(caches):
                after = f"after {int(pos[-1]) + 1 - start} tokens" + " in a second cache" * number
                given = new_tokens(pos, B, hs, dtype, seed=9000 * number)
                yield from run_update(cache, given, after)


def run_update(cache: Any, given: Arguments, after: str) -> Generator[tuple[str, Any], None, Held]:
    """Yield what an update returns, and return it."""
    held = cache.update(*given.tensors.values())
    yield from given.changes()
    yield f"what update returns {after}", kinds(held)
    yield f"the number of tokens returned {after}", form(held[2])
    for name, part in zip(NAMES, held, strict=True):
        yield f"the shape of the {name} {after}", form(part)
    for name, part in zip(NAMES, held[:2], strict=False):
        written = bool(part[:, held[2] < 0].any())
        yield f"an empty slot of the {name} {after} holds something", written
    for name, part in zip(NAMES[::-1], held[::-1], strict=True):
        yield f"the {name} {after}", part
    all_held: Held = [*held]
    return all_held


def run_past(answer: Answer, capacity: int) -> Pairs:
    """One token more than the capacity: all tokens are returned, or an error is raised."""
    cache = answer(capacity)
    cache.update(*new_tokens(torch.arange(capacity)).tensors.values())
    try:
        held = cache.update(*new_tokens(torch.tensor([capacity])).tensors.values())
        positions = sorted(held[2][held[2] >= 0].tolist())
        lost = positions != [*range(capacity + 1)]
    except Exception:
        lost = False
    yield "one token past its capacity the cache silently loses a token", lost


def new_tokens(
    pos: Tensor, B: int = 1, hs: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Arguments:
    """Keys, values and positions of new tokens; no two numbers are equal."""
    seed += 2 * int(pos[0])
    k = numbers(B, len(pos), hs, seed=seed, dtype=dtype)
    v = numbers(B, len(pos), hs, seed=seed + 1, dtype=dtype)
    return Arguments(k=k, v=v, pos=pos.clone())


def kinds(held: Any) -> str:
    """What was returned, in words."""
    if not isinstance(held, (tuple, list)):
        return f"a {type(held).__name__}"
    if len(held) == 3 and all(isinstance(part, Tensor) for part in held):
        return "three tensors"
    return f"({', '.join(type(part).__name__ for part in held)})"


class Unwritten(TorchFunctionMode):
    """In its with-block, uninitialised memory holds 7 instead of leftovers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        return out.fill_(7) if name in ("empty", "empty_like", "new_empty") else out


# ------------------------------------------------------------------ KVCache


def cat_all(
    old: Iterable[Tensor], new: Iterable[Tensor], order: int = 1, dims: Any = (1, 1, 0)
) -> Held:
    """Concatenate old and new keys, values and positions in this order along these dimensions."""
    return [torch.cat((a, b)[::order], dim) for a, b, dim in zip(old, new, dims, strict=True)]


class GrowingCache:
    """The reference solution. The steps that join and return tokens can be replaced.

    It records what it is given, for the drivers of heads and loops.
    """

    def __init__(
        self,
        capacity: int | None = None,
        join: Any = cat_all,
        give: Any = lambda held, new: held,
        given_back: Any = tuple,
    ) -> None:
        self.capacity = capacity
        self.join = join
        self.give = give
        self.given_back = given_back
        self.held: Any = None
        self.given: list[Any] = []

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        """Keep the new tokens and return all tokens so far."""
        self.given.append((k, v, pos))
        self.held = self.join(self.held, (k, v, pos)) if self.held else [k, v, pos]
        return self.given_back(self.give(self.held, (k, v, pos)))


def caches_that_share() -> Answer:
    """A class whose caches all hold the same tensors."""
    store: dict[str, Any] = {}

    class Shared(GrowingCache):
        def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
            self.held = store.get("held")
            result = super().update(k, v, pos)
            store["held"] = self.held
            return result

    return Shared


def caches_in_one_memory() -> Answer:
    """A class whose caches all write into the same memory."""
    memory: dict[str, Tensor] = {}

    class OneMemory:
        def __init__(self, capacity: int | None = None) -> None:
            self.pos = torch.tensor([], dtype=torch.int64)

        def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
            start = len(self.pos)
            self.pos = torch.cat([self.pos, pos])
            rooms = []
            for name, part in zip("kv", (k, v), strict=True):
                room = memory.setdefault(name, part.new_zeros(len(part), ROOM, part.shape[2]))
                room[:, start : len(self.pos)] = part
                rooms.append(room[:, : len(self.pos)])
            return *rooms, self.pos

    return OneMemory


def cache_by(**step: Any) -> Answer:
    """A growing cache with one step replaced."""
    return partial(GrowingCache, **step)


KV_CACHE = Exercise(
    notebook="02",
    hints=(
        "After the second call, whose keys must `update` return: this call's, or all of them so "
        "far? Where do the earlier ones come from?",
        "`torch.cat([old, new], dim=1)` joins along the tokens. Keep the result in `self.k`, so "
        "that the next call can add to it. Positions have only one dimension, dim=0.",
        "if self.k is not None: k = torch.cat([self.k, k], dim=1), v likewise, pos along dim=0; "
        "then keep and return all three",
    ),
    method="update",
    right=GrowingCache,
    cases=[
        Case(run_cache, pieces=[1, 1, 1], dtype=torch.float32),
        Case(run_cache, pieces=[2, 2, 1]),
        Case(run_cache, pieces=[3, 1, 2, 4], capacity=10, B=3),
        Case(run_cache, pieces=[3, 1, 2], start=5, hs=4),
        Case(run_cache, pieces=[3, 3], capacity=6, B=1, dtype=torch.bfloat16),
        Case(run_past, capacity=5),
        Case(run_cache, pieces=[*LONG, 900], hs=2),
    ],
    mistakes={
        "only the new tokens are returned: the earlier ones were not kept.": cache_by(
            give=lambda held, new: new
        ),
        "the newest tokens come before the old ones: append them at the end.": cache_by(
            join=partial(cat_all, order=-1)
        ),
        "the newest keys and values come before the old ones, but the positions do not: append "
        "all three at the end.": cache_by(
            join=lambda old, new: [*cat_all(old, new, -1)[:2], cat_all(old, new)[2]]
        ),
        "concatenated along the batch: concatenate along the token dimension, 1.": cache_by(
            join=partial(cat_all, dims=(0, 0, 0))
        ),
        "concatenated along the head dimension: concatenate along the token dimension, "
        "1.": cache_by(join=partial(cat_all, dims=(2, 2, 0))),
        "the new tokens are kept twice.": cache_by(
            join=lambda old, new: cat_all(cat_all(old, new), new)
        ),
        "the old tokens are kept twice.": cache_by(
            join=lambda old, new: cat_all(old, cat_all(old, new))
        ),
        "only the new tokens' positions are returned: keep the positions, like keys "
        "and values.": cache_by(give=lambda held, new: [*held[:2], new[2]]),
        "the positions are counted from 0: keep the ones passed in.": cache_by(
            give=lambda held, new: [*held[:2], torch.arange(held[0].shape[1])]
        ),
        MIXED: cache_by(give=lambda held, new: [held[1], held[0], held[2]]),
        "the keys are returned in place of the values.": cache_by(
            give=lambda held, new: [held[0], held[0], held[2]]
        ),
        "the keys are kept in place of the values.": cache_by(
            join=lambda old, new: cat_all([old[0], old[0], old[2]], new)
        ),
        "two tensors are returned: update must return three, including the positions.": cache_by(
            give=lambda held, new: held[:2]
        ),
        "nothing is returned: update must return three tensors.": cache_by(
            given_back=lambda held: None
        ),
        "a piece of several tokens starts over: the earlier ones were not kept.": cache_by(
            join=lambda old, new: cat_all(old, new) if len(new[2]) == 1 else new
        ),
        SHARED: Anew(caches_that_share),
        "two caches share memory, and one overwrites the other's tokens: each needs its own "
        "tensors.": Anew(caches_in_one_memory),
    },
    advice={
        "not an nn.Module": (
            "Inside a head it would become part of the model, and kv_cache(model) could not remove "
            "it."
        ),
        "no method `update`": "A head calls cache.update(k, v, pos).",
        "what update returns": "It must return three tensors: keys, values, positions.",
        "the number of tokens": (
            "Return all tokens so far, once each: the cache forgets some, or holds some twice."
        ),
        "the shape of the keys": "Concatenate along the token dimension, 1.",
        "the shape of the values": "Concatenate along the token dimension, 1.",
        "in a second cache": "Each cache needs its own tensors.",
        "the positions": "Keep the ones passed in.",
        "the keys": "Return the keys unchanged and in order.",
        "the values": "Return the values unchanged and in order.",
        "silently loses": "It must not forget one: keep all, or raise an error.",
    },
    axes=AXES,
)


# ------------------------------------------------------------------ StaticKVCache


def run_slots(
    answer: Answer,
    pieces: list[int],
    capacity: int,
    B: int = 2,
    hs: int = 3,
    start: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Pairs:
    """Like run_cache, and whether the tensors stay the same."""
    module = isinstance(answer, type) and issubclass(answer, nn.Module)
    yield "a cache is a plain class, not an nn.Module", module
    caches = [answer(capacity) for _ in range(2)]
    yield "the class has no method `update`", not hasattr(caches[0], "update")
    places: list[Any] = [None, None]
    with Unwritten():
        for pos in torch.arange(start, start + sum(pieces)).split(pieces):
            for number, cache in enumerate(caches):
                after = f"up to position {int(pos[-1])}" + " in a second cache" * number
                given = new_tokens(pos, B, hs, dtype, seed=9000 * number)
                held = yield from run_update(cache, given, after)
                moved = places[number] not in (None, storages(cache, held))
                yield f"the update {after} makes new tensors", moved
                places[number] = storages(cache, held)


def run_again(answer: Answer) -> Pairs:
    """A slot that is written twice."""
    cache = answer(4)
    cache.update(*new_tokens(torch.arange(3)).tensors.values())
    held = cache.update(*new_tokens(torch.tensor([2]), seed=50).tensors.values())
    for name, part in zip(NAMES, held, strict=True):
        yield f"the {name} after slot 2 is written a second time", part


def storages(cache: Any, held: Held) -> list[int]:
    """The memory addresses of a cache's large tensors, or of those it returns."""
    tensors = [x for x in getattr(cache, "__dict__", {}).values() if isinstance(x, Tensor)]
    large = [x for x in tensors if x.ndim > 1] or held[:2]
    return sorted(x.untyped_storage().data_ptr() for x in large)


class SlotCache:
    """The reference solution. Each step can be replaced.

    How slots are made, where and how new tokens are written, and what is returned.
    """

    def __init__(
        self,
        capacity: int,
        make: Any = lambda shape, like: like.new_zeros(shape),
        empty: Any = lambda capacity: torch.full((capacity,), -1),
        room: Any = lambda capacity: capacity,
        once: bool = True,
        slots: Any = lambda pos, held, capacity: pos,
        keep: Any = lambda k, v, pos: (k, v, pos),
        write: Any = lambda part, slots, new: part.index_copy_(part.ndim // 2, slots, new),
        give: Any = lambda held: held,
    ) -> None:
        self.capacity = capacity
        self.step = SimpleNamespace(
            make=make, empty=empty, slots=slots, keep=keep, write=write, give=give
        )
        self.room = room(capacity)
        self.once = once
        self.held: Any = None

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        """Write the new tokens and return all slots."""
        if self.held is None or not self.once:
            shape = (k.shape[0], self.room, k.shape[2])
            pair = [self.step.make(shape, k), self.step.make(shape, v)]
            self.held = [*pair, self.step.empty(self.room)]
        slots = self.step.slots(pos, self.held, self.capacity)
        for part, new in zip(self.held, self.step.keep(k, v, pos), strict=True):
            self.step.write(part, slots, new)
        return tuple(self.step.give(self.held))


def slots_by(**step: Any) -> Answer:
    """A cache of slots with one step replaced."""
    return partial(SlotCache, **step)


def slots_that_share() -> Answer:
    """A class whose caches all use the first one's slots."""
    store: dict[int, Any] = {}

    class Shared(SlotCache):
        def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
            self.held = store.get(self.capacity)
            result = super().update(k, v, pos)
            store[self.capacity] = self.held
            return result

    return Shared


class OneTensor(SlotCache):
    """Keys and values in the same slots."""

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        super().update(k, v, pos)
        self.held[0] = self.held[1]
        return tuple(self.held)


class NewTensors(SlotCache):
    """Slots that are copied by each update."""

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        held = super().update(k, v, pos)
        self.held = [part.clone() for part in self.held]
        return held


def next_slots(pos: Tensor, held: Held, capacity: int) -> Tensor:
    filled = int((held[2] >= 0).sum())
    return torch.arange(filled, filled + len(pos))


def last_alone(part: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(part[:, 1:]), part[:, -1:]], dim=1)


SLOT = "each token belongs in the slot that its position names."
STATIC_KV_CACHE = Exercise(
    notebook="02",
    hints=(
        "The token at position 7 arrives. Which slot does it belong in? And how can the mask "
        "tell that slot 8 is still empty?",
        "`k.new_zeros(B, self.capacity, hs)` has the dtype and the device of `k`. A "
        "tensor of positions is an index: `self.k[:, pos] = k`.",
        "self.k[:, pos] = k, self.v[:, pos] = v and self.pos[pos] = pos, where self.pos"
        " begins as pos.new_full((self.capacity,), -1)",
    ),
    method="update",
    right=SlotCache,
    cases=[
        Case(run_slots, pieces=[2, 1, 1], capacity=6, dtype=torch.float32),
        Case(run_slots, pieces=[2, 1, 2], capacity=9, B=3, hs=5, start=2),
        Case(run_slots, pieces=[1], capacity=1, B=1, dtype=torch.bfloat16),
        Case(run_past, capacity=5),
        Case(run_again),
        Case(run_slots, pieces=[7, *[1] * 120, 173], capacity=300),
    ],
    mistakes={
        "an empty slot has its own index as its position: use -1 for empty slots.": slots_by(
            empty=torch.arange
        ),
        "an empty slot has position 0, like the first token: use -1 for empty slots.": slots_by(
            empty=lambda capacity: torch.zeros(capacity, dtype=torch.int64)
        ),
        "each update allocates new slots, so what was kept is gone: allocate once.": slots_by(
            once=False
        ),
        f"the next free slots are written, and {SLOT}": slots_by(slots=next_slots),
        f"slots are counted from 1, and {SLOT}": slots_by(
            slots=lambda pos, held, capacity: (pos - 1) % capacity
        ),
        f"each piece is written from slot 0 on, and {SLOT}": slots_by(
            slots=lambda pos, held, capacity: torch.arange(len(pos))
        ),
        "there is one slot more than the capacity.": slots_by(room=lambda capacity: capacity + 1),
        "only the filled slots are returned: return all `capacity` slots.": slots_by(
            give=lambda held: (
                [part[:, : int((held[2] >= 0).sum())] for part in held[:2]]
                + [held[2][held[2] >= 0]]
            )
        ),
        MIXED: slots_by(give=lambda held: [held[1], held[0], held[2]]),
        "the keys are kept in place of the values.": slots_by(keep=lambda k, v, pos: (k, k, pos)),
        "keys and values share one tensor, so they get mixed up: each needs its own slots.": (
            OneTensor
        ),
        SHARED: Anew(slots_that_share),
        "a later update makes new tensors: allocate once, then write into them.": NewTensors,
        "positions are counted from 0 in each piece: write the ones passed in.": slots_by(
            keep=lambda k, v, pos: (k, v, torch.arange(len(pos)))
        ),
        "every text in the batch gets the first one's keys: each has its own.": slots_by(
            keep=lambda k, v, pos: (k[:1].expand_as(k), v, pos)
        ),
        "a slot written a second time holds a sum: overwrite, do not add.": slots_by(
            write=lambda part, slots, new: (
                part.index_add_(1, slots, new)
                if part.ndim == 3
                else part.index_copy_(0, slots, new)
            )
        ),
        "only the last token of a piece is written: write all of them.": slots_by(
            keep=lambda k, v, pos: (last_alone(k), last_alone(v), pos)
        ),
    },
    advice={
        "not an nn.Module": (
            "Inside a head it would become part of the model, and kv_cache(model) could not remove "
            "it."
        ),
        "no method `update`": "A head calls cache.update(k, v, pos).",
        "what update returns": "It must return three tensors: keys, values, positions.",
        "the number of tokens": "Return all `capacity` slots, filled or not.",
        "the shape of": "Return all `capacity` slots, filled or not.",
        "makes new tensors": "Allocate once, then write into them.",
        "holds something": "Allocate zeros, and write where `pos` says.",
        "in a second cache": "Each cache needs its own tensors.",
        "the positions": (
            "Each position is stored in the slot of the same index; empty slots hold -1."
        ),
        "the keys": "The token at position n belongs in slot n; an empty slot holds 0.",
        "the values": "The token at position n belongs in slot n; an empty slot holds 0.",
        "silently loses": "It must not overwrite or drop a token: let it raise an error.",
    },
    axes=AXES,
)
