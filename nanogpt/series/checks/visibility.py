"""The check of visible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .exercise import Anew, Answer, Case, Exercise, Pairs
from .observing import Arguments, form


def visible(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """The reference solution: True where a query may attend.  (T,), (S,) -> (T, S)"""
    return (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)


def run_mask(answer: Answer, queries: list[int], keys: list[int]) -> Pairs:
    """The mask for these positions, and what is wrong with it, by kind of key."""
    q_pos = torch.tensor(queries)
    k_pos = torch.tensor(keys)
    given = Arguments(q_pos=q_pos.clone(), k_pos=k_pos.clone())
    mask = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the mask", form(mask)
    yield "the dtype of the mask", str(getattr(mask, "dtype", "none"))
    empty = (k_pos < 0).expand(mask.shape)
    q = q_pos[:, None]
    yield "a query does not see its own token", bool((~mask & (k_pos == q)).any())
    yield "a query sees an empty slot, whose position is -1", bool((mask & empty).any())
    yield "a query sees a key after it, which is the future", bool((mask & (k_pos > q)).any())
    past = ~empty & (k_pos < q)
    yield "a query does not see a key before it, and must see all", bool((~mask & past).any())
    yield "the mask", mask


def run_two(answer: Answer) -> Pairs:
    """Two calls of the same shapes."""
    keys = torch.arange(9)
    for query in (2, 5):
        yield f"the mask of a query at {query} for 9 keys", answer(torch.tensor([query]), keys)


def sees(mask: Any) -> Answer:
    """visible with other comparisons of (T, 1) and (1, S)."""
    return lambda q_pos, k_pos: mask(q_pos[:, None], k_pos[None, :])


def tril(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return torch.ones(len(q_pos), len(k_pos)).tril().bool() & (k_pos[None] >= 0)


def in_dtype(dtype: torch.dtype) -> Answer:
    return lambda q_pos, k_pos: visible(q_pos.to(dtype), k_pos.to(dtype))


def in_a_row(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return visible(q_pos[0] + torch.arange(len(q_pos)), k_pos)


def last_query(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return visible(q_pos[-1:].expand(len(q_pos)), k_pos)


def keys_by_place(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return visible(q_pos, torch.arange(len(k_pos)))


def forgotten(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return visible(q_pos, q_pos)


def alone_sees_all(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return visible(q_pos, k_pos) | (len(q_pos) == 1)


def kept_by_shape() -> Answer:
    masks: dict[Any, Tensor] = {}

    def mask(q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return masks.setdefault((len(q_pos), len(k_pos)), visible(q_pos, k_pos))

    return mask


def as_numbers(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    return visible(q_pos, k_pos) * 1.0


def as_infinity(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    mask = visible(q_pos, k_pos)
    return torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))


SHUFFLED = [*torch.randperm(300, generator=torch.Generator().manual_seed(0)).sub(1).tolist()]
FAR = [0, 40_000, 3, -1, 2**31, 39_999]
VISIBLE = Exercise(
    notebook="02",
    hints=(
        "Which key positions may the query at position 5 see? And what does an empty slot have "
        "instead of a position?",
        "`q_pos[:, None]` has shape (T, 1) and `k_pos[None, :]` has shape (1, S). Compared with "
        "each other, they give (T, S). Join the two conditions with `&`.",
        "return (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)",
    ),
    right=visible,
    cases=[
        Case(run_mask, queries=[3], keys=[0, 1, 2, 3]),
        Case(run_two),
        Case(run_mask, queries=[1], keys=[0, 1, 2, 3]),
        Case(run_mask, queries=[0, 1, 2, 3], keys=[0, 1, 2, 3]),
        Case(run_mask, queries=[0, 1, 2, 3], keys=[0, 1, 2, 3, -1, -1]),
        Case(run_mask, queries=[1, 2], keys=[0, 1, 2, 3, -1, -1]),
        Case(run_mask, queries=[0], keys=[0, 1, 2, 3, -1, -1]),
        Case(run_mask, queries=[2, 3], keys=[2, 3]),
        Case(run_mask, queries=[9, 10], keys=[6, 7, 8, 9]),
        Case(run_mask, queries=[*range(250, 273)], keys=[*range(273)]),
        Case(run_mask, queries=[299, 3, 120], keys=SHUFFLED),
        Case(run_mask, queries=[40_000, 2**31], keys=FAR),
        Case(run_mask, queries=[2**24, 2**53], keys=[2**24 + 1, 2**53 + 1, 5]),
        Case(run_mask, queries=[*range(300)], keys=SHUFFLED),
    ],
    mistakes={
        "every query sees the future: compare positions, k_pos <= q_pos.": sees(
            lambda q, k: k.expand(len(q), -1) >= 0
        ),
        "a query does not see the key of its own position: <=, not <.": sees(
            lambda q, k: (k < q) & (k >= 0)
        ),
        "a query sees an empty slot, whose position is -1: also require k_pos >= 0.": sees(
            lambda q, k: k <= q
        ),
        "a query sees what comes after it, and must see what comes before: <=, not >=.": sees(
            lambda q, k: (k >= q) & (k >= 0)
        ),
        "the mask is transposed: it has a row for each query and a column for each key.": (
            lambda q_pos, k_pos: visible(q_pos, k_pos).T
        ),
        "the key at position 0 is hidden: only -1 marks an empty slot, so a query must see "
        "it.": sees(lambda q, k: (k <= q) & (k > 0)),
        "the mask is a triangle by index, from tril: compare positions.": tril,
        "the keys' positions are ignored: k_pos has each key's position.": forgotten,
        "the keys are numbered from 0, ignoring their positions: k_pos has them.": keys_by_place,
        "the queries are assumed to be consecutive, and one sees the future: each has its own "
        "position.": in_a_row,
        "every query gets the last one's mask and sees the future: each has its own "
        "row.": last_query,
        "a single query sees everything, including the future: its position decides what it "
        "sees.": (alone_sees_all),
        "a second call of the same shapes gets the first one's mask: keep nothing between "
        "calls.": Anew(kept_by_shape),
        "the mask holds floats: it must hold booleans.": as_numbers,
        "the mask holds 0 and -inf: it must hold booleans.": as_infinity,
        "8 bits are too few for a position: keep 64-bit integers.": in_dtype(torch.int8),
        "16 bits are too few for a position: keep 64-bit integers.": in_dtype(torch.int16),
        "32 bits are too few for distant positions: keep 64-bit integers.": (in_dtype(torch.int32)),
        "float32 rounds large positions, so a query sees the future: keep integers.": in_dtype(
            torch.float32
        ),
    },
    advice={
        "the shape of the mask": "It has a row for each query and a column for each key.",
        "the dtype of the mask": "It must hold booleans.",
        "the future": "Compare positions: k_pos <= q_pos.",
        "empty slot": "Also require k_pos >= 0.",
        "a key before it": "Compare positions, however far apart they are.",
        "the mask of a query": "Compare positions, and keep nothing from one call to the next.",
    },
    axes=[("query", "key")],
)
