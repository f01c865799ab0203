"""Notebook 08, blank 1: key_head, the KV head that a query head reads in grouped-query attention."""

from ..drivers import kind, whole
from ..page import Blank, Case


def key_head(h, n_head, n_kv_head):
    """The index of the KV head that query head h reads: an integer below n_kv_head."""
    group = n_head // n_kv_head  # query heads that share
    return h // group


# ------------------------------------------------------------------ what a check runs


def run_heads(answer, n_head, n_kv_head):
    """The KV heads of all query heads."""
    got = [whole(answer(h, n_head, n_kv_head)) for h in range(n_head)]
    yield "the type of the numbers of KV heads", " and ".join(sorted({*map(kind, got)}))
    yield f"the KV heads that query heads 0 to {n_head - 1} read", got


def run_any_order(answer):
    """Single calls for models of several shapes."""
    for h, n_head, n_kv_head in ((63, 64, 8), (2, 3, 3), (11, 12, 3), (5, 8, 1), (0, 32, 8)):
        what = f"the KV head of query head {h} of {n_head}, with {n_kv_head} KV heads"
        yield what, whole(answer(h, n_head, n_kv_head))


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="08.1",
    minutes=5,
    solution=key_head,
    cases=[
        Case(run_heads, n_head=12, n_kv_head=3),
        Case(run_heads, n_head=4, n_kv_head=2),
        Case(run_heads, n_head=6, n_kv_head=2),
        Case(run_heads, n_head=4, n_kv_head=1),
        Case(run_heads, n_head=4, n_kv_head=4),
        Case(run_any_order),
        Case(run_heads, n_head=64, n_kv_head=8),
    ],
    mistakes={
        "the heads are dealt out like cards, with %: neighbours share, so divide h by the group size.": [
            "h // group -> h % n_kv_head"
        ],
        "the quotient is rounded to nearest, which moves heads into the next group: // rounds down.": [
            "h // group -> round(h / group)"
        ],
        "all query heads get KV head 0: that is MQA, but there may be more KV heads.": [
            "h // group -> 0"
        ],
        "KV heads are numbered from 0: yours begin with 1.": ["h // group -> h // group + 1"],
    },
    wrong=[
        "n_head // n_kv_head -> max(n_head - n_kv_head, 1)",
    ],
    right=[
        """
def key_head(h, n_head, n_kv_head):
    import numpy as np

    return np.repeat(np.arange(n_kv_head), n_head // n_kv_head)[h]
""",
        """
def key_head(h, n_head, n_kv_head):
    return int(h / (n_head / n_kv_head))
""",
    ],
    hints=(
        "Of 12 query heads and 3 KV heads, which query heads read KV head 0, and which is the first to read KV head 1?",
        "How many query heads are in a group? Which group is query head h in?",
        "return h // (n_head // n_kv_head)",
    ),
    advice={
        "the KV head": "Neighbours share: a group has n_head // n_kv_head query heads, and h // group is its index.",
    },
)
