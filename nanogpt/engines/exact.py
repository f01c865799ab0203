"""A mode in which cached and uncached logits are the same bits, whatever the batch or the chunking.

Floating-point addition is not associative, and a kernel picks the order of its sums by the shape
that it is given. `F.linear` of one row adds up in another order than of many rows. Attention over
t keys sums t terms, and over a padded buffer another number. In here every sum has one shape. A
linear map is computed row by row, as a batch of (1, K) @ (K, N). Attention always runs over
block_size keys, and those that do not exist are masked. Numbers of 16 bits are multiplied and added
in float32 and rounded once, because their kernels look at the size of the batch too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from ..attention import attend
from ..config import check_type
from ..decoder.standard import not_standard
from ..model import GPT

# PyTorch's CPU bmm takes another kernel for fewer products; one Head's matrix may have fewer.
FEWEST_PRODUCTS = 400
# Rows are padded to a multiple of this: a kernel's sums depend on how rows lie in memory.
ALIGNMENT = 16
COPIED_AT_ONCE = 1 << 22  # numbers of K: 16 MB in float32
PRODUCTS = {
    *(torch.matmul, torch.bmm, torch.mm, torch.mv, torch.dot, torch.addmm, torch.baddbmm),
    *(torch.einsum, torch.inner, torch.tensordot, torch.cdist, torch.linalg.matmul),
    *(Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.__matmul__, Tensor.__rmatmul__),
}
# Operations of ATen whose sums depend on the shape of what they are given.
SUMS = {
    *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "convolution"),
    *("_cdist_forward", "_euclidean_dist", "_softmax", "_log_softmax", "linalg_vecdot"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math"),
    *("_scaled_dot_product_cudnn_attention", "_trilinear", "cumsum", "logcumsumexp"),
}


class exact(TorchFunctionMode):
    """`with exact(model):` everything inside computes each row in one way, to the bit.

        with exact(model):
            report = compare(model, prompt, 100, a=None, b=StaticCache)
        report.max_logit_diff  # 0.0

    It covers F.linear, F.scaled_dot_product_attention and this package's `attend`: both forms of
    the model, the caches that keep rows in the order of the text (not RollingCache; Int8Cache
    rounds), and the engines up to Flat. Any other matrix product, softmax or distance inside, as in
    a Head of your own, raises ValueError, and compiled and native engines refuse. torch.compile is
    not covered. As
    with torch.no_grad(), the place of the work counts: in this thread, and for a generator, where
    it is read. Slower: notebook 12 measures by how much. Tested on the CPU only.
    """

    def __init__(self, model):
        super().__init__()
        check_type("model", model, GPT)
        if any(vars(module).get("_compiled_call_impl") for module in model.modules()):
            raise ValueError(
                "exact mode does not reach into torch.compile: build the model without compile()"
            )
        self.length = model.config.block_size
        # The package's own modules call nothing but what is known here.
        self.guard = OtherSums(model.config.vocab_size) if not_standard(model) else None

    def __enter__(self):
        if self.guard is not None:
            self.guard.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        if self.guard is not None:
            self.guard.__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear:
            return self._known(linear, *args, **kwargs)
        if func is attend:
            return self._known(padded_attend, self.length, *args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._known(_fused, self.length, *args, **kwargs)
        if func in PRODUCTS:
            raise unknown(func.__name__)
        return func(*args, **kwargs)

    def _known(self, function: Callable, *args, **kwargs) -> Tensor:
        """The result of a function that adds up in one way."""
        if self.guard is None:
            return function(*args, **kwargs)
        with self.guard.let_through():
            return function(*args, **kwargs)


def unknown(name: str) -> ValueError:
    """The error for an operation that adds up in an order of its own."""
    return ValueError(
        f"exact mode does not know how to compute {name}: "
        f"use F.linear, or for attention nanogpt.attention.attend"
    )


class OtherSums(TorchDispatchMode):
    """A with-block in which operations that add up by the shape of their input raise ValueError.

    Here every operation arrives, under whatever name it was called: torch.inner, tensordot, einsum
    and @ are all a matrix product.
    """

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        self.open = False

    @contextmanager
    def let_through(self):
        """Around operations of exact mode itself."""
        before = self.open
        self.open = True
        try:
            yield
        finally:
            self.open = before

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        known = self.open or name not in SUMS
        if not known and "softmax" in name:  # that of a draw, or of a loss, has one size
            known = args[0].shape[args[1]] == self.vocab_size
        if not known:
            raise unknown(name)
        return func(*args, **(kwargs or {}))


def in_exact_mode() -> bool:
    """Whether this thread is inside a `with exact(model):`."""
    return any(isinstance(mode, exact) for mode in _get_current_function_mode_stack())


def rowwise(x: Tensor, w: Tensor) -> Tensor:
    """x @ w as R products of one row each.  (R, 1, K), (R, K, N) -> (R, 1, N)"""
    if x.dtype in (torch.float16, torch.bfloat16):
        return torch.bmm(x.float(), w.float()).to(x.dtype)
    return torch.bmm(x, w)


def padded(n: int) -> int:
    """The smallest multiple of ALIGNMENT that is at least n."""
    return -(-n // ALIGNMENT) * ALIGNMENT


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, row by row.  (…, K), (N, K), (N,) -> (…, N)"""
    N, K = weight.shape
    k = padded(weight.shape[1])
    n = padded(max(N, -(-FEWEST_PRODUCTS // k)))
    rows = F.pad(x.reshape(-1, 1, K), (0, k - K))
    w = F.pad(weight, (0, k - K, 0, n - N)).t()
    if x.dtype in (torch.float16, torch.bfloat16):
        w = w.float()  # before it is repeated
    y = rowwise(rows, w.expand(len(rows), -1, -1))[..., :N].reshape(*x.shape[:-1], N)
    return y if bias is None else y + bias


def padded_attend(
    length: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """attend, query by query and always over `length` keys.  (…, T, hs), (…, S, hs) -> (…, T, hs)

    Raises ValueError when there are more keys.
    """
    *lead, T, hs = q.shape
    S = k.shape[-2]
    if length < S:
        raise ValueError(f"{S} keys > {length}, the block_size that this exact mode was opened for")
    if mask is None:
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril()
    n_keys = padded(length)
    size = padded(hs)
    mask = F.pad(mask, (0, n_keys - S)).expand(*lead, T, n_keys).reshape(-1, T, n_keys)
    q = F.pad(q, (0, size - hs)).reshape(-1, T, size)
    k = F.pad(k, (0, size - hs, 0, n_keys - S)).reshape(-1, n_keys, size)
    v = F.pad(v, (0, size - hs, 0, n_keys - S)).reshape(-1, n_keys, size)
    chunk = max(1, COPIED_AT_ONCE // k.numel())  # queries at once: each gets a copy of the keys
    out = []
    for part, see in zip(q.split(chunk, dim=1), mask.split(chunk, dim=1), strict=True):
        n, t, _ = part.shape
        keys = k[:, None].expand(n, t, -1, -1).flatten(0, 1)
        values = v[:, None].expand(n, t, -1, -1).flatten(0, 1)
        scores = rowwise(part.reshape(n * t, 1, size), keys.transpose(1, 2)).view(n, t, n_keys)
        weights = (scores * hs**-0.5).masked_fill(~see, float("-inf")).softmax(-1)
        weights = F.dropout(weights, dropout, training=dropout > 0)
        out.append(rowwise(weights.view(n * t, 1, n_keys), values).view(n, t, size)[..., :hs])
    return torch.cat(out, dim=1).view(*lead, T, hs)


def _fused(length, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **settings):
    """F.scaled_dot_product_attention, with as many keys as exact mode always takes."""
    if settings or (attn_mask is not None and attn_mask.dtype != torch.bool):
        raise ValueError("in exact mode attention takes a boolean mask or is_causal only")
    if attn_mask is None and not is_causal:
        attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    return padded_attend(length, q, k, v, attn_mask, dropout_p)
