"""A mode in which cached and uncached logits are bit-identical, for any batch size or chunking.

Floating-point addition is not associative, and a kernel picks its summation order by the shape of
its input. `F.linear` of one row adds in another order than `F.linear` of many rows, and attention
over t keys in another order than over t + 1. In this mode every sum has a fixed order:

- A matrix product is split into rows, and each row's sum into pieces of 64 terms, the last piece
  padded with zeros. So a kernel only ever gets (1, 64) @ (64, N).
- The sums of the pieces, and all other sums, are added pairwise. Zeros at the end change no pair.

PyTorch hands every call of its functions and methods to a TorchFunctionMode. The tables at the end
of this file say what happens to each: the functions that models, caches and heads are written with.
Any other function that returns floating-point numbers raises ValueError with its name.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..config import check_type
from ..decoder import standard

PIECE = 64  # terms that a kernel sums in one call
COLUMNS = 16  # kernels sum leftover columns in another order, so pad to a multiple of this
REGISTERS = 64  # a multiple of this many numbers fills whole registers, at any width and dtype
ONE_THREAD = 1 << 15  # from this many numbers on, PyTorch splits pointwise work among threads
HALVES = (torch.float16, torch.bfloat16)
AT_ONCE = 1 << 22  # the most partial sums of a product in memory: 16 MB in float32


class _Inside(threading.local):
    """The with-blocks of exact mode that this thread is in: whether gradients were on before."""

    def __init__(self) -> None:
        self.grad_before: list[bool] = []


_inside = _Inside()


class exact(TorchFunctionMode):
    """`with exact(model):` everything inside computes each row bit-identically in any batch.

        with exact(model):
            report = compare(model, prompt, 100, a=None, b=StaticCache)
        report.max_logit_diff  # 0.0

    It covers GPT and Decoder, your own Head if it is written with the functions in the tables of
    nanogpt/engines/exact.py, every cache that keeps rows in text order (not RollingCache; Int8Cache
    rounds), and the engines up to Flat. Any other function, such as a convolution, raises
    ValueError with its name, and so do compiled modules, compiled and native engines,
    torch.autocast and torch.vmap. No gradients are computed. Like torch.no_grad(), it applies where
    the work is done: in this thread, and for a generator, where it is consumed. Slower: notebook 12
    measures by how much. Slower still on a GPU, where each term of a product is a separate
    operation.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        check_type("model", model, nn.Module)
        for part in model.modules():
            # How torch.compile(part) and part.compile() mark a module: its graph calls no function.
            if vars(part).get("_compiled_call_impl") or "_orig_mod" in part._modules:
                raise ValueError(
                    "exact mode has no effect inside torch.compile: "
                    "build the model without compile()"
                )
        for name, weight in model.named_parameters():
            # A tensor of another class may compute in its own way, which a function cannot tell.
            if type(weight) not in standard.WEIGHT_CLASSES or weight.layout is not torch.strided:
                raise ValueError(
                    f"exact mode multiplies plain dense weights, and {name} is a "
                    f"{type(weight).__name__}, {weight.layout}: build the model with plain ones"
                )
        # Where autocast can be on: the devices of the weights, and the CPU.
        devices = {"cpu"} | {weight.device.type for weight in model.parameters()}
        self.devices = [device for device in devices if torch.amp.is_autocast_available(device)]

    def __enter__(self) -> exact:
        self.check_autocast()
        _inside.grad_before.append(torch.is_grad_enabled())
        torch.set_grad_enabled(False)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_grad_enabled(_inside.grad_before.pop())

    def check_autocast(self) -> None:
        """Raises ValueError if autocast is on: it rounds what some kernels get, and not others."""
        if any(torch.is_autocast_enabled(device) for device in self.devices):
            raise ValueError(
                "exact mode does not work with torch.autocast, which is on: leave its with-block, "
                "or cast the whole model, as in model.bfloat16()"
            )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute one call of a PyTorch function. Inside of here the mode is off."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        # 0. what changes every function: asked in every call, because a head may enter it itself
        self.check_autocast()
        check_transforms((*args, *kwargs.values()))
        # 1. nothing is added up, or an option asks for a sum on top
        if name in AS_USUAL and not (kwargs and ADDING & kwargs.keys()):
            return func(*args, **kwargs)
        # 2. a sum, or an elementwise function with a polynomial inside: computed in our own order
        if name in OUR_ORDER or name.removesuffix("_") in OUR_ORDER:
            if torch.is_grad_enabled():
                raise ValueError(
                    f"exact mode computes no gradients, and they are on for {name}: "
                    f"use torch.no_grad(), or leave exact mode"
                )
            if name in OUR_ORDER:
                return called(name, args, kwargs)
            # exp_ and the like write their result into the first argument
            return args[0].copy_(called(name.removesuffix("_"), args, kwargs))
        # 3. Results without floating-point numbers, such as shapes, comparisons and indices, are
        #    the same in any order. So all functions that return them are allowed.
        result = func(*args, **kwargs)
        if has_floats(result):
            raise unknown(name)
        return result


def in_exact_mode() -> bool:
    """Whether this thread is inside a `with exact(model):`."""
    return bool(_inside.grad_before)


def has_floats(result: object) -> bool:
    """Whether a result of a function is or contains a tensor of numbers that can be rounded."""
    if isinstance(result, Tensor):
        return result.is_floating_point() or result.is_complex()
    return isinstance(result, (tuple, list)) and any(has_floats(part) for part in result)


def check_transforms(values: Iterable[object]) -> None:
    """Raises ValueError if a tensor among these arguments belongs to a transform of torch.func.

    Such a tensor is one text of several, or carries a derivative: a kernel gets another shape than
    the one seen here, and pads and splits it in its own way.
    """
    for value in values:
        if isinstance(value, (tuple, list)):
            check_transforms(value)
        elif isinstance(value, Tensor) and torch.func.debug_unwrap(value) is not value:
            raise ValueError(
                "exact mode does not work inside torch.vmap and other transforms of torch.func: "
                "compute the whole batch at once, as in q @ k.mT"
            )


def called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The result of a function of OUR_ORDER. Raises ValueError for arguments it does not take."""
    function = OUR_ORDER[name]
    # An activation hands other arguments on to PyTorch's function, for one part of x at a time.
    if "out" in kwargs:
        raise ValueError(f"exact mode computes {name} without out=: assign the result instead")
    try:
        return function(*args, **kwargs)
    except TypeError:
        # A mistake in the arguments that PyTorch itself would find is its own error.
        names = inspect.signature(function).parameters
        others = ", ".join(f"{key}=" for key in kwargs if key not in names)
        if not others:
            raise
        takes = ", ".join(key for key in names if not key.startswith("_"))
        raise ValueError(f"exact mode computes {name} without {others}: it takes {takes}") from None


def unknown(name: str) -> ValueError:
    """The error for a function that is in no table."""
    return ValueError(
        f"exact mode does not know in which order {name} adds up: "
        f"write it with @, einsum, sum, mean or softmax"
    )


# ------------------------------------------------------------------ sums


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


Dims = int | Sequence[int] | None


def chosen(x: Tensor, dims: Dims) -> list[int]:
    """The dimensions of a reduction; all of them if none are given."""
    if isinstance(dims, int):
        return [dims] if x.ndim else []
    return (list(dims) if dims else list(range(x.ndim))) if x.ndim else []


def widened(x: Tensor) -> Tensor:
    """Cast 16-bit numbers to float32, so that a sum is rounded only once."""
    return x.float() if x.dtype in HALVES else x


# ------------------------------------------------------------------ products
# Each takes the arguments of PyTorch's function of that name.


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


def cross_entropy(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """F.cross_entropy as `GPT.forward` calls it, without options.  (N, V), (N,) -> ()"""
    usual = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
    if any(value != usual.get(option) for option, value in options.items()):
        raise unknown("cross_entropy with options")
    return -mean_of(log_softmax(logits, -1).gather(-1, targets[:, None]))


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


# ------------------------------------------------------------------ the tables
# A function is found by its name, under which torch, torch.nn.functional and Tensor have the same.


def names_of(*functions: Callable[..., Any]) -> set[str]:
    """The names of these functions, and of their versions that write into the first argument."""
    names = {function.__name__ for function in functions}
    return names | {f"{name}_" for name in names if not name.endswith("_")}


# Computed as usual: no sum, or one that PyTorch computes row by row in a fixed order.
AS_USUAL = names_of(
    # reading and setting an attribute, such as x.shape and x.T, or an element
    *(Tensor.shape.__get__, Tensor.data.__set__, Tensor.__getitem__, Tensor.__setitem__),  # type: ignore[attr-defined]
    # making tensors: masks, positions, buffers of caches, a reader's constants
    *(torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.tensor),
    *(torch.zeros, torch.empty_like, torch.full_like, torch.ones_like, torch.zeros_like),
    *(Tensor.new_empty, Tensor.new_full, Tensor.new_ones, Tensor.new_tensor, Tensor.new_zeros),
    *(torch.as_tensor, torch.from_numpy, Tensor.fill_, Tensor.zero_),
    # random numbers: noise, and the first weights of a new model
    *(torch.rand, torch.randn, torch.rand_like, torch.randn_like, Tensor.exponential_),
    *(Tensor.normal_, Tensor.uniform_, nn.init.kaiming_uniform_, F.dropout),
    # copies, also in another dtype or on another device
    *(Tensor.to, Tensor.type_as, Tensor.double, Tensor.float, Tensor.half, Tensor.bfloat16),
    *(Tensor.cpu, Tensor.cuda, Tensor.clone, Tensor.contiguous, Tensor.copy_, Tensor.detach),
    *(Tensor.pin_memory, Tensor.module_load, Tensor.__deepcopy__, Tensor.requires_grad_),
    # moving numbers to another place
    *(torch.cat, torch.concat, torch.hstack, torch.stack, torch.vstack),
    *(torch.chunk, torch.split, torch.tensor_split, torch.unbind),
    *(torch.flatten, torch.movedim, torch.permute, torch.reshape, torch.squeeze, torch.swapaxes),
    *(torch.t, torch.transpose, torch.unflatten, torch.unsqueeze, torch.split_with_sizes),
    *(Tensor.expand, Tensor.expand_as, Tensor.repeat, Tensor.view, Tensor.view_as, F.pad),
    *(torch.flip, torch.roll, torch.repeat_interleave, torch.narrow, torch.select, torch.tril),
    *(torch.triu, torch.gather, torch.index_select, torch.index_copy, torch.index_fill),
    *(torch.scatter, torch.masked_fill, torch.where, F.embedding),
    # choosing numbers
    *(torch.amax, torch.amin, torch.aminmax, torch.clamp, torch.max, torch.maximum, torch.min),
    *(torch.minimum, torch.sort, torch.topk, F.relu),
    # rounded once, which IEEE 754 fixes for any code
    *(torch.abs, torch.add, torch.div, torch.floor, torch.mul, torch.neg, torch.reciprocal),
    *(torch.round, torch.sqrt, torch.square, torch.sub, Tensor.__rsub__, Tensor.__rtruediv__),
    # summed row by row, one term after another or in an order that the width fixes
    *(torch.cumsum, F.layer_norm),
)
# Options that add or multiply numbers on top of a function of the table above: refused.
ADDING = {"accumulate", "alpha", "reduce", "rounding_mode"}

# Computed here, in one order.
OUR_ORDER: dict[str, Callable[..., Tensor]] = {
    # products: `@`, and the names that readers and PyTorch's own layers call
    torch.matmul.__name__: matmul,
    torch.linalg.matmul.__name__: matmul,
    torch.mm.__name__: matmul,
    torch.bmm.__name__: matmul,
    torch.einsum.__name__: einsum,
    F.linear.__name__: linear,
    F.scaled_dot_product_attention.__name__: attention,
    # reductions: softmax, RMSNorm, the loss
    torch.sum.__name__: sum_of,
    torch.mean.__name__: mean_of,
    torch.softmax.__name__: softmax,
    torch.log_softmax.__name__: log_softmax,
    F.rms_norm.__name__: rms_norm,
    F.cross_entropy.__name__: cross_entropy,
    # elementwise: activations, softmax by hand, rotations, noise
    torch.pow.__name__: power,
    Tensor.__rpow__.__name__: lambda exponent, x: power(x, exponent),
    torch.rsqrt.__name__: rsqrt,
    **{
        func.__name__: in_registers(func)
        for func in (
            *(F.gelu, F.silu, torch.tanh),
            *(torch.exp, torch.log, torch.log1p, torch.cos, torch.sin),
        )
    },
}
