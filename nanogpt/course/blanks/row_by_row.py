"""Notebook 12, blank 2: row_by_row."""

import torch
import torch.nn.functional as F

from ..page import Blank


def row_by_row(x, weight):
    """x times weight transposed, one row at a time.  (…, K), (N, K) -> (…, N)"""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.cat([F.linear(row[None], weight) for row in rows])
    return out.view(*x.shape[:-1], len(weight))


BLANK = Blank(
    number="12.2",
    solution=row_by_row,
    cases=[],
    mistakes={},
    hints=(
        "One row is (1, K). Which products with the weights (N, K) contain that row and no other?",
        "`x.reshape(-1, K)` contains all rows, also those of a batch. A loop over them works: `F.linear(row[None], weight)`. So does `torch.bmm` of (R, 1, K) and (R, K, N), which is R products of one row. `@` with a single matrix (K, N) is one product of all rows again.",
        "rows = x.reshape(-1, x.shape[-1]); out = torch.cat([F.linear(row[None], weight) for row in rows]); return out.view(*x.shape[:-1], len(weight))",
    ),
    advice={
        "the shape of the product": "It is (…, N) for x (…, K).",
        "the product": "It is F.linear(x, weight), x times weight transposed.",
        "that one product gets": "The order of its sums depends on how many rows there are: use one product per row.",
        "other last bits": "Each row must be a product of its own, however many there are.",
    },
    axes=[("row", "column"), ("text", "row", "column")],
)
