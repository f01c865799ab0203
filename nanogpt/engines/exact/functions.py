"""PyTorch's functions, computed with the sums of sums.py.

Each takes the arguments of PyTorch's function of that name, as models, caches and heads pass them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .sums import product, total, widened

REGISTERS = 64  # a multiple of this many numbers fills whole registers, at any width and dtype
ONE_THREAD = 1 << 15  # from this many numbers on, PyTorch splits pointwise work among threads


def unknown(name: str) -> ValueError:
    """The error for a function that is in no table."""
    return ValueError(
        f"exact mode does not know in which order {name} adds up: "
        f"write it with @, einsum, sum, mean or softmax"
    )


# ------------------------------------------------------------------ products


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with any number of dimensions.  (…, R, K), (…, K, N) -> (…, R, N)"""
    # Integers are not rounded; of a number without dimensions PyTorch raises its own error.
    if not a.is_floating_point() or 0 in (a.ndim, b.ndim):
        return torch.matmul(a, b)
    # 1. a vector is a matrix of one row, or of one column
    if b.ndim == 1:
        return matmul(a, b[:, None]).squeeze(-1)
    if a.ndim == 1:
        return matmul(a[None], b).squeeze(-2)
    # 2. one matrix on the right: all rows of a are multiplied by it
    if b.ndim == 2:
        rows = a.reshape(1, prod(a.shape[:-1]), a.shape[-1])
        return product(rows, b[None]).view(*a.shape[:-1], b.shape[-1])
    # 3. batches of matrices, as one long batch
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (x.expand(*batch, *x.shape[-2:]).reshape(prod(batch), *x.shape[-2:]) for x in (a, b))
    return product(a, b).view(*batch, a.shape[1], b.shape[2])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear.  (…, K), (N, K), (N,) -> (…, N)"""
    y = matmul(x, weight.t())
    return y if bias is None else y + bias


GREEK = "αβγδεζηθ"  # letters for the dimensions of "..." in einsum


def einsum(equation: str, *operands: Any) -> Tensor:
    """torch.einsum of two factors: every letter is in both, or in one of them and in the result."""
    factors = operands[0] if isinstance(operands[0], (list, tuple)) else operands
    left, arrow, result = equation.replace(" ", "").partition("->")
    names = left.split(",")
    if not arrow or len(names) != 2 or len(factors) != 2:
        raise unknown("einsum without -> or with another number of factors than two")
    # 1. "..." becomes letters, the same ones from the right
    n_dots = [x.ndim - len(n.replace("...", "")) for x, n in zip(factors, names, strict=True)]
    names = [n.replace("...", GREEK[8 - k :]) for n, k in zip(names, n_dots, strict=True)]
    result = result.replace("...", GREEK[8 - max(n_dots) :])
    # 2. what each letter is: of the batch, a row of the first, a column of the second, or summed
    a, b = names
    batch = [x for x in result if x in a and x in b]
    rows = [x for x in result if x in a and x not in b]
    columns = [x for x in result if x in b and x not in a]
    summed = [x for x in a if x in b and x not in result]
    if sorted(a) != sorted(batch + rows + summed) or sorted(b) != sorted(batch + columns + summed):
        raise unknown(f"einsum of {equation}")
    # 3. a product of matrices: the rows of the first, the columns of the second
    first = factors[0].permute([a.index(x) for x in batch + rows + summed])
    second = factors[1].permute([b.index(x) for x in batch + summed + columns])
    n = len(batch)
    row_sizes = first.shape[n : n + len(rows)]
    column_sizes = second.shape[n + len(summed) :]
    first = first.reshape((*first.shape[:n], prod(row_sizes), prod(first.shape[n + len(rows) :])))
    second = second.reshape((*second.shape[:n], first.shape[-1], prod(column_sizes)))
    y = matmul(first, second)
    # 4. the dimensions of the result in the order that was asked for
    y = y.view((*y.shape[:n], *row_sizes, *column_sizes))
    return y.permute([(batch + rows + columns).index(x) for x in result])


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """F.scaled_dot_product_attention, from the operations of nanogpt.attention.attend."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3) for x in (k, v))
    # 1. how well each query matches each key
    scores = matmul(q, k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    # 2. no weight for keys that are hidden; a mask of numbers is added
    if is_causal:
        attn_mask = q.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    # 3. the weighted mean of the values
    return matmul(F.dropout(softmax(scores, -1), dropout_p, training=dropout_p > 0), v)


# ------------------------------------------------------------------ reductions

Dims = int | Sequence[int] | None


def chosen(x: Tensor, dims: Dims) -> list[int]:
    """The dimensions of a reduction; all of them if none are given."""
    if isinstance(dims, int):
        return [dims] if x.ndim else []
    return (list(dims) if dims else list(range(x.ndim))) if x.ndim else []


def sum_of(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """x.sum(…). Integers are not rounded."""
    x = x if dtype is None else x.to(dtype)
    if not x.is_floating_point():
        return x.sum(chosen(x, dim), keepdim)
    return total(widened(x), chosen(x, dim), keepdim).to(x.dtype)


def mean_of(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """x.mean(…): the sum by the number of terms."""
    x = x if dtype is None else x.to(dtype)
    dims = chosen(x, dim)
    return (total(widened(x), dims, keepdim) / prod(x.shape[d] for d in dims)).to(x.dtype)


def rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """F.rms_norm: x divided by its root mean square over the last dimensions, times the weight."""
    wide = widened(x)
    square = mean_of(wide * wide, range(-len(shape), 0), keepdim=True)
    y = (wide * rsqrt(square + (torch.finfo(x.dtype).eps if eps is None else eps))).to(x.dtype)
    return y if weight is None else y * weight


def softmax(x: Tensor, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """exp(x - max) by its sum, with the sum in our own order."""
    x = x if dtype is None else x.to(dtype)
    wide = widened(x)
    powers = whole_registers(torch.exp, wide - wide.amax(dim, keepdim=True))
    return (powers / total(powers, [dim], keepdim=True)).to(x.dtype)


def log_softmax(
    x: Tensor, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    """x - log Σ exp x, with the largest term factored out."""
    x = x if dtype is None else x.to(dtype)
    wide = widened(x)
    wide = wide - wide.amax(dim, keepdim=True)
    sums = total(whole_registers(torch.exp, wide), [dim], keepdim=True)
    return (wide - whole_registers(torch.log, sums)).to(x.dtype)


def cross_entropy(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, **options: Any
) -> Tensor:
    """F.cross_entropy of tokens: the mean of -log softmax at the targets.  (N, V), (N,) -> ()

    Targets equal to `ignore_index` do not count; nanoGPT passes -1. Without any target that counts
    the loss is NaN, as PyTorch's is.
    """
    # 1. What is computed here: tokens as targets, in one row each, and no other option.
    usual = {"reduction": "mean", "label_smoothing": 0.0}
    if any(value != usual.get(option) for option, value in options.items()):
        raise unknown("cross_entropy with options")
    if logits.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
        raise unknown(
            f"cross_entropy of {tuple(logits.shape)} and {tuple(targets.shape)}, {targets.dtype}"
        )
    # 2. The loss of each row; any token in place of a target that does not count.
    counts = targets != ignore_index
    tokens = targets.where(counts, 0)
    losses = -log_softmax(logits, -1).gather(-1, tokens[:, None])[:, 0]
    # 3. The mean of those that count: adding a zero for each other one changes no number.
    sums = total(widened(losses.masked_fill(~counts, 0.0)), [0])
    return (sums / counts.sum()).to(losses.dtype)


# ------------------------------------------------------------------ elementwise functions


def whole_registers(func: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """func(x, …) for an elementwise function such as exp, so that no numbers are left over.

    A kernel computes as many numbers at once as its registers hold, and the leftovers with other
    code, which may round differently. So pad the last register with zeros. Many numbers are split
    among threads, with leftovers in each: so pass at most as many as one thread computes.
    """
    n = x.numel()
    flat = F.pad(x.reshape(-1), (0, -n % REGISTERS))
    parts = [func(part, *args, **kwargs) for part in flat.split(ONE_THREAD)]
    y = parts[0] if len(parts) == 1 else torch.cat(parts)
    return y[:n].view(x.shape)


def in_registers(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An elementwise function of a table as exact mode computes it."""

    def computed(x: Tensor, *args: Any, inplace: bool = False, **kwargs: Any) -> Tensor:
        y = whole_registers(func, x, *args, **kwargs)
        return x.copy_(y) if inplace else y

    return computed


def power(base: Tensor | float, exponent: Tensor | float) -> Tensor:
    """base ** exponent, one of which is a number. A square is rounded once."""
    if not isinstance(exponent, Tensor):
        assert isinstance(base, Tensor)
        return base * base if exponent == 2 else whole_registers(torch.pow, base, exponent)
    if isinstance(base, Tensor):
        raise unknown("a power of two tensors")
    return whole_registers(lambda part: torch.pow(base, part), exponent)


def rsqrt(x: Tensor) -> Tensor:
    """1 / √x. PyTorch's rsqrt approximates in some registers; both of these are rounded once."""
    return widened(x).sqrt().reciprocal().to(x.dtype)
