"""Notebook 09, blank 1: ragged_mask."""

from ..page import Blank


def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    """True where a query may attend to a key of its own sequence, not after it.  (N,) twice, (S,) twice -> (N, S)"""
    same = q_seq[:, None] == k_seq[None, :]
    return same & (k_pos[None, :] <= q_pos[:, None])


BLANK = Blank(
    number="09.1",
    solution=ragged_mask,
    cases=[],
    mistakes={},
    hints=(
        "Sequence 1 is at position 4. Which keys of sequence 0 may it see, and which of its own?",
        "`q_seq[:, None] == k_seq[None, :]` compares every query with every key: (N, 1) and (1, S) give (N, S). Join it with the rule of notebook 02 by `&`.",
        "return (q_seq[:, None] == k_seq[None, :]) & (k_pos[None, :] <= q_pos[:, None])",
    ),
    advice={
        "the shape of the mask": "It has a row for each query and a column for each key.",
        "the dtype of the mask": "It must hold booleans.",
        "another sequence": "Also compare the sequences: q_seq == k_seq.",
        "the future": "Compare positions: k_pos <= q_pos.",
        "does not see": "It sees the keys of its sequence up to its own position.",
        "the mask of": "Compare sequences and positions, and keep nothing between calls.",
        "must match the size": "q_seq[:, None] has shape (N, 1) and k_seq[None, :] has shape (1, S): compared with each other, they give (N, S).",
        "is ambiguous": "Join masks with `&`, element by element, and put each comparison in parentheses.",
    },
    axes=[("query", "key")],
)
