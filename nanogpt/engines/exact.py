"""A mode in which cached and uncached logits are the same bits, whatever the batch or the chunking.

Floating-point addition is not associative, and a kernel picks the order of its sums by the shape
that it is given. `F.linear` of one row adds up in another order than of many rows. Attention over
t keys sums t terms, and over a padded buffer another number. In here every sum has one shape. A
linear map is computed row by row, as a batch of (1, K) @ (K, N). Attention always runs over
block_size keys, and those that do not exist are masked. Numbers of 16 bits are multiplied and added
in float32 and rounded once, because their kernels look at the size of the batch too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from ..attention import attend
from ..config import check_type
from ..model import GPT

# PyTorch's CPU bmm takes another kernel for fewer products; one Head's matrix may have fewer.
FEWEST_PRODUCTS = 400
# Rows are padded to a multiple of this: a kernel's sums depend on how rows lie in memory.
ALIGNMENT = 16
COPIED_AT_ONCE = 1 << 22  # numbers of K: 16 MB in float32
PRODUCTS = {
    *(torch.matmul, torch.bmm, torch.mm, torch.addmm, torch.baddbmm, torch.einsum),
    *(Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.__matmul__, Tensor.__rmatmul__),
}


class exact(TorchFunctionMode):
    """`with exact(model):` everything inside computes each row in one way, to the bit.

        with exact(model):
            report = compare(model, prompt, 100, a=None, b=StaticCache)
        report.max_logit_diff  # 0.0

    It covers F.linear, F.scaled_dot_product_attention and this package's `attend`: both forms of
    the model, the caches that keep rows in the order of the text (not RollingCache; Int8Cache
    rounds), and the engines up to Flat. Any other matrix product inside, as in a Head of your own,
    raises ValueError, and compiled and native engines refuse. torch.compile is not covered. As
    with torch.no_grad(), the place of the work counts: in this thread, and for a generator, where
    it is read. Slower: notebook 12 measures by how much. Tested on the CPU only.
    """

    def __init__(self, model):
        super().__init__()
        check_type("model", model, GPT)
        self.length = model.config.block_size

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear:
            return linear(*args, **kwargs)
        if func is attend:
            return padded_attend(self.length, *args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return _fused(self.length, *args, **kwargs)
        if func in PRODUCTS:
            cure = "use F.linear, or for attention nanogpt.attention.attend"
            raise ValueError(f"exact mode does not know how to compute {func.__name__}: {cure}")
        return func(*args, **kwargs)


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
