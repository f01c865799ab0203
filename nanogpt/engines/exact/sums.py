"""Sums in one order, whatever the shape of the input.

- A matrix product is split into rows, and each row's sum into pieces of 64 terms, the last piece
  padded with zeros. So a kernel only ever gets (1, 64) @ (64, N).
- The sums of the pieces, and all other sums, are added pairwise. Zeros at the end change no pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 64  # terms that a kernel sums in one call
COLUMNS = 16  # kernels sum leftover columns in another order, so pad to a multiple of this
HALVES = (torch.float16, torch.bfloat16)
AT_ONCE = 1 << 22  # the most partial sums of a product in memory: 16 MB in float32


def padded(n: int, multiple: int) -> int:
    """The smallest positive multiple that is at least n."""
    return -(-max(n, 1) // multiple) * multiple


def add_in_pairs(x: Tensor) -> Tensor:
    """The sum over the first dimension, whose size is a power of two.  (n, …) -> (…)

    Adds the first half to the second until one is left. Zeros appended to x change no bit.
    """
    while len(x) > 1:
        first, second = x.chunk(2)
        x = first + second
    return x[0]


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, row by row and piece by piece.  (Z, R, K), (Z, K, N) -> (Z, R, N)"""
    Z, R, K = a.shape
    N = b.shape[2]
    if b.shape[:2] != (Z, K) or a.dtype != b.dtype:
        return torch.bmm(a, b)  # raises PyTorch's own error
    if Z > 1 and b.stride(0) == 0:  # one matrix for the whole batch
        return product(a.reshape(1, Z * R, -1), b[:1]).view(Z, R, N)
    if a.dtype in HALVES:  # sum in float32 and round once
        return product(a.float(), b.float()).to(a.dtype)
    return rows_times(a, filled(b.mT, COLUMNS))[..., :N]


def rows_times(a: Tensor, columns: Tensor) -> Tensor:
    """Rows times padded columns, on any device.  (Z, R, K), (Z, n, k) -> (Z, R, n)"""
    return multiplied(a, columns) if a.is_cpu else multiplied_by_terms(a, columns)


def multiplied(a: Tensor, columns: Tensor) -> Tensor:
    """Rows times padded columns.  (Z, R, K), (Z, n, k) -> (Z, R, n)"""
    Z, R, _ = a.shape
    n, k = columns.shape[1:]
    n_pieces = k // PIECE
    size = 1 << (n_pieces - 1).bit_length()
    most = max(1, AT_ONCE // (size * max(Z, 1) * n))
    if most < R:
        parts = a.split(most, dim=1)
        return torch.cat([multiplied(part, columns) for part in parts], dim=1)
    rows = filled(a, 1)  # (Z, R, k)
    # 1. the sums of PIECE terms: each row separately, in as few calls as the layout allows
    if n_pieces == 1 and min(Z, R) == 1:
        columns = columns.mT if R == 1 else columns.mT.expand(R, -1, -1)
        return torch.bmm(rows.view(Z * R, 1, PIECE), columns).view(Z, R, n)
    sums = a.new_empty(size, Z, R, n)
    if n_pieces < size:
        sums[n_pieces:] = 0
    if Z == R == 1:
        x = rows.view(n_pieces, 1, PIECE)
        w = columns.view(n, n_pieces, PIECE).permute(1, 2, 0)  # (n_pieces, PIECE, n)
        torch.bmm(x, w, out=sums[:n_pieces, 0])
    for i in range(n_pieces if Z * R > 1 else 0):
        x = rows.narrow(2, i * PIECE, PIECE)  # (Z, R, PIECE)
        w = columns.narrow(2, i * PIECE, PIECE).mT  # (Z, PIECE, n)
        if Z <= R:
            for z in range(Z):
                torch.bmm(x[z, :, None], w[z].expand(R, -1, -1), out=sums[i, z, :, None])
        else:
            for r in range(R):
                torch.bmm(x[:, r : r + 1], w, out=sums[i, :, r : r + 1])
    # 2. the sum of the pieces
    return add_in_pairs(sums)


def multiplied_by_terms(a: Tensor, columns: Tensor) -> Tensor:
    """Like `multiplied`, with elementwise products and sums.  (Z, R, K), (Z, n, k) -> (Z, R, n)

    IEEE 754 fixes the result of each. On a GPU a matrix product of (1, 64) @ (64, N) has no fixed
    order: cuBLAS also picks its kernel by the number of matrices.
    """
    Z, R, K = a.shape
    n, k = columns.shape[1:]
    size = 1 << (k - 1).bit_length()
    most = max(1, AT_ONCE // (size * max(Z, 1) * n))
    if most < R:
        parts = a.split(most, dim=1)
        return torch.cat([multiplied_by_terms(part, columns) for part in parts], dim=1)
    rows = F.pad(a, (0, k - K))
    terms = rows[:, :, None] * columns[:, None]  # (Z, R, n, k)
    return add_in_pairs(F.pad(terms, (0, size - k)).movedim(-1, 0))


def filled(x: Tensor, multiple: int) -> Tensor:
    """The matrices padded with zeros below and on the right, rows contiguous.  (Z, M, K) -> …"""
    Z, M, K = x.shape
    m = padded(M, multiple)
    k = padded(K, PIECE)
    steps = x.stride(0) % COLUMNS == 0 == x.stride(1) % COLUMNS and x.stride(2) == 1
    if (m, k) == (M, K) and steps and x.is_cpu and x.data_ptr() % 64 == 0:
        return x
    if (m, k) == (M, K):
        return x.new_empty(Z, m, k).copy_(x)
    out = x.new_zeros(Z, m, k)
    out[:, :M, :K] = x
    return out


def total(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """The sum over these dimensions: a product with ones."""
    dims = [d % x.ndim for d in dims]
    # 1. the summed dimensions last, as one row for each sum
    if dims != [x.ndim - 1]:
        x = x.permute(*(d for d in range(x.ndim) if d not in dims), *dims)
    shape = x.shape[: x.ndim - len(dims)]
    n = prod(x.shape[len(shape) :])
    rows = x.reshape(1, prod(shape), n)
    # 2. each row times ones
    y = rows_times(rows, x.new_ones(1, COLUMNS, padded(n, PIECE)))[..., 0]
    # 3. a dimension of size 1 where a dimension was summed, if asked for
    for d in sorted(dims) if keepdim else ():
        shape = torch.Size((*shape[:d], 1, *shape[d:]))
    return y.view(shape)


def widened(x: Tensor) -> Tensor:
    """Cast 16-bit numbers to float32, so that a sum is rounded only once."""
    return x.float() if x.dtype in HALVES else x
