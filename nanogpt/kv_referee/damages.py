"""Proof that the test can fail: deliberately damaged caches must be told apart from sound ones.

A cache that forgets everything looks correct in a model whose output does not depend on it, for
example because its output projections start at zero. So before the verdict, the same comparison
that judges the cache is run on damaged ones. If it misses a damage, the verdict is undecided.

No damage needs access to the cache: reading another prefix leaves in the cache what a bug would
leave there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .contract import Model
from .yardstick import Yardstick

_TOKENS = 14  # of the damaged prefix; fewer if a window is narrower
TAIL = 3  # tokens behind it, whose logits are compared


@dataclass(frozen=True)
class Planted:
    """A fault: what is read instead of the prefix, (B, n), and whether only order changes."""

    name: str
    prefix: Tensor
    ordered: bool = False


def beginning(model: Model) -> int:
    """The length of the damaged prefix: inside the window, and long enough for a prompt."""
    n = _TOKENS
    if model.window:
        n = min(n, max(2, model.window - TAIL))
    if model.limits.longest:
        n = min(n, model.limits.longest - TAIL - 1)
    return max(n, model.limits.shortest, 2)


def planted(model: Model, ids: Tensor, n: int) -> Iterator[Planted]:
    """Yield the faults that replace the first n tokens of two texts.  (2, n + TAIL)"""
    start, other = ids[:1, :n], ids[1:, :n]
    yield Planted("everything forgotten", start[:, :0])
    replaced = start.clone()
    replaced[0, n // 2] = (replaced[0, n // 2] + 1) % model.vocab_size
    yield Planted("an old token replaced", replaced)
    swapped = start.clone()
    swapped[0, [n - 2, n - 1]] = swapped[0, [n - 1, n - 2]]
    if not torch.equal(swapped, start):
        yield Planted("two old tokens swapped", swapped, ordered=True)
    shorter = start[:, 1:]
    yield Planted("the first token lost, and positions one too low", shorter, ordered=True)
    yield Planted("the keys and values of another text", other)
    if model.limits.max_batch is None:
        yield Planted("two texts of a batch swapped", ids.flip(0)[:, :n])


def read_behind(model: Model, cache: str, fault: Planted, tail: Tensor) -> Tensor:
    """The first text's logits of the tail, behind a damaged prefix.  (B, TAIL) -> (TAIL, V)"""
    rows = max(1, len(fault.prefix))
    session = model.start(cache, rows, fault.prefix.shape[1] + TAIL)
    if fault.prefix.shape[1]:
        session.read(fault.prefix)
    logits = [session.read(piece) for piece in tail[:rows].split(1, 1)]
    return torch.cat(logits, 1)[0]


def texts_of(model: Model, seed: int, n: int) -> Tensor:
    """Two texts for the faults, different at every token if the vocabulary allows it.  (2, n)"""
    ids = model.text(2, seed + 211, n)
    ids[1] = torch.where(ids[1] == ids[0], (ids[1] + 1) % model.vocab_size, ids[1])
    return ids


def why_unseen(model: Model, yard: Yardstick, size: float) -> str:
    """Why a damaged cache gives the same logits as a sound one, and what to do, in one line."""
    zeros = zero_weights(model)
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


def zero_weights(model: Model) -> list[str]:
    """The names of the model's all-zero weight matrices."""
    if model.module is None:
        return []
    named = model.module.named_parameters()
    return [name for name, p in named if p.ndim > 1 and p.numel() and not p.any()]
