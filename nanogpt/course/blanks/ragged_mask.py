"""Notebook 09, blank 1: ragged_mask, one mask for the tokens of several sequences."""

import torch

from ..drivers import Arguments, form
from ..page import Blank, Case


def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    """True where a query may attend to a key of its own sequence, not after it.  (N,) twice, (S,) twice -> (N, S)"""
    same = q_seq[:, None] == k_seq[None, :]
    return same & (k_pos[None, :] <= q_pos[:, None])


# ------------------------------------------------------------------ what a check runs


def run_ragged(answer, queries, keys):
    """The mask of a step, and what is wrong with it, by kind of key. A token is (sequence, position)."""
    q_seq, q_pos = torch.tensor(queries).T.contiguous()
    k_seq, k_pos = torch.tensor(keys).T.contiguous()
    parts = {"q_seq": q_seq, "q_pos": q_pos, "k_seq": k_seq, "k_pos": k_pos}
    given = Arguments(**{name: part.clone() for name, part in parts.items()})
    mask = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the mask", form(mask)
    yield "the dtype of the mask", str(getattr(mask, "dtype", "none"))
    own = q_seq[:, None] == k_seq
    gap = q_pos[:, None] - k_pos
    yield "a query sees a key of another sequence", bool((mask & ~own).any())
    blind = ~mask & own
    yield "a query does not see the key of its own position", bool((blind & (gap == 0)).any())
    future = mask & own & (gap < 0)
    yield "a query sees a later key of its own sequence, which is the future", bool(future.any())
    yield "a query does not see an earlier key of its own sequence", bool((blind & (gap > 0)).any())
    yield "the mask", mask


def run_two_steps(answer):
    """Two steps of the same shapes."""
    keys = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]])
    for seq, pos in ((0, 1), (1, 0)):
        mask = answer(torch.tensor([seq]), torch.tensor([pos]), *keys.clone())
        yield f"the mask of a query at position {pos} of sequence {seq}", mask


def positions_of(*lengths):
    """The tokens of sequences 0, 1, 2 … of these lengths, one sequence after the other."""
    return [(seq, pos) for seq, length in enumerate(lengths) for pos in range(length)]


def shuffled(tokens, seed):
    """The same tokens in another order."""
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))
    return [tokens[i] for i in order.tolist()]


MANY = shuffled(positions_of(*range(1, 13)), seed=0)
FAR = [(1, 2), (9, 5), (9, 39_999), (9, 40_001), (1, 3_000_001), (2, 5)]


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="09.1",
    minutes=7,
    solution=ragged_mask,
    cases=[
        Case(run_ragged, queries=[(0, 2), (1, 0), (1, 1)], keys=positions_of(3, 2)),
        Case(run_ragged, queries=[(0, 1)], keys=positions_of(4)),
        Case(run_two_steps),
        Case(run_ragged, queries=[(1, 3), (0, 4)], keys=positions_of(5, 4)),
        Case(run_ragged, queries=[(0, 5), (1, 0), (1, 1), (2, 4)], keys=positions_of(6, 2, 5)),
        Case(run_ragged, queries=[(7, 1), (3, 0)], keys=[(3, 0), (7, 0), (3, 1), (7, 1)]),
        Case(run_ragged, queries=[(9, 40_000), (1, 3_000_000)], keys=FAR),
        Case(run_ragged, queries=shuffled(MANY, seed=1)[:20], keys=MANY),
    ],
    mistakes={
        "positions are not compared, so a query sees the future: also require k_pos <= q_pos.": [
            "same & (k_pos[None, :] <= q_pos[:, None]) -> same"
        ],
        "a query does not see the key of its own position, which this step has just written: <=, not <.": [
            "<= -> <"
        ],
        "the two conditions are joined by `or`: a key must satisfy both, so use &.": [
            "same & -> same | "
        ],
        "a query also sees sequences with other numbers: sequences must be equal, ==.": [
            "== k_seq -> >= k_seq"
        ],
        "sequence and position are packed into one number, and long sequences overlap: compare the sequences with ==, and the positions with <=.": [
            """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    q = (1000 * q_seq + q_pos)[:, None]
    k = (1000 * k_seq + k_pos)[None, :]
    return (k <= q) & (k >= 1000 * q_seq[:, None])
"""
        ],
    },
    wrong=[
        "None]) -> None]) & (k_pos > 0)",
        "(k_pos[None, :] <= q_pos[:, None]) -> torch.ones(len(q_pos), len(k_pos)).tril(len(k_pos) - len(q_pos)).bool()",
        "return same & (k_pos[None, :] <= q_pos[:, None]) -> return (same & (k_pos[None, :] <= q_pos[:, None])).float()",
        "k_pos[None, :] <= q_pos[:, None] -> k_pos.short() <= q_pos.short()[:, None]",
        """
def ragged_mask(q_seq, q_pos, k_seq, k_pos, kept={}):
    mask = (q_seq[:, None] == k_seq) & (k_pos <= q_pos[:, None])
    return kept.setdefault(mask.shape, mask)
""",
    ],
    right=[
        """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    mask = torch.zeros(len(q_seq), len(k_seq), dtype=torch.bool)
    for i in range(len(q_seq)):
        for j in range(len(k_seq)):
            if q_seq[i] == k_seq[j] and k_pos[j] <= q_pos[i]:
                mask[i, j] = True
    return mask
""",
        """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    hidden = (q_seq[:, None] != k_seq) | (k_pos > q_pos[:, None])
    return ~hidden
""",
        """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    return visible(q_pos, k_pos) & torch.stack([seq == k_seq for seq in q_seq])
""",
    ],
    hints=(
        "Sequence 1 is at position 4. Which keys of sequence 0 may it see, and which of its own?",
        "`q_seq[:, None] == k_seq[None, :]` compares every query with every key: (N, 1) and (1, S) give (N, S). Join it with the rule of notebook 02 by `&`.",
        "return (q_seq[:, None] == k_seq[None, :]) & (k_pos[None, :] <= q_pos[:, None])",
    ),
    advice={
        "another sequence": "Require q_seq == k_seq of every key, whatever its position.",
        "the future": "Require k_pos <= q_pos, of the positions and not of indices.",
        "does not see": "It sees all keys of its sequence up to its own position.",
    },
    axes=[("query", "key")],
)
