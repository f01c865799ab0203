"""The judges of KVCache and StaticKVCache."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager

import torch
import torch.nn as nn
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .common import Objection, drawn, need, objects, shape_of, untouched

# Texts, head size, dtype, capacity, and the positions of each update.
GROWS = [
    (2, 3, torch.float32, 8, [range(1), range(1, 2), range(2, 4), range(4, 8)]),
    (3, 5, torch.float64, None, [range(5, 8), range(9, 10), range(40, 42)]),
    (1, 2, torch.bfloat16, 6, [range(3), range(3, 6)]),
    (
        2,
        5,
        torch.float64,
        300,
        [range(7), *(range(i, i + 1) for i in range(7, 260)), range(260, 300)],
    ),
    (1, 2, torch.float32, None, [range(1050), range(1050, 1051), range(1051, 1100)]),
]
STATIC = [
    (2, 3, torch.float32, 6, [range(2), range(2, 3), range(3, 4)]),
    (3, 5, torch.float64, 9, [range(2, 4), range(5, 6), range(7, 9)]),
    (1, 2, torch.bfloat16, 1, [range(1)]),
    (
        2,
        5,
        torch.float64,
        300,
        [range(7), *(range(i, i + 1) for i in range(7, 260)), range(260, 300)],
    ),
]


def _new(B: int, positions: range, hs: int, dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and positions of new tokens; no two numbers are the same."""
    T = len(positions)
    seed = positions.start
    pos = torch.tensor([*positions])
    return (
        drawn(B, T, hs, seed=seed, dtype=dtype),
        drawn(B, T, hs, seed=seed + 1000, dtype=dtype),
        pos,
    )


def _update(cache, new: tuple) -> list[Tensor]:
    """The three tensors that an update returns, in a list. Raises Objection for anything else."""
    held = untouched(cache.update, **dict(zip(("k", "v", "pos"), new, strict=True)))
    need(
        isinstance(held, (tuple, list))
        and len(held) == 3
        and all(isinstance(x, Tensor) for x in held),
        "update must return three tensors: keys, values, positions.",
    )
    return list(held)


def _check_kind(held: Iterable[Tensor], new: tuple) -> None:
    """Raise Objection where a dtype has changed on the way."""
    for name, part, given in zip(("keys", "values"), held, new, strict=False):
        need(
            part.dtype == given.dtype,
            f"{name} of {given.dtype} come back as {part.dtype}: keep them as they come in.",
        )
    need(not held[2].is_floating_point(), "the positions come back as floats: they are integers.")


def _check_class(kind) -> None:
    """A cache is a plain class: a module in a head becomes a part of the model."""
    need(
        isinstance(kind, type) and not issubclass(kind, nn.Module),
        "a cache is a plain class, not an nn.Module: in a head that would become a part of the "
        "model, and kv_cache(model) could not take it away.",
    )


class Unwritten(TorchFunctionMode):
    """In its with-block, memory that nobody has written holds 7, and no old numbers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        named = getattr(func, "__name__", "") in ("empty", "empty_like", "new_empty")
        return out.fill_(7) if named else out


def _check_alone(kind) -> None:
    """Two caches that are filled in turns know nothing of each other, nor of one before them."""
    first = _new(2, range(3), 3, torch.float32)
    second = _new(2, range(2), 3, torch.float32)
    one = kind(6)
    other = kind(6)
    _update(one, first)
    held = _update(other, second)
    positions = held[2][held[2] >= 0].tolist()
    need(
        positions == second[2].tolist(),
        f"a second cache begins with the tokens of the first, at {positions}: each needs tensors "
        "of its own, made in __init__ or at the first update and kept in self, not in the class.",
    )
    more = _new(2, range(3, 4), 3, torch.float32)
    again = _update(one, more)
    positions = again[2][again[2] >= 0].tolist()
    need(
        positions == [0, 1, 2, 3],
        f"two caches share what they hold: one has the positions {positions}, not [0, 1, 2, 3].",
    )
    for held, old, new in zip(again[:2], first, more, strict=False):
        need(
            torch.equal(held[:, :4], torch.cat([old, new], dim=1)),
            "two caches share what they hold: one has written over the other's keys or values.",
        )


def _check_past(kind, capacity: int, slots: bool) -> None:
    """Past the capacity an error, or all tokens: nothing is lost in silence."""
    cache = kind(capacity)
    _update(cache, _new(1, range(capacity), 3, torch.float32))
    new = _new(1, range(capacity, capacity + 1), 3, torch.float32)
    try:
        held = _update(cache, new)
    except Objection:
        raise
    except Exception:
        return
    positions = held[2][held[2] >= 0].tolist()
    need(
        sorted(positions) == [*range(capacity + 1)],
        f"one token more than the capacity of {capacity}, and the cache keeps quiet and holds the "
        f"positions {_few(positions)}: "
        + (
            "it must not write over another; let it stop with an error."
            if slots
            else "all must be there."
        ),
    )


def _few(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) < 8 else f"[{numbers[0]}, {numbers[1]} … {numbers[-1]}]"


# ------------------------------------------------------------------ a cache that grows


@objects
def KVCache(kind) -> None:
    """All tokens so far, after each update, in the order in which they came."""
    _check_class(kind)
    for number, (B, hs, dtype, capacity, updates) in enumerate(GROWS):
        if number == 1:
            _check_alone(kind)
        cache = kind(capacity) if capacity else kind()
        news = []
        for positions in updates:
            news.append(_new(B, positions, hs, dtype))
            with _no_capacity(capacity, positions.stop):
                held = _update(cache, news[-1])
            _check_grown(held, news)
    _check_past(kind, 5, slots=False)


@contextmanager
def _no_capacity(capacity: int | None, end: int):
    """Around an update up to that position: an error is an objection where no capacity is set."""
    try:
        yield
    except (ValueError, RuntimeError, IndexError) as error:
        if capacity:
            raise
        raise Objection(
            f"made without a capacity, it stops on the way to {end} tokens ({error}): "
            "capacity=None is no limit, and positions may begin anywhere."
        ) from None


def _check_grown(held: list[Tensor], news: list[tuple]) -> None:
    """Raise Objection unless these are the tokens of all updates."""
    k = torch.cat([new[0] for new in news], dim=1)
    v = torch.cat([new[1] for new in news], dim=1)
    pos = torch.cat([new[2] for new in news])
    end = len(pos)
    T = len(news[-1][2])
    shape = tuple(held[0].shape)
    after = f"after {end} tokens"
    if len(shape) == 3 and shape[1] < end and (shape[0], shape[2]) == (k.shape[0], k.shape[2]):
        lost = "the earlier ones were not kept" if shape[1] == T else "the cache forgets some"
        raise Objection(f"update gave back {shape[1]} of {end} tokens: {lost}.")
    need(
        shape == tuple(k.shape),
        f"the keys are {shape}, not {tuple(k.shape)}: join along the dimension of the tokens, 1.",
    )
    need(held[1].shape == v.shape, f"the values are {shape_of(held[1])}, not {tuple(v.shape)}.")
    need(
        tuple(held[2].shape) == (end,),
        f"there are {end} keys, and positions {shape_of(held[2])}: positions are kept as well.",
    )
    _check_kind(held, news[-1])
    turned = torch.cat([new[0] for new in reversed(news)], dim=1)
    if len(news) > 1 and torch.equal(held[0], turned):
        raise Objection("the new keys stand before the old ones: the newest token comes last.")
    if torch.equal(held[0], v) or torch.equal(held[1], k):
        raise Objection("keys and values are mixed up: they come and go as k, v, pos.")
    need(
        torch.equal(held[0], k),
        f"{after} the keys are not those that came in, in their order{_where(held[0], k)}.",
    )
    need(
        torch.equal(held[1], v),
        f"{after} the values are not those that came in, in their order{_where(held[1], v)}.",
    )
    positions = held[2].tolist()
    need(
        positions == pos.tolist(),
        f"{after} the positions are {_few(positions)}, not {_few(pos.tolist())}: keep those that "
        "come in.",
    )


def _where(result: Tensor, right: Tensor) -> str:
    """In words, where two tensors differ first, along the tokens or the texts."""
    wrong = (result != right).nonzero()
    if not len(wrong):
        return ""
    text = wrong[0, 0].item()
    token = wrong[0, 1].item()
    rest = f", first those of token {token} in text {text}"
    if torch.allclose(result.double(), right.double(), rtol=1e-2, atol=1e-2):
        rest += ", by a rounding: they were kept in a smaller dtype"
    return rest


# ------------------------------------------------------------------ one that is allocated once


@objects
def StaticKVCache(kind) -> None:
    """Token n in slot n, zeros and position -1 in the others, in tensors that are made once."""
    _check_class(kind)
    for number, case in enumerate(STATIC):
        if number == 1:
            _check_alone(kind)
        with Unwritten():
            _check_static(kind, *case)
    _check_past(kind, 5, slots=True)
    _check_twice(kind)


def _check_twice(kind) -> None:
    """A slot that is written again holds the last numbers."""
    cache = kind(4)
    _update(cache, _new(1, range(3), 3, torch.float32))
    k, v, pos = _new(1, range(2, 3), 3, torch.float32)
    held = _update(cache, (2 * k, 3 * v, pos))
    need(
        torch.equal(held[0][:, 2:3], 2 * k) and torch.equal(held[1][:, 2:3], 3 * v),
        "a slot that is written a second time does not hold what came last: write, do not add.",
    )


def _check_static(kind, B: int, hs: int, dtype, capacity: int, updates: list[range]) -> None:
    """After each update the slots hold the right numbers, in the tensors of the first."""
    cache = kind(capacity)
    right = [torch.zeros(B, capacity, hs, dtype=dtype) for _ in "kv"]
    right.append(torch.full((capacity,), -1))
    places = set()
    for positions in updates:
        new = _new(B, positions, hs, dtype)
        for slots, part in zip(right, new, strict=True):
            slots.index_copy_(slots.ndim // 2, new[2], part)
        held = _update(cache, new)
        _check_slots(held, right, new)
        places.add(_storages(cache, held))
    need(len(places) == 1, "a later update made new tensors: reserve once, then write into them.")


def _storages(cache, held: list[Tensor]) -> tuple[int, ...]:
    """Where the tensors of a cache lie in memory, or those that it returns."""
    tensors = [x for x in getattr(cache, "__dict__", {}).values() if isinstance(x, Tensor)]
    large = [x for x in tensors if x.ndim > 1] or held[:2]
    return tuple(sorted(x.untyped_storage().data_ptr() for x in large))


def _check_slots(held: list[Tensor], right: list[Tensor], new: tuple) -> None:
    """Raise Objection unless the slots hold the right numbers."""
    capacity = len(right[2])
    shapes = [tuple(part.shape) for part in held]
    wanted = [tuple(part.shape) for part in right]
    need(
        shapes == wanted,
        f"for a capacity of {capacity} the slots are {', '.join(map(str, wanted))}; yours are "
        f"{', '.join(map(str, shapes))}.",
    )
    _check_kind(held, new)
    last = int(new[2][-1])
    after = f"after an update up to position {last}, with a capacity of {capacity},"
    filled = right[2] >= 0
    positions = held[2].tolist()
    need(
        torch.equal(held[2], right[2].to(held[2].dtype)),
        f"{after} the positions are {_few(positions)}, not {_few(right[2].tolist())}: each in the "
        "slot of its own number, and -1 in empty slots.",
    )
    for name, slots, whole in zip(("keys", "values"), held, right, strict=False):
        need(
            not slots[:, ~filled].any(),
            f"{after} an empty slot holds something: reserve zeros, and write where `pos` says.",
        )
        if not torch.equal(slots, whole):
            if torch.equal(held[0], right[1]) or torch.equal(held[1], right[0]):
                raise Objection("keys and values are mixed up: they come and go as k, v, pos.")
            raise Objection(
                f"{after} the slots do not hold the {name} that came{_where(slots, whole)}: token "
                "n "
                "belongs into slot n, as its position says."
            )
