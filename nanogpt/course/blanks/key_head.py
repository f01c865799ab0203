"""Notebook 08, blank 1: key_head."""

from ..page import Blank


def key_head(h, n_head, n_kv_head):
    """The index of the KV head that query head h reads: an integer below n_kv_head."""
    group = n_head // n_kv_head  # query heads that share
    return h // group


BLANK = Blank(
    number="08.1",
    solution=key_head,
    cases=[],
    mistakes={},
    hints=(
        "Of 12 query heads and 3 KV heads, which query heads read KV head 0, and which is the first to read KV head 1?",
        "How many query heads are in a group? Which group is query head h in?",
        "return h // (n_head // n_kv_head)",
    ),
    advice={
        "the type": "A head's index is an integer: divide with //.",
        "the KV head": "Neighbours share: a group has n_head // n_kv_head query heads, and h // group is its index.",
    },
)
