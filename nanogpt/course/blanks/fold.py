"""Notebook 10, blank 1: fold, which puts the bias of the output layer into the final norm's."""

import torch
from torch import Tensor

from ..drivers import Arguments, form, numbers
from ..page import Blank, Case


def fold(W: Tensor, c: Tensor) -> Tensor:
    """d with W d = c + λ 1 for some number λ.  (V, C), (V,) -> (C,), float64"""
    A = torch.cat([W.double(), -torch.ones(len(W), 1, dtype=torch.float64)], dim=1)
    x = torch.linalg.lstsq(A, c.double()[:, None], driver="gelsd").solution[:, 0]
    return x[: W.shape[1]]


# ------------------------------------------------------------------ what a check runs


NOTHING = 1e-5  # relative to the largest bias: what rounding may leave, also in float32


def run_fold(answer, V, C, dtype=torch.float64):
    """One fold. What counts about d: W d - c is the same number in all rows, whichever it is.

    An answer may round in any way, so small deviations from that number are shown as 0.
    """
    W = numbers(V, C) / C**0.5
    c = numbers(V, seed=1) - 3
    if V > C + 1:  # a bias that can be represented
        c = W @ numbers(C, seed=2) + 0.7
    given = Arguments(W=W.to(dtype), c=c.to(dtype))
    d = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of d", form(d)
    yield "the dtype of d", str(getattr(d, "dtype", "none"))
    off = given.before["W"].double() @ d.double() - given.before["c"].double()
    rest = off - off.mean()
    small = rest.abs() < NOTHING * float(c.abs().max())
    yield "W d - c, minus its mean", rest.masked_fill(small, 0.0)


def run_near_singular(answer):
    """A square system with nearly dependent rows: float64 solves it, float32 does not."""
    W = numbers(9, 8, seed=3)
    W[:, 7] = W[:, 6] + 1e-5 * W[:, 7]
    c = numbers(9, seed=4)
    d = answer(W.float(), c.float())
    off = W.float().double() @ d.double() - c.float().double()
    rounded = float((off - off.mean()).abs().max()) > 1e-4
    what = "in a system that is close to singular W d - c is not the same number in all rows"
    yield what, rounded


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="10.1",
    minutes=6,
    solution=fold,
    cases=[
        Case(run_fold, V=5, C=4),
        Case(run_fold, V=9, C=8, dtype=torch.float32),
        Case(run_fold, V=4, C=6),
        Case(run_fold, V=30, C=6),
        Case(run_near_singular),
    ],
    mistakes={
        "W d misses c, because there are more equations than unknowns: make λ one more unknown, a column of -1 in the matrix.": [
            "torch.cat([W.double(), -torch.ones(len(W), 1, dtype=torch.float64)], dim=1) -> W.double()"
        ],
        "λ is fixed in advance, as when the mean or a bias is subtracted from c: it must be free, as one more unknown, a column of -1.": [
            "torch.cat([W.double(), -torch.ones(len(W), 1, dtype=torch.float64)], dim=1) -> W.double()",
            "c.double() -> (c - c.mean()).double()",
        ],
        "the sign is wrong: W d must add the bias c, but yours subtracts it.": [
            "return x -> return -x"
        ],
        "float32 is too coarse: compute in float64 from the beginning, W.double() and c.double(), and leave the result there.": (
            [
                "W.double() -> W",
                "c.double() -> c",
                "float64 -> float32",
                "-torch.ones -> -W.new_ones",
                "dtype=torch.float32 -> dtype=W.dtype",
            ],
            [
                "double() -> float()",
                "float64 -> float32",
                "x[: W.shape[1]] -> x[: W.shape[1]].double()",
            ],
        ),
    },
    wrong=[
        "A = -> W -= W.mean(0)\n    A =",
        "c.double() -> c.double() / c.norm()",
        "x[: W.shape[1]] -> x",
    ],
    right=[
        """
def fold(W, c):
    W, c = W.double(), c.double()
    return torch.linalg.pinv(W - W.mean(0)) @ (c - c.mean())
""",
        """
def fold(W, c):
    import numpy as np

    A = np.column_stack([np.full(len(W), 5.0), W.double().numpy()])
    x, *_ = np.linalg.lstsq(A, c.double().numpy(), rcond=None)
    return torch.from_numpy(x[1:])
""",
        """
def fold(W, c):
    W, c = W.double(), c.double()
    return (torch.linalg.pinv(W[1:] - W[:1]) @ (c[1:] - c[:1])[:, None])[:, 0]
""",
    ],
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
    },
    axes=[("row",)],
)
