"""Proof that the test can fail: deliberately damaged caches must be told apart from sound ones.

A cache that forgets everything looks correct in a model whose output does not depend on it, for
example because its output projections start at zero. So before the verdict, the same comparison
that judges the cache is run on damaged ones. If it misses a damage, the verdict is undecided.

Most damages need no access to the cache: reading a different prefix leaves in the cache what a
bug would leave there. Keys and values are overwritten if their tensors can be found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from .subjects import NotOffered, Subject
from .texts import text
from .yardstick import Yardstick

_TOKENS = 14  # of the damaged prefix; fewer if a window is narrower
TAIL = 3  # tokens after it, whose logits are compared
_DEPTH = 8  # levels of nested objects that are searched for tensors
CACHE_PARTS = {  # how a cache names such a tensor
    "keys": re.compile(r"(^|_)k(ey)?s?($|_|\d)|key"),
    "values": re.compile(r"(^|_)v(al|alue)?s?($|_|\d)|value"),
    "keys and values": re.compile(r"(^|_)kvs?($|_|\d)"),  # in one tensor
}
PAIR = re.compile(r"kv|key_value|past|cache")  # a name for a pair: keys first, then values


class DamageKind(Enum):
    """What is damaged, in the words of the value."""

    FORGOTTEN = "everything is forgotten"
    REPLACED = "an old token is replaced by another"
    ORDER = "two old tokens are swapped"
    SHIFTED = "positions are off by one"
    ANOTHER = "it holds another text"
    ROWS = "two texts of a batch are swapped"
    PARTS = "keys or values are replaced"


# A model without positions may not depend on these.
ORDERLY = (DamageKind.ORDER, DamageKind.SHIFTED)


@dataclass(frozen=True)
class Damaged:
    """A damage: its kind, its name in words, and a function for the logits of the tail after it."""

    kind: DamageKind
    name: str
    read: Callable[[], Tensor]


def beginning(subject: Subject, shortest: int) -> int:
    """The length of the damaged prefix: inside the window, and long enough for a prompt."""
    n = _TOKENS
    if subject.window:
        n = min(n, max(2, subject.window - TAIL))
    if subject.longest:
        n = min(n, subject.longest - TAIL - 1)
    return max(n, shortest, 2)


def damages(subject: Subject, cache: str, ids: Tensor, n: int) -> Iterator[Damaged]:
    """Yield the damages to a cache that has read n tokens of each text.  (2, n + TAIL)"""
    start, tail = ids[:1, :n], ids[:1, n:]
    other = ids[1:, :n]

    def read(start: Tensor) -> Callable[[], Tensor]:
        pieces = [piece for piece in (start, *tail.split(1, 1)) if piece.shape[1]]
        return lambda: subject.cached(pieces, cache)[:, -TAIL:]

    def damaged(kind: DamageKind, name: str, start: Tensor) -> Damaged:
        return Damaged(kind, name, read(start))

    yield damaged(DamageKind.FORGOTTEN, "everything forgotten", start[:, :0])
    for at in sorted({0, n // 2, n - 1}):
        changed = start.clone()
        changed[0, at] = (changed[0, at] + 1) % subject.vocab_size
        name = f"an old token replaced, {n - at} before the next"
        yield damaged(DamageKind.REPLACED, name, changed)
    for a, b in {(n - 2, n - 1), (n // 2 - 1, n - 1)}:
        swapped = start.clone()
        swapped[0, [a, b]] = swapped[0, [b, a]]
        if a >= 0 and not torch.equal(swapped, start):
            name = f"two old tokens swapped, {n - a} and {n - b} before the next"
            yield damaged(DamageKind.ORDER, name, swapped)
    yield damaged(
        DamageKind.SHIFTED, "the first token lost, and positions one too low", start[:, 1:]
    )
    twice = torch.cat([start[:, :1], start], 1)
    yield damaged(DamageKind.SHIFTED, "the first token twice, and positions one too high", twice)
    yield damaged(DamageKind.ANOTHER, "the keys and values of another text", other)

    def rows() -> Tensor:
        pieces = [ids.flip(0)[:, :n], *ids[:, n:].split(1, 1)]
        return subject.cached(pieces, cache)[:1, -TAIL:]

    yield Damaged(DamageKind.ROWS, "two texts of a batch swapped", rows)
    for part in CACHE_PARTS:
        yield Damaged(
            DamageKind.PARTS, f"all {part} replaced", _part_damaged(subject, cache, ids, n, part)
        )


def _part_damaged(
    subject: Subject, cache: str, ids: Tensor, n: int, part: str
) -> Callable[[], Tensor]:
    """A function that overwrites this part's tensors in the cache, then reads the tail."""

    def read() -> Tensor:
        session = subject.session(cache)
        before = {id(x): _sum(x) for _, x in tensors_in(session)}
        session.read(ids[:1, :n])
        written = [  # by the pass, so not weights
            x
            for name, x in tensors_in(session)
            if CACHE_PARTS[part].search(name) and before.get(id(x)) != _sum(x)
        ]
        if not written:
            raise NotOffered(f"its cache exposes no {part}")
        saved = [x.clone() for x in written]
        generator = torch.Generator().manual_seed(0)
        with torch.inference_mode():
            for x in written:
                noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
                x.add_((noise * (1 + x.double().std())).to(x.device, x.dtype))
        tail = torch.cat([session.read(piece) for piece in ids[:1, n:].split(1, 1)], 1)
        with torch.inference_mode():  # the next request may use the same buffer
            for x, old in zip(written, saved, strict=True):
                x.copy_(old)
        return tail

    return read


def _sum(x: Tensor) -> float:
    return float(x.double().nan_to_num().sum())


def tensors_in(
    holder: object, name: str = "", depth: int = _DEPTH, seen: set[int] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield a cache's floating-point tensors, each with its name; for a module, its buffers."""
    seen = set() if seen is None else seen
    if id(holder) in seen or depth < 0 or isinstance(holder, (type, str, bytes)):
        return
    seen.add(id(holder))
    if isinstance(holder, Tensor):
        if holder.is_floating_point() and holder.ndim > 1 and holder.numel():
            yield name, holder
        return
    parts: list[tuple[str, Any]] = []
    if isinstance(holder, nn.Module):
        parts = list(holder.named_buffers())
    elif isinstance(holder, dict):
        parts = [(key if isinstance(key, str) else name, value) for key, value in holder.items()]
    elif isinstance(holder, (list, tuple)):
        names = getattr(holder, "_fields", [name] * len(holder))  # of a named tuple
        if len(holder) == 2 and PAIR.search(name) and names[0] == name and _alike(*holder):
            names = ["keys", "values"]
        parts = list(zip(names, holder, strict=True))
    elif hasattr(holder, "__dict__"):
        parts = list(vars(holder).items())
    for key, value in parts:
        yield from tensors_in(value, str(key).lower().rpartition(".")[2], depth - 1, seen)


def _alike(a: object, b: object) -> bool:
    """Whether these could be the keys and values of one layer."""
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape[:-1] == b.shape[:-1]


def why_unseen(subject: Subject, expected: Tensor, yard: Yardstick, size: float) -> str:
    """Why a damaged cache gives the same logits as a sound one, and what to do, in one line."""
    zeros = zero_weights(subject)
    if zeros:
        names = ", ".join(zeros[:3]) + (f" and {len(zeros) - 3} more" if len(zeros) > 3 else "")
        return (
            f"the logits do not depend on the cache; these weights are zero: {names}; initialise "
            f"them"
        )
    if yard.spread <= yard.limit:
        return "all tokens have the same logit, so no bug can show in them; use other weights"
    if size > yard.limit:
        return f"it moves logits by {size:.1e}, but {yard.words}"
    return "the logits do not depend on what the cache holds; use weights with which they do"


def zero_weights(subject: Subject) -> list[str]:
    """The names of the model's all-zero weight matrices."""
    module = getattr(subject, "model", None)
    if not isinstance(module, nn.Module):
        return []
    named = module.named_parameters()
    return [name for name, p in named if p.ndim > 1 and p.numel() and not p.any()]


def texts_of(subject: Subject, seed: int, n: int) -> Tensor:
    """Two texts for the damages, different at every token if the vocabulary allows it.  (2, n)"""
    ids = text(subject, 2, seed + 211, n)
    ids[1] = torch.where(ids[1] == ids[0], (ids[1] + 1) % subject.vocab_size, ids[1])
    return ids
