"""Notebook 10, blank 2: flip, the mirror image that turns one convention of rotary positions into another."""

import torch
from torch import Tensor

from ..drivers import Arguments, form, numbers
from ..page import Blank, Case


def flip(rows: Tensor, n_head: int) -> Tensor:
    """The same matrix with the second half of each head's rows negated.  (H·hs, C) -> (H·hs, C)"""
    halves = rows.view(n_head, 2, -1, rows.shape[1])
    return torch.cat([halves[:, :1], -halves[:, 1:]], dim=1).reshape(rows.shape)


# ------------------------------------------------------------------ what a check runs


def run_flip(answer, heads, size, width, dtype=torch.float32):
    """The returned matrix, described by the signs of its rows."""
    given = Arguments(rows=numbers(heads * size, width, seed=heads).to(dtype))
    rows = given.before["rows"]
    got = answer(given.tensors["rows"], heads)
    yield from given.changes()
    yield "the shape of the matrix", form(got)
    yield "the dtype of the matrix", str(getattr(got, "dtype", "none"))
    moved = bool((got.abs() != rows.abs()).any())
    yield "rows are moved, or numbers are changed: only signs may change", moved
    alike = (got.abs()[:, None] == rows.abs()).all(-1)
    old = torch.where(alike.any(1), alike.int().argmax(1), -1)
    yield "the old row at each position", old
    signs = ["".join(map(sign_of, head)) for head in (got * rows).view(heads, size, width)]
    yield "the signs of the rows, head by head", " ".join(signs)


def sign_of(row):
    """Whether a row was kept, negated or partly negated, by its products with the old one."""
    if (row > 0).all():
        return "+"
    return "-" if (row < 0).all() else "?"


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="10.2",
    minutes=5,
    solution=flip,
    cases=[
        Case(run_flip, heads=3, size=4, width=5),
        Case(run_flip, heads=1, size=6, width=3),
        Case(run_flip, heads=3, size=6, width=2),
        Case(run_flip, heads=4, size=8, width=8, dtype=torch.float64),
        Case(run_flip, heads=6, size=2, width=1, dtype=torch.bfloat16),
    ],
    mistakes={
        "every second row is negated: the two rows of a pair are not neighbours. Row i of a head pairs with row i + hs/2.": [
            "view(n_head, 2, -1, rows.shape[1]) -> view(-1, 2, 1, rows.shape[1])"
        ],
        "the second half of the whole matrix is negated: it has n_head heads, and the second half of each is.": [
            "view(n_head, -> view(1,"
        ],
        "the halves change places: negate the second one where it is, and move nothing.": [
            "[halves[:, :1], -halves[:, 1:]] -> [-halves[:, 1:], halves[:, :1]]"
        ],
        "columns are negated: the matrix has a row for each number of a head, so negate rows.": [
            """
def flip(rows, n_head):
    left, right = rows.tensor_split(2, dim=1)
    return torch.cat([left, -right], dim=1)
"""
        ],
        "the heads are left as a separate dimension: reshape the matrix to the shape of `rows`.": [
            ".reshape(rows.shape) -> "
        ],
        "your code changes `rows`, which is the model's own matrix: return a new one.": [
            """
def flip(rows, n_head):
    rows.view(n_head, 2, -1, rows.shape[1])[:, 1] *= -1
    return rows
"""
        ],
    },
    wrong=[
        "-halves[:, 1:] -> halves[:, 1:]",
        "-halves[:, 1:] -> 0 * halves[:, 1:]",
        "-halves[:, 1:] -> -halves[:, 1:].abs()",
        "reshape(rows.shape) -> reshape(rows.shape).float()",
    ],
    right=[
        """
def flip(rows, n_head):
    parts = rows.chunk(2 * n_head)
    return torch.cat([-part if i % 2 else part for i, part in enumerate(parts)])
""",
        """
def flip(rows, n_head):
    hs = rows.shape[0] // n_head
    second = torch.arange(rows.shape[0]) % hs >= hs // 2
    return torch.where(second[:, None], -rows, rows)
""",
        """
def flip(rows, n_head):
    heads = rows.unflatten(0, (n_head, 2, -1)).clone()
    heads[:, 1].neg_()
    return heads.flatten(0, 2)
""",
    ],
    hints=(
        "Two heads of 4 rows each make 8 rows: which of them are the b's?",
        "`rows.view(n_head, 2, -1, rows.shape[1])` has the two halves of each head on its second axis. Negate one of them in a new tensor, and reshape it to the old shape.",
        "halves = rows.view(n_head, 2, -1, rows.shape[1]); return torch.cat([halves[:, :1], -halves[:, 1:]], dim=1).reshape(rows.shape)",
    ),
    advice={
        "the shape of the matrix": "It keeps the shape of `rows`: .reshape(rows.shape).",
        "rows are moved": "Negate the second half of each head, and leave every row where it is.",
        "the signs": "A - is a negated row, a ? a partly negated one. Negate the second half of each head.",
    },
)
