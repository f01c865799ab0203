"""A mode in which cached and uncached logits are the same bits, whatever the batch or the chunking.

Floating-point addition is not associative, and a kernel picks the order of its sums by the shape
it is given: `F.linear` of one row adds up in another order than of many, attention over t keys
sums t terms, over a padded buffer another number. In here every sum has one shape. A linear map
is computed row by row, as a batch of (1, K) @ (K, N), and attention always over block_size keys,
those that do not exist hidden. Numbers of 16 bits are multiplied and added in float32 and rounded
once, because the kernels for them look at the size of the batch too.
"""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .attention import attend

SMALL = 400  # below so many products PyTorch's CPU bmm takes another kernel; one Head's matrix may be there


ALIGNED = (
    16  # the kernels' sums depend on how rows lie in memory: all of them are whole registers long
)


AT_ONCE = 1 << 22  # numbers of K copied at once: 16 MB in float32


PRODUCTS = {
    *(torch.matmul, torch.bmm, torch.mm, torch.addmm, torch.baddbmm, torch.einsum),
    *(Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.__matmul__, Tensor.__rmatmul__),
}


_open = threading.local()


class exact(TorchFunctionMode):
    """`with exact(model):` what runs inside computes each row in one way, to the bit.

        with exact(model):
            report = compare(model, prompt, 100, a=None, b=StaticCache)
        report.max_logit_diff  # 0.0

    It covers F.linear, F.scaled_dot_product_attention and this package's `attend`: its model in
    both forms, its caches that keep rows in the order of the text (not RollingCache, and Int8Cache
    rounds), its engines up to Flat. Any other matrix product in here, as in a Head of your own,
    raises ValueError, and compiled and native engines refuse; torch.compile is not covered. As
    with torch.no_grad(), what counts is where the work is done: in this thread, and a generator
    read inside the block. Slower: notebook 03 says by how much. Tested on the CPU only.
    """

    def __init__(self, model):
        super().__init__()
        self.length = model.config.block_size

    def __enter__(self):
        _open.depth = getattr(_open, "depth", 0) + 1
        return super().__enter__()

    def __exit__(self, *error):
        _open.depth -= 1
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear:
            return linear(*args, **kwargs)
        if func is attend:
            return padded_attend(self.length, *args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return _fused(self.length, *args, **kwargs)
        if func in PRODUCTS:
            raise ValueError(
                f"exact mode does not know how to compute {func.__name__}: "
                f"write it with F.linear, or attention with nanogpt.attention.attend"
            )
        return func(*args, **kwargs)


def in_exact_mode() -> bool:
    """Whether this thread is inside a `with exact(model):`."""
    return getattr(_open, "depth", 0) > 0


def rowwise(x: Tensor, w: Tensor) -> Tensor:
    """x @ w as R products of one row each.  (R, 1, K), (R, K, N) -> (R, 1, N)"""
    if x.dtype in (torch.float16, torch.bfloat16):
        return torch.bmm(x.float(), w.float()).to(x.dtype)
    return torch.bmm(x, w)


def whole(n: int) -> int:
    """n, or the next multiple of ALIGNED."""
    return -(-n // ALIGNED) * ALIGNED


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, row by row.  (…, K), (N, K), (N,) -> (…, N)"""
    (N, K), k = weight.shape, whole(weight.shape[1])
    n = whole(max(N, -(-SMALL // k)))
    rows, w = F.pad(x.reshape(-1, 1, K), (0, k - K)), F.pad(weight, (0, k - K, 0, n - N)).t()
    if x.dtype in (torch.float16, torch.bfloat16):
        w = w.float()  # before it is repeated
    y = rowwise(rows, w.expand(len(rows), -1, -1))[..., :N].reshape(*x.shape[:-1], N)
    return y if bias is None else y + bias


def padded_attend(
    length: int, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """attend(q, k, v, seen), query by query and always over `length` keys.  (…, T, hs) -> (…, T, hs)

    Raises ValueError when there are more keys.
    """
    (*lead, T, hs), S = q.shape, k.shape[-2]
    if length < S:
        raise ValueError(f"{S} keys > {length}, the block_size that this exact mode was opened for")
    if seen is None:
        seen = torch.ones(T, S, dtype=torch.bool, device=q.device).tril()
    room, wide = whole(length), whole(hs)
    seen, q = F.pad(seen, (0, room - S)), F.pad(q, (0, wide - hs)).reshape(-1, T, wide)
    k, v = (F.pad(x, (0, wide - hs, 0, room - S)).reshape(-1, room, wide) for x in (k, v))
    out, chunk = [], max(1, AT_ONCE // k.numel())
    for some, see in zip(q.split(chunk, dim=1), seen.split(chunk), strict=True):
        n, t = some.shape[:2]
        keys, values = (
            x[:, None].expand(n, t, room, wide).reshape(n * t, room, wide) for x in (k, v)
        )
        scores = (
            rowwise(some.reshape(n * t, 1, wide), keys.transpose(1, 2)).view(n, t, room) * hs**-0.5
        )
        weights = scores.masked_fill(~see, float("-inf")).softmax(-1)
        weights = F.dropout(weights, dropout, training=dropout > 0)
        out.append(rowwise(weights.view(n * t, 1, room), values).view(n, t, wide)[..., :hs])
    return torch.cat(out, dim=1).view(*lead, T, hs)


def _fused(length, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **settings):
    if settings or (attn_mask is not None and attn_mask.dtype != torch.bool):
        raise ValueError(
            "exact mode knows scaled_dot_product_attention with a boolean mask or is_causal, no more"
        )
    if attn_mask is None and not is_causal:
        attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    return padded_attend(length, q, k, v, attn_mask, dropout_p)
