"""Notebook 02, blank 1: visible, the causal mask from the positions of queries and keys."""

import torch

from ..drivers import Arguments, form
from ..page import Blank, Case


def visible(q_pos, k_pos):
    """True where the query at q_pos may attend to the key at k_pos.  (T,), (S,) -> (T, S) of bool"""
    return (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)


# ------------------------------------------------------------------ what a check runs

# Positions of 300 slots, out of order; one is empty.
SHUFFLED = torch.randperm(300, generator=torch.Generator().manual_seed(0)).sub(1).tolist()


def run_mask(answer, queries, keys):
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


def run_two(answer):
    """Two calls of the same shapes."""
    keys = torch.arange(9)
    for query in (2, 5):
        yield f"the mask of a query at {query} for 9 keys", answer(torch.tensor([query]), keys)


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="02.1",
    minutes=4,
    solution=visible,
    cases=[
        Case(run_mask, queries=[0, 1, 2, 3], keys=[0, 1, 2, 3]),
        Case(run_mask, queries=[1, 2], keys=[0, 1, 2, 3]),
        Case(run_mask, queries=[1], keys=[0, 1, 2, 3]),
        Case(run_two),
        Case(run_mask, queries=[1, 2, 3], keys=[0, 1, 2, 3, -1, -1]),
        Case(run_mask, queries=[0], keys=[0, -1, -1]),
        Case(run_mask, queries=[7, 9], keys=[6, 7, 8, 9]),
        Case(run_mask, queries=[40], keys=[*range(41)]),  # far back
        Case(run_mask, queries=[*range(250, 270)], keys=SHUFFLED[:20]),
        Case(run_mask, queries=[299, 3, 120], keys=SHUFFLED),
        Case(run_mask, queries=[40_000, 2**31], keys=[0, 40_000, 3, -1, 2**31, 39_999]),
        Case(run_mask, queries=[2**24, 2**53], keys=[2**24 + 1, 2**53 + 1, 5]),
    ],
    mistakes={
        "a query does not see the key of its own position: <=, not <.": ["<= -> <"],
        "a query sees what comes after it, and must see what comes before: <=, not >=.": [
            "<= -> >="
        ],
        "the mask is transposed: it has a row for each query and a column for each key.": [
            "(k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0) -> "
            "(k_pos[:, None] <= q_pos[None, :]) & (k_pos[:, None] >= 0)"
        ],
        "the mask goes by index, from tril or arange, but a query or a key has the position passed "
        "in: k_pos <= q_pos.": (
            [
                "k_pos[None, :] <= q_pos[:, None] -> torch.ones(len(q_pos), len(k_pos)).tril().bool()"
            ],
            [
                "k_pos[None, :] <= q_pos[:, None] -> "
                "torch.ones(len(q_pos), len(k_pos)).tril(len(k_pos) - len(q_pos)).bool()"
            ],
        ),
        "all queries get one row, so some see the future, or miss the past: each has its own.": [
            "q_pos[:, None] -> q_pos[-1:, None].expand(len(q_pos), 1)"
        ],
        "the columns of empty slots are left out: every key has a column, and theirs are False.": [
            "return -> k_pos = k_pos[k_pos >= 0]\n    return"
        ],
        "the mask holds numbers: it must hold booleans, True where a query may attend.": (
            [">= 0) -> >= 0) * 1.0"],
            [
                "return -> mask =",
                ">= 0) -> >= 0)\n    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)",
            ],
        ),
    },
    wrong=[
        ">= 0) -> >= (q_pos[:, None] - 199).clamp(min=0))",
        "return -> k_pos[k_pos < 0] = 10**9\n    return",
        " & (k_pos[None, :] >= 0) -> ",
        "k_pos[None, :] <= -> torch.arange(len(k_pos))[None, :] <=",
        "q_pos[:, None] -> (q_pos[0] + torch.arange(len(q_pos)))[:, None]",
    ],
    right=[
        """
def visible(q_pos, k_pos):
    q, k = q_pos.numpy(), k_pos.numpy()
    return torch.from_numpy((k[None] >= 0) & (k[None] <= q[:, None]))
""",
        """
def visible(q_pos, k_pos):
    mask = torch.zeros(len(q_pos), len(k_pos), dtype=torch.bool)
    keys = k_pos.tolist()
    for i, q in enumerate(q_pos.tolist()):
        mask[i] = torch.tensor([0 <= key <= q for key in keys])
    return mask
""",
        """
def visible(q_pos, k_pos):
    return torch.vmap(lambda q: (k_pos <= q) & (0 <= k_pos))(q_pos)
""",
    ],
    hints=(
        "Which key positions may the query at position 5 see? And what does an empty slot have instead of a position?",
        "`q_pos[:, None]` has shape (T, 1) and `k_pos[None, :]` has shape (1, S). Compared with each other, they give (T, S). Join the two conditions with `&`.",
        "return (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)",
    ),
    advice={
        "the shape of the mask": "It is a tensor with a row for each query and a column for each key: q_pos[:, None] and k_pos[None, :] broadcast to it.",
        "the dtype of the mask": "It must hold booleans: True where a query may attend.",
        "its own token": "There k_pos <= q_pos, and k_pos >= 0.",
        "the future": "Compare positions: k_pos <= q_pos.",
        "empty slot": "Also require k_pos >= 0.",
    },
    axes=[("query", "key")],
)
