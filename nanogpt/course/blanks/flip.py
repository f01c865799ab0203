"""Notebook 10, blank 2: flip."""

import torch
from torch import Tensor

from ..page import Blank


def flip(rows: Tensor, n_head: int) -> Tensor:
    """The same matrix with the second half of each head's rows negated.  (H·hs, C) -> (H·hs, C)"""
    halves = rows.view(n_head, 2, -1, rows.shape[1])
    return torch.cat([halves[:, :1], -halves[:, 1:]], dim=1).reshape(rows.shape)


BLANK = Blank(
    number="10.2",
    solution=flip,
    cases=[],
    mistakes={},
    hints=(
        "Two heads of 4 rows each make 8 rows: which of them are the b's?",
        "`rows.view(n_head, 2, -1, rows.shape[1])` has the two halves of each head on its second axis. Negate one of them in a new tensor, and reshape it to the old shape.",
        "halves = rows.view(n_head, 2, -1, rows.shape[1]); return torch.cat([halves[:, :1], -halves[:, 1:]], dim=1).reshape(rows.shape)",
    ),
    advice={
        "the shape of the matrix": "It keeps the shape of `rows`.",
        "the dtype of the matrix": "It keeps its dtype.",
        "rows are moved": "Negate one half of each head, and leave every row where it is.",
        "the signs": "A - is a negated row, a ? a partly negated one. Negate one half of each head.",
        "your code raised": "The matrix has n_head times an even number of rows: rows.view(n_head, 2, -1, rows.shape[1]).",
    },
)
