"""The check of every_second, an attention pattern that works with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...cache import StaticCache
from ...caches.rolling import RollingCache
from ...comparison import forced_logits
from ...decoder.config import DecoderConfig, Positions
from ...decoder.model import CausalSelfAttention, Decoder
from .. import solutions
from .exercise import Anew, Answer, Case, Exercise, Pairs
from .observing import Arguments, form, numbers
from .visibility import FAR, SHUFFLED, visible


def run_pattern(
    answer: Answer, queries: Sequence[int], keys: Sequence[int], more: tuple[Any, ...] = ()
) -> Pairs:
    """The mask for these positions, and what is wrong with it, by kind of key."""
    q_pos = torch.tensor(queries)
    k_pos = torch.tensor(keys)
    given = Arguments(q_pos=q_pos.clone(), k_pos=k_pos.clone())
    mask = answer(*given.tensors.values(), *more)
    yield from given.changes()
    yield "the shape of the mask", form(mask)
    yield "the dtype of the mask", str(getattr(mask, "dtype", "none"))
    gap = q_pos[:, None] - k_pos
    empty = (k_pos < 0).expand(mask.shape)
    yield "a query does not see its own token", bool((~mask & (gap == 0)).any())
    yield "a query sees an empty slot, whose position is -1", bool((mask & empty).any())
    yield "a query sees a key after it, which is the future", bool((mask & (gap < 0)).any())
    odd = ~empty & (gap > 0) & (gap % 2 == 1)
    yield "a query sees a key at an odd distance, which it should skip", bool((mask & odd).any())
    even = ~empty & (gap > 0) & (gap % 2 == 0)
    yield "a query does not see a key at an even distance before it", bool((~mask & even).any())
    yield "the mask", mask


def run_two(answer: Answer) -> Pairs:
    """Two calls of the same shapes."""
    keys = torch.arange(9)
    for query in (2, 5):
        yield f"the mask of a query at {query} for 9 keys", answer(torch.tensor([query]), keys)


def run_model(answer: Answer, cache: Any, pieces: Sequence[int], n: int = 24) -> Pairs:
    """Logits of a model with this pattern, read in pieces with a cache, and without one."""
    own = type("Own", (CausalSelfAttention,), {"visible": staticmethod(answer)})
    shape = DecoderConfig(9, n, n_layer=1, n_head=2, n_embd=8, positions=Positions.ROTARY, window=n)
    model = Decoder(shape, attention=own).double().eval()
    for seed, weight in enumerate(model.parameters()):
        weight.data = numbers(*weight.shape, seed=seed)
    ids = torch.arange(n)[None] * 5 % 9
    with torch.no_grad():
        plain = forced_logits(model, ids, 9, None)
        yield "the logits of a model without a cache", plain
        for piece in pieces:
            cached = forced_logits(model, ids, 9, cache, piece)
            wrong = not torch.allclose(cached, plain, 1e-6, 1e-6)
            yield "with a cache the logits differ from those without", wrong


# ------------------------------------------------------------------ mistakes


def sees(mask: Any) -> Answer:
    """every_second with other comparisons of (T, 1) and (1, S)."""
    return lambda q_pos, k_pos, *more: mask(q_pos[:, None], k_pos[None, :])


def every_second(q_pos: Tensor, k_pos: Tensor, *more: Any) -> Tensor:
    gap = q_pos[:, None] - k_pos[None, :]
    return visible(q_pos, k_pos) & (gap % 2 == 0)


def among(skip: Any) -> Answer:
    """The keys that a causal query sees, filtered by another condition on (T, 1) and (1, S)."""
    return lambda q_pos, k_pos, *more: visible(q_pos, k_pos) & skip(q_pos[:, None], k_pos[None, :])


def places(x: Tensor) -> Tensor:
    return torch.arange(x.numel()).view(x.shape)


def in_dtype(dtype: torch.dtype) -> Answer:
    return lambda q_pos, k_pos, *more: every_second(q_pos.to(dtype), k_pos.to(dtype))


def alone(other: Any) -> Answer:
    """A different rule for a single query."""
    return lambda q_pos, k_pos, *more: (
        other(q_pos, k_pos) if len(q_pos) == 1 else every_second(q_pos, k_pos)
    )


def cut(q_pos: Tensor, k_pos: Tensor, *more: Any) -> Tensor:
    return visible(q_pos, k_pos)[:, ::2]


def in_a_row(q_pos: Tensor, k_pos: Tensor, *more: Any) -> Tensor:
    return every_second(q_pos[0] + torch.arange(len(q_pos)), k_pos)


def keys_from_zero(q_pos: Tensor, k_pos: Tensor, *more: Any) -> Tensor:
    return every_second(q_pos, torch.arange(len(k_pos)))


def queries_from_zero(q_pos: Tensor, k_pos: Tensor, *more: Any) -> Tensor:
    return every_second(torch.arange(len(q_pos)), k_pos)


def gap_of_queries(q_pos: Tensor, k_pos: Tensor, *more: Any) -> Tensor:
    gap = torch.arange(len(q_pos))[:, None] - k_pos[None, :]
    return visible(q_pos, k_pos) & (gap % 2 == 0)


def near(q_pos: Tensor, k_pos: Tensor, window: int | None = None, sinks: int | None = 0) -> Tensor:
    mask = every_second(q_pos, k_pos)
    if window is None:
        return mask
    return mask & ((k_pos > q_pos[:, None] - window) | (k_pos < (sinks or 0)))


def near_alone(
    q_pos: Tensor, k_pos: Tensor, window: int | None = None, sinks: int | None = 0
) -> Tensor:
    return near(q_pos, k_pos, window)


def tril(q_pos: Tensor, k_pos: Tensor, *more: Any) -> Tensor:
    gap = q_pos[:, None] - k_pos[None, :]
    triangle = torch.ones(gap.shape).tril().bool()
    return triangle & (gap % 2 == 0) & (k_pos >= 0)


def as_infinity(q_pos: Tensor, k_pos: Tensor, *more: Any) -> Tensor:
    mask = every_second(q_pos, k_pos)
    return torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))


def kept_by_shape() -> Answer:
    masks: dict[Any, Tensor] = {}

    def mask(q_pos: Tensor, k_pos: Tensor, *more: Any) -> Tensor:
        return masks.setdefault((len(q_pos), len(k_pos)), every_second(q_pos, k_pos))

    return mask


RING = [10, 11, 12, 5, 6, 7, 8, 9]  # positions in the order of a ring's slots
EVERY_SECOND = Exercise(
    notebook="08",
    hints=(
        "Query 7 sees 7, 5, 3 and 1, and query 4 sees 4, 2 and 0. What do the gaps 0, 2, 4 and 6 "
        "have in common?",
        "Start from `visible(q_pos, k_pos)`, which handles the future and empty slots. Which "
        "gaps between query and key should remain?",
        "gap = q_pos[:, None] - k_pos[None, :], then return visible(q_pos, k_pos) & (gap % 2 == 0)",
    ),
    right=solutions.every_second,
    cases=[
        Case(run_pattern, queries=[7], keys=[*range(8)]),
        Case(run_two),
        Case(run_pattern, queries=[4], keys=[*range(8)]),
        Case(run_pattern, queries=[0, 1, 2, 3], keys=[0, 1, 2, 3]),
        Case(run_pattern, queries=[2, 3], keys=[0, 1, 2, 3, -1, -1]),
        Case(run_pattern, queries=[0], keys=[0, -1, -1]),
        Case(run_pattern, queries=[37, 38, 39], keys=[*range(40)]),
        Case(run_pattern, queries=[38, 39], keys=[*range(5, 40)]),
        Case(run_pattern, queries=[12], keys=RING),
        Case(run_pattern, queries=[9, 12, 10], keys=RING),
        Case(run_pattern, queries=[*range(40)], keys=[*range(27, 40), *range(27)]),
        Case(run_pattern, queries=[299, 3, 120], keys=SHUFFLED),
        Case(run_pattern, queries=[40_000, 2**31], keys=FAR),
        Case(run_pattern, queries=[2**24, 2**53], keys=[2**24 + 1, 2**53 - 1, 2**53 + 1, 4]),
        Case(run_pattern, queries=[9], keys=[*range(10)], more=(None, 0)),
        Case(run_pattern, queries=[9, 10], keys=[*range(12)], more=(4, 1)),
        Case(run_model, cache=StaticCache, pieces=(9, 4)),
        Case(run_model, cache=RollingCache, pieces=(9, 4)),
    ],
    mistakes={
        "a query sees a character after its own: require a gap of at least 0.": sees(
            lambda q, k: (k >= 0) & ((q - k) % 2 == 0)
        ),
        "a query sees an empty slot: also require that k_pos is at least 0.": sees(
            lambda q, k: (k <= q) & ((q - k) % 2 == 0)
        ),
        "a query sees the future and empty slots: start from visible(q_pos, k_pos).": sees(
            lambda q, k: (q - k) % 2 == 0
        ),
        "a query does not see itself, and the one at 0 sees no key, so its softmax is NaN: the "
        "gap 0 is also even.": among(lambda q, k: ((q - k) % 2 == 0) & (q > k)),
        "the wrong half is visible: a query sees itself, so the gaps are even, gap % 2 == "
        "0.": among(lambda q, k: (q - k) % 2 == 1),
        "it uses indices into the array of keys: in a ring the keys are in another order. "
        "Compute with the values in q_pos and k_pos, not with their indices.": among(
            lambda q, k: (places(k) % 2 == 0).expand(len(q), -1)
        ),
        "it uses indices into the array of queries: a piece of a text does not begin at 0. "
        "Compute the gap from q_pos.": gap_of_queries,
        "keys are numbered from 0, by index: k_pos has each key's position.": keys_from_zero,
        "queries are numbered from 0, by index: q_pos has each query's position.": (
            queries_from_zero
        ),
        "queries are assumed to be consecutive: each has its own position.": in_a_row,
        "all queries see even positions, but a query at 7 sees 7, 5, 3 and 1: use the gap.": among(
            lambda q, k: (k % 2 == 0).expand(len(q), -1)
        ),
        "queries at odd positions see nothing: it is the gap that must be even.": among(
            lambda q, k: (k % 2 == 0) & (q % 2 == 0)
        ),
        "you require the product of positions to be even: it is their difference that "
        "must be.": among(lambda q, k: (q * k) % 2 == 0),
        "nothing is skipped: only keys at an even gap are visible.": among(lambda q, k: q == q),
        "every third key is visible: take the gap modulo 2.": among(lambda q, k: (q - k) % 3 == 0),
        "every fourth key is visible: take the remainder of the gap by 2.": among(
            lambda q, k: (q - k) % 4 == 0
        ),
        "gap // 2 == 0 keeps only the last two characters: use the remainder, gap % 2.": among(
            lambda q, k: (q - k) // 2 == 0
        ),
        "only the gaps 0 and 2 are visible: all even gaps must be.": among(
            lambda q, k: ((q - k) == 0) | ((q - k) == 2)
        ),
        "a query sees what comes after it, and not what comes before: the gap is q_pos - "
        "k_pos.": sees(lambda q, k: (k >= q) & (k >= 0) & ((q - k) % 2 == 0)),
        "the two conditions are joined by |, so either one is enough: join them with &.": (
            lambda q_pos, k_pos, *more: (
                visible(q_pos, k_pos)
                | every_second(q_pos, k_pos)
                | ((q_pos[:, None] - k_pos) % 2 == 0)
            )
        ),
        "the mask is inverted: True is what a query sees.": (
            lambda q_pos, k_pos, *more: ~every_second(q_pos, k_pos)
        ),
        "the mask is transposed: it has a row for each query and a column for each key.": (
            lambda q_pos, k_pos, *more: every_second(q_pos, k_pos).T
        ),
        "columns are cut out by a slice: the mask has a column for each key, with False for "
        "those that are skipped.": cut,
        "the key at position 0 is hidden: only -1 is an empty slot.": among(
            lambda q, k: ((q - k) % 2 == 0) & (k > 0)
        ),
        "a single query gets a different rule, so with a cache the logits differ: only "
        "positions decide.": alone(
            lambda q_pos, k_pos: among(lambda q, k: (q - k) % 3 == 0)(q_pos, k_pos)
        ),
        "a single query sees every key before it, so with a cache the logits differ: the gap "
        "also decides for it.": alone(visible),
        "a single query gets no mask, so with a cache the logits differ: it skips keys like any "
        "other.": alone(lambda q_pos, k_pos: torch.ones(1, len(k_pos), dtype=torch.bool)),
        "the mask holds floats: it must hold booleans.": (
            lambda q_pos, k_pos, *more: every_second(q_pos, k_pos) * 1.0
        ),
        "the mask holds integers: it must hold booleans.": (
            lambda q_pos, k_pos, *more: every_second(q_pos, k_pos) * 1
        ),
        "the mask holds 0 and -inf: it must hold booleans.": as_infinity,
        "a second call of the same shapes gets the first one's mask: keep nothing between "
        "calls.": Anew(kept_by_shape),
        "`window` and `sinks` have an effect: leave them unused.": near,
        "`window` has an effect: leave it unused.": near_alone,
        "the mask is a triangle by index, from tril: compare positions.": tril,
        "8 bits are too few for a position: keep 64-bit integers.": in_dtype(torch.int8),
        "16 bits are too few for a position: keep 64-bit integers.": in_dtype(torch.int16),
        "32 bits are too few for distant positions: keep 64-bit integers.": (in_dtype(torch.int32)),
        "float32 rounds large positions: keep integers.": in_dtype(torch.float32),
        "a query with few keys before it sees all of them: the gap also decides there.": among(
            lambda q, k: ((q - k) % 2 == 0) | (q < 2)
        ),
    },
    advice={
        "the shape of the mask": (
            "It must hold booleans, with a row for each query and a column for each key: compare "
            "q_pos[:, None] with k_pos[None, :]."
        ),
        "the dtype of the mask": "It must hold booleans.",
        "its own token": "A gap of 0 is even.",
        "the future": "Require a gap of at least 0, as visible(q_pos, k_pos) does.",
        "empty slot": "Also require that k_pos is at least 0, as visible(q_pos, k_pos) does.",
        "at an odd distance": "Require gap % 2 == 0, with the gap between the positions.",
        "at an even distance": "All even gaps are visible, however large, whatever `window` is.",
        "the mask of a query": "Compare positions, and keep nothing from one call to the next.",
        "the logits": (
            "Only positions decide: not the number of queries, not the order of keys, not an "
            "earlier call."
        ),
    },
    axes=[("query", "key")],
)
