"""A mode in which cached and uncached logits are bit-identical, for any batch size or chunking.

Floating-point addition is not associative, and a kernel picks its summation order by the shape of
its input. `F.linear` of one row adds in another order than `F.linear` of many rows, and attention
over t keys in another order than over t + 1. In this mode every sum has a fixed order:

- A matrix product is split into rows, and each row's sum into pieces of 64 terms, the last piece
  padded with zeros. So a kernel only ever gets (1, 64) @ (64, N).
- The sums of the pieces, and all other sums, are added pairwise. Zeros at the end change no pair.

PyTorch passes every operation to a TorchDispatchMode, under whatever name it was called: `@`,
einsum, inner, tensordot and F.linear all arrive as mm, bmm or addmm. A reduction that is not
implemented here is rejected by name.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..config import check_type
from ..decoder.standard import PLAIN

PIECE = 64  # terms that a kernel sums in one call
COLUMNS = 16  # kernels sum leftover columns in another order, so pad to a multiple of this
REGISTERS = 64  # a multiple of this many numbers fills whole registers, at any width and dtype
ONE_THREAD = 1 << 15  # from this many numbers on, PyTorch splits pointwise work among threads
HALVES = (torch.float16, torch.bfloat16)
AT_ONCE = 1 << 22  # the most partial sums of a product in memory: 16 MB in float32


class exact(TorchFunctionMode):
    """`with exact(model):` everything inside computes each row bit-identically in any batch.

        with exact(model):
            report = compare(model, prompt, 100, a=None, b=StaticCache)
        report.max_logit_diff  # 0.0

    It covers models of any class, including your own Head or layer, every cache that keeps rows in
    text order (not RollingCache; Int8Cache rounds), and the engines up to Flat. An operation with
    an unknown summation order, such as a convolution, raises ValueError, and so do compiled modules
    and compiled and native engines. Gradients are computed as usual. Like torch.no_grad(), it
    applies where the work is done: in this thread, and for a generator, where it is consumed.
    Slower: notebook 12 measures by how much. Slower still on a GPU, where each term of a product is
    a separate operation.
    """

    def __init__(self, model):
        super().__init__()
        check_type("model", model, nn.Module)
        for part in model.modules():
            if vars(part).get("_compiled_call_impl") or "_orig_mod" in part._modules:
                raise ValueError(
                    "exact mode has no effect inside torch.compile: "
                    "build the model without compile()"
                )
        if any(weight.layout is not torch.strided for weight in model.parameters()):
            raise ValueError(
                "exact mode multiplies dense weights: build the model without sparse ones"
            )
        # A tensor subclass may choose not to appear in `types`, so check the weights themselves.
        self.plain = all(type(weight) in PLAIN for weight in model.parameters())
        self.operations = OneOrder()

    def __enter__(self):
        self.operations.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.operations.__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # PyTorch picks a kernel for this function by shape, before a dispatch mode sees it.
        if func is F.scaled_dot_product_attention:
            return attention(func, *args, **kwargs)
        linear_map = func is F.linear and not torch.is_grad_enabled()
        quick = linear_map or getattr(func, "__name__", None) in QUICK
        if quick and "alpha" not in kwargs and are_plain(args) and are_plain(kwargs.values()):
            with torch._C._DisableTorchDispatch():
                return linear(func, *args, **kwargs) if linear_map else func(*args, **kwargs)
        return func(*args, **kwargs)


def are_plain(args) -> bool:
    """Whether no argument is a tensor subclass, which may compute in its own way."""
    for x in args:
        if isinstance(x, (list, tuple)):
            if not are_plain(x):
                return False
        elif isinstance(x, Tensor) and type(x) not in (Tensor, nn.Parameter):
            return False
    return True


def in_exact_mode() -> bool:
    """Whether this thread is inside a `with exact(model):`."""
    return any(isinstance(mode, exact) for mode in _get_current_function_mode_stack())


class OneOrder(TorchDispatchMode):
    """A with-block in which every sum has a fixed order, or raises ValueError."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch._C._current_graph_task_id() != -1:  # in a backward pass
            return func(*args, **kwargs)
        rule = KNOWN.get(func) or rule_of(func)
        if rule is as_usual:
            return func(*args, **kwargs)
        if rule in (decomposed, attention, flash_attention):  # their parts are dispatched again
            with self:
                return rule(func, *args, **kwargs)
        if func._schema.is_mutable and rule is not index_put:
            return written(rule, func, args, kwargs)
        return rule(func, *args, **kwargs)


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


def total(x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    """The sum over these dimensions: a product with ones."""
    dims = [d % x.ndim for d in dims]
    if dims != [x.ndim - 1]:
        x = x.permute(*(d for d in range(x.ndim) if d not in dims), *dims)
    shape = x.shape[: x.ndim - len(dims)]
    n = prod(x.shape[len(shape) :])
    y = rows_times(x.reshape(1, prod(shape), n), x.new_ones(1, COLUMNS, padded(n, PIECE)))[..., 0]
    for d in sorted(dims) if keepdim else ():
        shape = (*shape[:d], 1, *shape[d:])
    return y.view(shape)


def chosen(x: Tensor, dims: int | list[int] | None) -> list[int]:
    """The dimensions of a reduction; all of them if none are given."""
    if isinstance(dims, int):
        return [dims] if x.ndim else []
    return (list(dims) if dims else list(range(x.ndim))) if x.ndim else []


def widened(x: Tensor) -> Tensor:
    """Cast 16-bit numbers to float32, so that a sum is rounded only once."""
    return x.float() if x.dtype in HALVES else x


# ------------------------------------------------------------------ operations


def as_usual(func, *args, **kwargs):
    """Run unchanged: no sum, or one that PyTorch computes row by row in a fixed order."""
    return func(*args, **kwargs)


def decomposed(func, *args, **kwargs):
    """Run an operation as its component operations. In inference mode it arrives undecomposed."""
    return func.decompose(*args, **kwargs)


def written(rule: Callable, func, args: tuple, kwargs: dict) -> Tensor:
    """Run an operation that writes its result into its first argument, or into `out`."""
    if rule is plus and kwargs.get("alpha", 1) == 1:
        return func(*args, **kwargs)
    if rule in (whole_registers, power, plus) and "out" in kwargs:
        raise unknown(func)
    out = kwargs.pop("out", args[0])
    result = rule(func, *args, **kwargs)
    return out.resize_(result.shape).copy_(result)


def mm(func, a: Tensor, b: Tensor) -> Tensor:
    """mm, mv, dot and vdot: a vector is a matrix of one row, or of one column."""
    columns = b if b.ndim > 1 else b[:, None]
    y = product(a.reshape(1, prod(a.shape[:-1]), a.shape[-1]), columns[None])
    return y.view((*a.shape[:-1], *b.shape[1:]))


def bmm(func, a: Tensor, b: Tensor) -> Tensor:
    return product(a, b)


def addmm(func, start: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1) -> Tensor:
    """addmm, addmv and baddbmm: round the product, then add."""
    y = product(a, b) if a.ndim == 3 else mm(func, a, b)
    y = y if alpha == 1 else y * alpha
    return y if beta == 0 else y + (start if beta == 1 else start * beta)


def linear(func, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear.  (…, K), (N, K), (N,) -> (…, N)"""
    y = mm(func, x, weight.t())
    return y if bias is None else y + bias


def attention(
    func, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
) -> Tensor:
    """F.scaled_dot_product_attention, from the operations of nanogpt.attention.attend."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = q.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return F.dropout(scores.softmax(-1), dropout_p, training=dropout_p > 0) @ v


def flash_attention(func, q, k, v, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """The operation that F.scaled_dot_product_attention becomes on a CPU."""
    y = attention(func, q, k, v, attn_mask, dropout_p, is_causal, scale)
    return y, y.new_zeros(q.shape[:-1])


def softmax(func, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """softmax over whole pieces: the last one is padded with -inf, whose weight is 0."""
    wide = widened(x).movedim(dim, -1) if x.ndim else widened(x)[None]
    n = wide.shape[-1]
    wide = F.pad(wide, (0, -n % PIECE), value=float("-inf"))
    powers = whole_registers(torch.exp, wide - wide.amax(-1, keepdim=True))
    y = (powers / total(powers, [-1], keepdim=True))[..., :n]
    y = y.movedim(-1, dim) if x.ndim else y[0]
    return y if half_to_float else y.to(x.dtype)


def log_softmax(func, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    y = widened(x)
    y = y - log_sum(y, [dim], keepdim=True)
    return y if half_to_float else y.to(x.dtype)


def log_sum(x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    """log Σ exp x, with the largest term factored out."""
    largest = x.amax(dims, keepdim=True)
    largest = largest.masked_fill(largest.isinf(), 0.0)
    sums = total(whole_registers(torch.exp, x - largest), dims, keepdim=True)
    y = whole_registers(torch.log, sums) + largest
    return y if keepdim else y.squeeze(tuple(dims))


def logsumexp(func, x: Tensor, dims, keepdim: bool = False) -> Tensor:
    return log_sum(widened(x), chosen(x, dims), keepdim).to(x.dtype)


def sum_of(func, x: Tensor, dims=None, keepdim: bool = False, *, dtype=None) -> Tensor:
    if not x.is_floating_point():  # integers are not rounded
        return func(x, dtype=dtype) if dims is None else func(x, dims, keepdim, dtype=dtype)
    dtype = dtype or x.dtype
    return total(widened(x.to(dtype)), chosen(x, dims), keepdim).to(dtype)


def mean_of(func, x: Tensor, dims=None, keepdim: bool = False, *, dtype=None) -> Tensor:
    dtype = dtype or x.dtype
    dims = chosen(x, dims)
    return (total(widened(x.to(dtype)), dims, keepdim) / prod(x.shape[d] for d in dims)).to(dtype)


def var_of(func, x: Tensor, dims=None, *, correction=None, keepdim: bool = False) -> Tensor:
    dims = chosen(x, dims)
    n = prod(x.shape[d] for d in dims)
    wide = widened(x)
    apart = wide - total(wide, dims, keepdim=True) / n
    correction = 1 if correction is None else correction
    return (total(apart * apart, dims, keepdim) / max(0, n - correction)).to(x.dtype)


def std_of(func, x: Tensor, *args, **kwargs) -> Tensor:
    return var_of(func, widened(x), *args, **kwargs).sqrt().to(x.dtype)


def vector_norm(func, x: Tensor, order=2, dims=None, keepdim: bool = False, *, dtype=None):
    if order != 2:
        raise unknown(func)
    dtype = dtype or x.dtype
    wide = widened(x.to(dtype))
    return total(wide * wide, chosen(x, dims), keepdim).sqrt().to(dtype)


def whole_registers(func, *args, **kwargs):
    """An elementwise function such as exp or GELU, padded so that no numbers are left over.

    A kernel computes as many numbers at once as its registers hold, and the leftovers with other
    code, which may round differently. So pad the last register with zeros.
    """
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
    if not any(args[i].is_floating_point() or args[i].is_complex() for i in places):
        return func(*args, **kwargs)  # integers are not rounded
    if len(places) == 1:  # most of them
        i = places[0]
        x = args[i]
        n = x.numel()
        if n <= ONE_THREAD or torch.get_num_threads() == 1:
            if n % REGISTERS == 0 and x.is_contiguous():
                return func(*args, **kwargs)
            flat = F.pad(x.reshape(-1), (0, -n % REGISTERS))
            y = func(*args[:i], flat, *args[i + 1 :], **kwargs)
            if isinstance(y, Tensor):
                return y[:n].view(x.shape)
    given = [x for x in args if isinstance(x, Tensor)]
    given = [x for x in given if x.ndim] or given  # do not expand 0-d tensors: they set no dtype
    shape = torch.broadcast_shapes(*(x.shape for x in given))
    n = prod(shape)
    parts = []
    for start in range(0, max(n, 1), ONE_THREAD):
        end = min(n, start + ONE_THREAD)
        flat = [
            F.pad(x.expand(shape).reshape(-1)[start:end], (0, (start - end) % REGISTERS))
            if isinstance(x, Tensor) and any(x is y for y in given)
            else x
            for x in args
        ]
        parts.append(tree_map(lambda y, n=end - start: y[:n], func(*flat, **kwargs)))
    if isinstance(parts[0], tuple):  # log_sigmoid also returns what its gradient needs
        return tuple(torch.cat(x).view(shape) for x in zip(*parts, strict=True))
    return torch.cat(parts).view(shape)


def plus(func, *args, **kwargs):
    """a + b is rounded once, but a + alpha b may be rounded twice."""
    scaled = kwargs.get("alpha", 1) != 1
    return whole_registers(func, *args, **kwargs) if scaled else func(*args, **kwargs)


def power(func, x, exponent, *args):
    """x² is rounded once."""
    same = isinstance(exponent, (int, float)) and exponent == 2
    return func(x, exponent, *args) if same else whole_registers(func, x, exponent, *args)


def rsqrt(func, x: Tensor) -> Tensor:
    return widened(x).sqrt().reciprocal().to(x.dtype)


def glu(func, x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * whole_registers(torch.sigmoid, b)


def index_put(func, x: Tensor, indices, values: Tensor, accumulate: bool = False, *unsafe):
    if accumulate and x.is_floating_point():
        raise unknown(func)
    return func(x, indices, values, accumulate, *unsafe)


def refused(func, *args, **kwargs):
    """Allow integers, which are exact in any order; reject floating-point and complex numbers."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if any(x.is_floating_point() or x.is_complex() for x in tensors):
        raise unknown(func)
    return func(*args, **kwargs)


def unknown(func) -> ValueError:
    """The error for an operation whose summation order is unknown."""
    return ValueError(
        f"exact mode does not know in which order {func.overloadpacket.__name__} adds up: "
        f"write it with matmul, sum, mean or softmax"
    )


# Calls whose operations need no dispatch, which would take longer than the calls themselves.
QUICK = set(
    """__and__ __get__ __getitem__ __invert__ __len__ __or__ __setitem__ add arange cat chunk clone
    contiguous dim double dropout embedding eq expand flatten float ge gt index_copy_ le long lt
    masked_fill mul narrow neg numel permute relu repeat_interleave reshape roll size split square
    squeeze stack sub to transpose unbind unflatten unsqueeze view""".split()
)
KNOWN: dict = {}  # the rules of operations seen before
RULES = {
    **dict.fromkeys(("mm", "mv", "dot", "vdot"), mm),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), addmm),
    "bmm": bmm,
    "linear": linear,
    "scaled_dot_product_attention": attention,
    "_scaled_dot_product_flash_attention_for_cpu": flash_attention,
    "_softmax": softmax,
    "_log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "sum": sum_of,
    "mean": mean_of,
    "var": var_of,
    "std": std_of,
    "linalg_vector_norm": vector_norm,
    **dict.fromkeys(("add", "sub"), plus),
    **dict.fromkeys(("log_sigmoid_forward", "floor_divide"), whole_registers),
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), index_put),
    "glu": glu,
    "pow": power,
    "rsqrt": rsqrt,
}
# IEEE 754 fixes the results of these, whatever code computes them.
ROUNDED_ONCE = set(
    """abs bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min copy div
    eq fill floor ge gt isinf isnan le logical_and logical_not logical_or lt masked_fill maximum
    minimum mul ne neg reciprocal relu round sgn sign sqrt threshold trunc where""".split()
)
# These move, select, count or sample numbers, or sum row by row.
NO_SUMS = set(
    """_local_scalar_dense _pin_memory _reshape_alias _reshape_copy _to_copy _to_dense _unsafe_view
    _unique2 _weight_norm_interface alias_copy amax amin aminmax any all argmax argmin argsort
    as_strided_copy bernoulli cat clone constant_pad_nd contiguous cummax cummin cumprod cumsum
    embedding embedding_renorm empty_like equal expand_copy exponential flip full_like gather
    index index_copy index_fill index_select is_nonzero is_pinned is_same_size isin kthvalue
    lift_fresh lift_fresh_copy logcumsumexp masked_scatter masked_select max median min mode
    multinomial nan_to_num native_dropout native_layer_norm new_empty new_empty_strided new_full
    new_ones new_zeros nll_loss_forward nonzero normal ones_like permute_copy put rand_like
    randn_like randint_like random record_stream repeat repeat_interleave resize resize_as roll
    scatter searchsorted bucketize select_copy select_scatter set slice_copy slice_scatter sort
    split_with_sizes_copy stack take topk tril triu unfold_copy uniform unique_consecutive
    unique_dim view_copy zero zeros_like""".split()
)


def rule_of(func) -> Callable:
    """How exact mode computes an operation of PyTorch."""
    KNOWN[func] = rule = find_rule(func)
    return rule


def find_rule(func) -> Callable:
    name = func.overloadpacket.__name__
    name = name.removesuffix("_") if func._schema.is_mutable else name
    if func._can_decompose() and name not in ("linear", "scaled_dot_product_attention"):
        return decomposed
    if name in RULES:
        return RULES[name]
    if any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns):  # a view
        return as_usual
    special = func._overloadname.split("_")[-1] in ("mode", "reduce", "decimals")
    if name in NO_SUMS | ROUNDED_ONCE and not special:
        return as_usual
    # Some releases of torch tag elu as pointwise, but not elu_.
    plain = getattr(getattr(torch.ops.aten, name, None), func._overloadname, func)
    if torch.Tag.pointwise in {*func.tags, *plain.tags}:
        return whole_registers
    return refused
