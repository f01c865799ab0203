"""Proof that the test can fail: deliberately damaged caches must be told apart from sound ones.

A cache that forgets everything looks correct in a model whose output does not depend on it, for
example because its output projections start at zero. So before the verdict, the same comparison
that judges the cache is run on damaged ones. If it misses a damage, the verdict is undecided.

No damage needs access to the cache: reading another prefix leaves in the cache what a bug would
leave there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .contract import Model
from .errors import ERRORS, OutOfTime
from .objects import zero_weights
from .programs import in_pieces, run
from .reference import Reference
from .report import Damage, Judgement, Report, Verdict

_TOKENS = 14  # of the damaged prefix; fewer if a window is narrower
_TAIL = 3  # tokens behind it, whose logits are compared


@dataclass(frozen=True)
class _Fault:
    """What is read instead of the prefix, (B, n), and whether it changes the order alone."""

    name: str
    prefix: Tensor
    ordered: bool = False


def damage_caches(reference: Reference, report: Report, say: Callable[[str], None]) -> None:
    """Damage each cache on purpose; an undetected damage makes the verdict undecided.

    Raises OutOfTime.
    """
    model, yard = reference.model, reference.yard
    # 1. Two texts, different at every token if the vocabulary allows it; the first one is judged.
    n = _length(model)
    ids = model.text(2, reference.seed + 211, n + _TAIL)
    ids[1] = torch.where(ids[1] == ids[0], (ids[1] + 1) % model.vocab_size, ids[1])
    expected = reference.expected([ids[0]])[0][n:]
    orderly = _orderly(reference, ids[0], n)
    if not orderly:
        report.notes.append(
            "the plain pass does not depend on the order of tokens: a mistake in positions would "
            "not show"
        )
    # 2. Each fault in each cache.
    for cache in model.caches:
        missed: list[Damage] = []
        for fault in _faults(model, ids, n):
            if fault.ordered and not orderly:
                continue
            say(f"{cache}, damaged: {fault.name}")
            try:
                got = _read_behind(model, cache, fault, ids[:, n:])
            except OutOfTime:
                raise
            except ERRORS:
                continue
            size = float(yard.sizes(got[None], expected[None]).max())
            damage = Damage(fault.name, cache, size > yard.inside, size)
            report.damages.append(damage)
            if not damage.seen:
                missed.append(damage)
        if missed:
            report.findings.append(_undecided(reference, cache, missed))
    # 3. What weights of zero hide.
    zeros = zero_weights(model.module)
    if zeros:
        names = ", ".join(zeros[:3])
        note = f"{len(zeros)} weights are zero ({names}): a mistake behind them would not show"
        report.notes.append(note)


def _length(model: Model) -> int:
    """The length of the damaged prefix: inside the window, and long enough for a prompt."""
    n = _TOKENS
    if model.window:
        n = min(n, max(2, model.window - _TAIL))
    if model.limits.longest:
        n = min(n, model.limits.longest - _TAIL - 1)
    return max(n, model.limits.shortest, 2)


def _faults(model: Model, ids: Tensor, n: int) -> Iterator[_Fault]:
    """Yield the faults that replace the first n tokens of two texts.  (2, n + _TAIL)"""
    start, other = ids[:1, :n], ids[1:, :n]
    yield _Fault("everything forgotten", start[:, :0])
    replaced = start.clone()
    replaced[0, n // 2] = (replaced[0, n // 2] + 1) % model.vocab_size
    yield _Fault("an old token replaced", replaced)
    swapped = start.clone()
    swapped[0, [n - 2, n - 1]] = swapped[0, [n - 1, n - 2]]
    if not torch.equal(swapped, start):
        yield _Fault("two old tokens swapped", swapped, ordered=True)
    yield _Fault("the first token lost, and positions one too low", start[:, 1:], ordered=True)
    yield _Fault("the keys and values of another text", other)
    if model.limits.max_batch is None:
        yield _Fault("two texts of a batch swapped", ids.flip(0)[:, :n])


def _read_behind(model: Model, cache: str, fault: _Fault, tail: Tensor) -> Tensor:
    """The first text's logits of the tail, behind a damaged prefix.  (2, t) -> (t, V)"""
    texts = torch.cat([fault.prefix, tail[: len(fault.prefix)]], 1)
    program = in_pieces(texts, [fault.prefix.shape[1], *[1] * tail.shape[1]], model.vocab_size)
    return run(model, program, cache)[0].logits[-tail.shape[1] :]


def _orderly(reference: Reference, text: Tensor, n: int) -> bool:
    """Whether the logits of the plain pass depend on the order of old tokens.  (T,)"""
    swapped = text.clone()
    swapped[[n - 2, n - 1]] = swapped[[n - 1, n - 2]]
    (got, expected) = (logits[n:] for logits in reference.expected([swapped, text]))
    moved = float(reference.yard.sizes(got[None], expected[None]).max())
    return moved > reference.yard.inside or torch.equal(swapped, text)


def _undecided(reference: Reference, cache: str, missed: list[Damage]) -> Judgement:
    """The finding on damages that look like a sound cache: why, and what to do."""
    yard = reference.yard
    largest = max(damage.size for damage in missed)
    zeros = zero_weights(reference.model.module)
    if zeros:
        names = ", ".join(zeros[:3]) + (f" and {len(zeros) - 3} more" if len(zeros) > 3 else "")
        reason = (
            f"the logits do not depend on the cache; these weights are zero: {names}; initialise "
            f"them"
        )
    elif yard.spread <= yard.limit:
        reason = "all tokens have the same logit, so no bug can show in them; use other weights"
    elif largest > yard.limit:
        reason = f"it moves logits by {largest:.1e}, but {yard.words}"
    else:
        reason = "the logits do not depend on what the cache holds; use weights with which they do"
    names = "; ".join(damage.name for damage in missed[:3])
    more = f", and {len(missed) - 3} more" if len(missed) > 3 else ""
    words = f"looks like a sound cache, so this test cannot fail: {reason}"
    name = f"damaged on purpose ({names}{more})"
    return Judgement(name, Verdict.UNDECIDED, words, largest, cache=cache)
