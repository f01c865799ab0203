"""A mode in which cached and uncached logits are bit-identical, for any batch size or chunking.

Floating-point addition is not associative, and a kernel picks its summation order by the shape of
its input. `F.linear` of one row adds in another order than `F.linear` of many rows, and attention
over t keys in another order than over t + 1. In this mode every sum has a fixed order, so equal
rows give equal bits. Read sums.py first:

    sums       the order itself: rows, pieces of 64 terms, pairs
    functions  PyTorch's functions with that order: products, softmax, norms, activations
    tables     which functions are computed as usual, and which in our order; others are refused
    mode       `exact`: how each call of a function reaches the tables, and what is refused
"""

from .mode import exact, in_exact_mode

__all__ = ["exact", "in_exact_mode"]
