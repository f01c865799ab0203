"""Notebook 12, blank 2: row_by_row, a product whose rows do not depend on each other."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ..drivers import Arguments, form, numbers
from ..page import Blank, Case


def row_by_row(x, weight):
    """x times weight transposed, one row at a time.  (…, K), (N, K) -> (…, N)"""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.cat([F.linear(row[None], weight) for row in rows])
    return out.view(*x.shape[:-1], len(weight))


# ------------------------------------------------------------------ what a check runs


aten = torch.ops.aten


class Products(TorchDispatchMode):
    """Records the factors of all matrix products, whichever function computed them."""

    def __init__(self):
        super().__init__()
        self.factors = []  # (…, m, K) and (…, K, n)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func in (aten.mm.default, aten.bmm.default):
            self.factors.append((args[0], args[1]))
        elif func in (aten.addmm.default, aten.baddbmm.default):
            self.factors.append((args[1], args[2]))
        elif func is aten.mv.default:
            self.factors.append((args[0], args[1][:, None]))
        self.note(func, args, out)
        return out

    def note(self, func, args, out):
        """A hook for what else a subclass wants to know about an operation."""


def rows_at_once(watch, x):
    """The largest number of rows of x in one product, on either side."""
    return max((rows_of(a.mT, b, x) for a, b in watch.factors), default=1)


def rows_of(a, b, x):
    """How many rows of x a product of aᵀ and b contains; both (…, K, n), one vector per column."""
    for factor in (a, b):
        first = factor[..., 0].reshape(-1, factor.shape[-2])[0]
        if len(first) == x.shape[-1] and bool((x == first).all(-1).any()):
            return factor.shape[-1]
    return min(a.shape[-1], b.shape[-1])  # scaled copies: the smaller side is x


def run_rows(answer, shape, N, dtype=torch.float32):
    """The product, and how many rows are multiplied at once."""
    x = numbers(*shape, seed=1).to(dtype)
    given = Arguments(x=x, weight=numbers(N, shape[-1], seed=2).to(dtype))
    with Products() as watch:
        out = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the product", form(out)
    yield "the product", out
    rows = given.before["x"].view(-1, shape[-1])
    with torch.no_grad():
        yield "the rows of x that one product gets", rows_at_once(watch, rows)


def run_alone(answer, rows, N, K):
    """Whether the first rows are bit-identical alone and among all rows."""
    x = numbers(rows, K, dtype=torch.float32)
    weight = numbers(N, K, seed=2, dtype=torch.float32)
    together = answer(x, weight)
    for n in (1, 2, 17):
        same = torch.equal(answer(x[:n], weight), together[:n])
        yield f"the first {n} of {rows} rows have other last bits alone", not same


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="12.2",
    minutes=8,
    solution=row_by_row,
    cases=[
        Case(run_rows, shape=(5, 8), N=6),
        Case(run_rows, shape=(2, 3, 8), N=7),
        Case(run_rows, shape=(1, 8), N=3),
        Case(run_rows, shape=(6, 6), N=6, dtype=torch.float64),
        Case(run_rows, shape=(4, 1, 8), N=5),
        Case(run_rows, shape=(2, 3, 2, 8), N=5),
        Case(run_alone, rows=64, N=256, K=384),
    ],
    mistakes={
        "all rows are multiplied at once, so the order of a row's sum depends on how many rows there are: use one product per row. `@` of (R, 1, K) and one matrix is one product of all rows again, and so is vmap.": (
            ["\ndef row_by_row(x, weight):\n    return F.linear(x, weight)\n"],
            [
                "\ndef row_by_row(x, weight):\n    return F.linear(x.double(), weight.double()).to(x.dtype)\n"
            ],
        ),
        "several rows are multiplied at once: multiply one row at a time.": (
            ["row[None] -> row", "in rows -> in rows.split(2)"],
            ["row[None] -> row", "in rows -> in rows.split(4)"],
        ),
        "each column is computed separately, but for all rows at once: process the rows one by one.": [
            "\ndef row_by_row(x, weight):\n    return torch.stack([x @ column for column in weight], dim=-1)\n"
        ],
    },
    wrong=[
        "F.linear(row[None], weight) -> row[None] @ weight",
        "in rows] -> in rows.flip(0)]",
        "row[None], weight -> row[None], weight, weight[:, 0]",
        "in rows] -> in rows[:-1]]",
        "x.reshape(-1, x.shape[-1]) -> x.view(len(x), x.shape[1])",
    ],
    right=[
        """
def row_by_row(x, weight):
    rows = x.reshape(-1, 1, x.shape[-1])
    out = torch.bmm(rows, weight.mT.expand(len(rows), -1, -1))
    return out.reshape(*x.shape[:-1], -1)
""",
        """
def row_by_row(x, weight):
    if x.ndim == 1:
        return weight @ x
    return torch.stack([row_by_row(part, weight) for part in x])
""",
        """
def row_by_row(x, weight):
    rows = [(row * weight).sum(-1) for row in x.reshape(-1, x.shape[-1])]
    return torch.stack(rows).reshape(*x.shape[:-1], len(weight))
""",
    ],
    hints=(
        "One row is (1, K). Which products with the weights (N, K) contain that row and no other?",
        "`x.reshape(-1, K)` contains all rows, also those of a batch. A loop over them works: `F.linear(row[None], weight)`. So does `torch.bmm` of (R, 1, K) and (R, K, N), which is R products of one row. `@` with a single matrix (K, N) is one product of all rows again.",
        "rows = x.reshape(-1, x.shape[-1]); out = torch.cat([F.linear(row[None], weight) for row in rows]); return out.view(*x.shape[:-1], len(weight))",
    ),
    advice={
        "the shape of the product": "It is (…, N) for x (…, K).",
        "the product": "It is F.linear(x, weight), x times weight transposed, in the order of the rows.",
        "that one product gets": "The order of its sums depends on how many rows there are: use one product per row.",
        "shapes cannot be multiplied": "The weights are (N, K): use weight.T, or F.linear.",
    },
    axes=[("row", "column"), ("text", "row", "column")],
)
