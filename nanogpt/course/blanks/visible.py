"""Notebook 02, blank 1: visible."""

from ..page import Blank


def visible(q_pos, k_pos):
    """True where the query at q_pos may attend to the key at k_pos.  (T,), (S,) -> (T, S) of bool"""
    return (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)


BLANK = Blank(
    number="02.1",
    solution=visible,
    cases=[],
    mistakes={},
    hints=(
        "Which key positions may the query at position 5 see? And what does an empty slot have instead of a position?",
        "`q_pos[:, None]` has shape (T, 1) and `k_pos[None, :]` has shape (1, S). Compared with each other, they give (T, S). Join the two conditions with `&`.",
        "return (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)",
    ),
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
