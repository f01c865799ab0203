"""Notebook 10, blank 1: fold."""

import torch
from torch import Tensor

from ..page import Blank


def fold(W: Tensor, c: Tensor) -> Tensor:
    """d with W d = c + λ 1 for some number λ.  (V, C), (V,) -> (C,), float64"""
    A = torch.cat([W.double(), -torch.ones(len(W), 1, dtype=torch.float64)], dim=1)
    x = torch.linalg.lstsq(A, c.double()[:, None], driver="gelsd").solution[:, 0]
    return x[: W.shape[1]]


BLANK = Blank(
    number="10.1",
    solution=fold,
    cases=[],
    mistakes={},
    hints=(
        "W d = c + λ 1, and λ is also unknown. With both on the left side, it reads W d - λ 1 = c: which matrix multiplies the vector (d, λ)?",
        "`torch.cat([W, column], dim=1)` with a column of minus ones, in float64. The first C numbers of the solution are d.",
        "A = torch.cat([W.double(), -torch.ones(len(W), 1, dtype=torch.float64)], dim=1); x = torch.linalg.lstsq(A, c.double()[:, None]).solution[:, 0]; return x[: W.shape[1]]",
    ),
    advice={
        "the shape of d": "A vector of C numbers: the first ones of the solution, without λ.",
        "the dtype of d": "Compute in float64 from the beginning: W.double().",
        "W d - c, minus": "It is 0 in all rows if W d - c is the same number in all of them. The new column of the matrix belongs to λ: the same number in each row.",
        "close to singular": "Compute in float64 from the beginning: W.double().",
        "your code raised": "The matrix has shape (V, C + 1), for any V, and the right-hand side (V, 1).",
    },
    axes=[("row",)],
)
