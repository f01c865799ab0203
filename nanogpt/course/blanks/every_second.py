"""Notebook 08, blank 3: every_second, an attention pattern that works with a cache."""

import torch

from ..drivers import Arguments, form
from ..page import Blank, Case
from .visible import visible


def every_second(q_pos, k_pos, window=None, sinks=0):
    """True where the query at q_pos sees the key at k_pos.  (T,), (S,) -> (T, S)"""
    gap = q_pos[:, None] - k_pos[None, :]
    return visible(q_pos, k_pos) & (gap % 2 == 0)


# ------------------------------------------------------------------ what a check runs


def run_pattern(answer, queries, keys, more=()):
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
    past = ~empty & (gap > 0)
    odd = past & (gap % 2 == 1)
    yield "a query sees a key at an odd distance, which it should skip", bool((mask & odd).any())
    even = past & (gap % 2 == 0)
    yield "a query does not see a key at an even distance before it", bool((~mask & even).any())
    yield "the mask", mask


def run_two(answer):
    """Two calls of the same shapes."""
    keys = torch.arange(9)
    for query in (2, 5):
        yield f"the mask of a query at {query} for 9 keys", answer(torch.tensor([query]), keys)


RING = [10, 11, 12, 5, 6, 7, 8, 9]  # positions in the order of a ring's slots
FAR = [0, 40_000, 3, -1, 2**31, 39_999, 2**53 - 1, 2**53 + 1]


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="08.3",
    minutes=5,
    solution=every_second,
    cases=[
        Case(run_pattern, queries=[*range(2, 8)], keys=[*range(8)]),
        Case(run_pattern, queries=[0, 1, 2], keys=[0, 1, 2]),
        Case(run_two),
        Case(run_pattern, queries=[7], keys=[*range(8)]),
        Case(run_pattern, queries=[4], keys=[*range(8)]),
        Case(run_pattern, queries=[2, 3], keys=[0, 1, 2, 3, -1, -1]),
        Case(run_pattern, queries=[5, 6, 7], keys=[*range(8)]),
        Case(run_pattern, queries=[38, 39], keys=[*range(5, 40)]),
        Case(run_pattern, queries=[9, 12, 10], keys=RING),
        Case(run_pattern, queries=[9, 10], keys=[*range(12)], more=(4, 1)),
        Case(run_pattern, queries=[40_000, 2**31, 2**53], keys=FAR),
    ],
    mistakes={
        "a query sees a key after its own: also require a gap of at least 0, as visible(q_pos, k_pos) does.": [
            "visible(q_pos, k_pos) -> (k_pos[None, :] >= 0)"
        ],
        "a query sees an empty slot: also require that k_pos is at least 0, as visible(q_pos, k_pos) does.": [
            "visible(q_pos, k_pos) -> (gap >= 0)"
        ],
        "a query does not see itself, and the one at 0 sees no key, so its softmax is NaN: the gap 0 is also even.": [
            "gap % 2 == 0 -> (gap % 2 == 0) & (gap > 0)"
        ],
        "it uses indices into the array of keys: in a cache the keys may begin anywhere, in any order. Compute with the values in q_pos and k_pos.": (
            ["gap % 2 -> torch.arange(len(k_pos)) % 2"],
            ["k_pos[None, :] -> torch.arange(len(k_pos))"],
        ),
        "all queries see even positions, but a query at 7 sees 7, 5, 3 and 1: use the gap.": [
            "gap % 2 -> k_pos[None, :] % 2"
        ],
        "& binds more tightly than ==, so the mask is compared with 0: put gap % 2 == 0 in parentheses.": [
            "(gap % 2 == 0) -> gap % 2 == 0"
        ],
    },
    wrong=[
        "q_pos[:, None] -> q_pos.float()[:, None]",
        "gap % 2 -> gap % (2 + (len(q_pos) == 1))",
        "gap % 2 == 0 -> (gap % 2 == 0) | (q_pos[:, None] < 2)",
        "window=None, sinks=0 -> *, window=None, sinks=0",
        "return visible(q_pos, k_pos) & (gap % 2 == 0) -> return (visible(q_pos, k_pos) & (gap % 2 == 0)) * 1.0",
    ],
    right=[
        """
def every_second(q_pos, k_pos, window=None, sinks=0):
    rows = [[k in range(q, -1, -2) for k in k_pos.tolist()] for q in q_pos.tolist()]
    return torch.tensor(rows)
""",
        """
def every_second(q_pos, k_pos, *unused):
    mask = visible(q_pos, k_pos)
    mask[(q_pos[:, None] ^ k_pos) & 1 == 1] = False
    return mask
""",
    ],
    hints=(
        "Query 7 sees 7, 5, 3 and 1, and query 4 sees 4, 2 and 0. What do the gaps 0, 2, 4 and 6 have in common?",
        "Start from `visible(q_pos, k_pos)`, which handles the future and empty slots. Which gaps between query and key should remain?",
        "gap = q_pos[:, None] - k_pos[None, :], then return visible(q_pos, k_pos) & (gap % 2 == 0)",
    ),
    advice={
        "its own token": "A gap of 0 is even, and True means visible.",
        "the future": "Require a gap of at least 0, as visible(q_pos, k_pos) does, and join conditions with &.",
        "at an odd distance": "Require gap % 2 == 0, with the gap between the positions, which stay integers, whatever the number of queries.",
    },
    axes=[("query", "key")],
)
