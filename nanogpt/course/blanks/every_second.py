"""Notebook 08, blank 3: every_second."""

from ..page import Blank
from .visible import visible


def every_second(q_pos, k_pos, window=None, sinks=0):
    """True where the query at q_pos sees the key at k_pos.  (T,), (S,) -> (T, S)"""
    gap = q_pos[:, None] - k_pos[None, :]
    return visible(q_pos, k_pos) & (gap % 2 == 0)


BLANK = Blank(
    number="08.3",
    solution=every_second,
    cases=[],
    mistakes={},
    hints=(
        "Query 7 sees 7, 5, 3 and 1, and query 4 sees 4, 2 and 0. What do the gaps 0, 2, 4 and 6 have in common?",
        "Start from `visible(q_pos, k_pos)`, which handles the future and empty slots. Which gaps between query and key should remain?",
        "gap = q_pos[:, None] - k_pos[None, :], then return visible(q_pos, k_pos) & (gap % 2 == 0)",
    ),
    advice={
        "the shape of the mask": "It must hold booleans, with a row for each query and a column for each key: compare q_pos[:, None] with k_pos[None, :].",
        "the dtype of the mask": "It must hold booleans.",
        "its own token": "A gap of 0 is even.",
        "the future": "Require a gap of at least 0, as visible(q_pos, k_pos) does.",
        "empty slot": "Also require that k_pos is at least 0, as visible(q_pos, k_pos) does.",
        "at an odd distance": "Require gap % 2 == 0, with the gap between the positions.",
        "at an even distance": "All even gaps are visible, however large, whatever `window` is.",
        "the mask of a query": "Compare positions, and keep nothing from one call to the next.",
        "the logits": "Only positions decide: not the number of queries, not the order of keys, not an earlier call.",
    },
    axes=[("query", "key")],
)
