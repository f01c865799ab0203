"""The checks of sums in a fixed order: pairwise, row_by_row and padded_attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...attention import attend
from .. import solutions
from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, form, numbers

aten = torch.ops.aten

# ------------------------------------------------------------------ pairwise


def run_sum(answer: Answer, terms: list[float], dtype: torch.dtype = torch.float32) -> Pairs:
    """A bit-exact sum, which only the right order gives."""
    yield from run_terms(answer, torch.tensor(terms, dtype=dtype))


def run_many(answer: Answer, count: int, dtype: torch.dtype = torch.float32) -> Pairs:
    """The bit-exact sum of numbers of very different sizes."""
    terms = numbers(count, seed=1) * 10 ** numbers(count, seed=2)
    yield from run_terms(answer, terms.to(dtype))


def run_terms(answer: Answer, terms: Tensor) -> Pairs:
    given = Arguments(x=terms.clone())
    total = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the sum", form(total)
    yield "the dtype of the sum", str(getattr(total, "dtype", "none"))
    digits = (
        9 if terms.dtype == torch.float32 else 17
    )  # enough digits to tell neighbouring floats apart
    yield "the sum", f"{float(total):.{digits}g}"


def added(x: Tensor, left: Any = lambda x: x[0::2], right: Any = lambda x: x[1::2]) -> Tensor:
    """The reference solution. Which numbers are added to each other can be changed."""
    while len(x) > 1:
        x = left(x) + right(x)
    return x[0]


def first_half(x: Tensor) -> Tensor:
    return x[: len(x) // 2]


def second_half(x: Tensor) -> Tensor:
    return x[len(x) // 2 :]


def one_by_one(x: Tensor) -> Tensor:
    total = x[0]
    for term in x[1:]:
        total = total + term
    return total


def from_the_end(x: Tensor) -> Tensor:
    return one_by_one(x.flip(0))


def one_round(x: Tensor) -> Tensor:
    return x[0::2] + x[1::2] if len(x) > 1 else x[0]


def pairs_in_a_row(x: Tensor) -> Tensor:
    return one_by_one(x[0::2] + x[1::2]) if len(x) > 1 else x[0]


def two_left(x: Tensor) -> Tensor:
    while len(x) > 2:
        x = x[0::2] + x[1::2]
    return x[0]


def without_one(x: Tensor) -> Tensor:
    if len(x) == 2:
        return x[0] + x[1]
    return without_one(x[: len(x) // 2]) + without_one(x[len(x) // 2 :])


def in_place(x: Tensor) -> Tensor:
    step = 1
    while step < len(x):
        x[0 :: 2 * step] += x[step :: 2 * step]
        step *= 2
    return x[0].clone()


def as_list(x: Tensor) -> Tensor:
    return added(x)[None]


ORDER = "add neighbours first, 1 and 2, 3 and 4, then their sums"
PAIRWISE = Exercise(
    notebook="12",
    hints=(
        "Eight numbers: how many sums of two neighbours do they make, and how many are left "
        "when those are added in pairs again?",
        "`x[0::2]` are the left neighbours, `x[1::2]` the right ones. Their sum is half as "
        "long. Repeat until one number is left.",
        "while len(x) > 1: x = x[0::2] + x[1::2]; then return x[0]",
    ),
    right=solutions.pairwise,
    cases=[
        Case(run_sum, terms=[3.0]),
        Case(run_sum, terms=[1.0, 2.0]),
        Case(run_sum, terms=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        Case(run_sum, terms=[1e8, 1.0, -1e8, 1.0]),
        Case(run_sum, terms=[1e8, -1e8, 1.0, 1e8]),
        Case(run_sum, terms=[1e8, 1.0, 1.0, -1e8, 1.0, 1.0, 1.0, 1.0]),
        Case(run_sum, terms=[1e17, 1.0, -1e17, 1.0], dtype=torch.float64),
        Case(run_many, count=16),
        Case(run_many, count=64, dtype=torch.float64),
        Case(run_many, count=1024),
        Case(run_many, count=4096),
    ],
    mistakes={
        f"the numbers are added from left to right: {ORDER}.": one_by_one,
        f"the numbers are added from right to left: {ORDER}.": from_the_end,
        f"torch.sum adds in its own order: {ORDER}.": torch.sum,
        f"the first half is added to the second one: {ORDER}.": lambda x: added(
            x, first_half, second_half
        ),
        f"the first number is added to the last one: {ORDER}.": lambda x: added(
            x, first_half, lambda x: second_half(x).flip(0)
        ),
        f"the numbers are sorted first, by absolute value: {ORDER}, in the given order.": (
            lambda x: added(x[x.abs().argsort()])
        ),
        f"the numbers are sorted first, smallest first: {ORDER}, in the given order.": lambda x: (
            added(x.sort().values)
        ),
        "only the first two are added, because there is only one round: repeat until one number "
        "is left.": lambda x: one_round(x)[0] if len(x) > 1 else x[0],
        "each number is added to both of its neighbours: x[0::2] and x[1::2] form pairs, and no "
        "number is in two of them.": lambda x: added(x, lambda x: x[:-1], lambda x: x[1:]),
        "only the first round adds in pairs, and the rest is added from left to right: keep "
        "adding in pairs until one number is left.": pairs_in_a_row,
        "there is only one round, and the sums of the pairs are left: repeat until one number "
        "is left.": (one_round),
        "the loop ends when two numbers are left, and only one of them is returned: loop while "
        "len(x) > 1.": two_left,
        "a single number has no neighbour: it is its own sum.": without_one,
        "float64 rounds less than float32: stay in x's dtype.": lambda x: added(x.double()).to(
            x.dtype
        ),
        "the sum is now a float64: keep x's dtype.": lambda x: added(x.double()),
        "a Python number is returned, which was added in float64: stay with tensors.": lambda x: (
            sum(x.tolist())
        ),
        "math.fsum adds without rounding: in pairs, every sum rounds.": lambda x: x.new_tensor(
            math.fsum(x.tolist())
        ),
        "a Python number is returned: return a tensor of shape ().": lambda x: added(x).item(),
        "a tensor of one number is returned: a sum has shape (), so return x[0].": as_list,
        "this is the mean: return the sum.": lambda x: added(x) / len(x),
        "your code writes the sums into `x`, which belongs to the caller: make new tensors.": (
            in_place
        ),
    },
    advice={
        "the shape of the sum": (
            "A sum is a single number, of shape (): return x[0] of the last tensor."
        ),
        "the dtype of the sum": "Stay in x's dtype.",
        "the sum": (
            "It must be bit-identical to adding neighbours first: (a + b) + (c + d), in x's dtype."
        ),
        "no len()": "Stay with tensors: x[0] of the last one is a tensor too.",
        "IndexError": "A single number is its own sum.",
        "RecursionError": "A single number is its own sum.",
    },
)


# ------------------------------------------------------------------ row_by_row


class Products(TorchDispatchMode):
    """Records the factors of all matrix products, whichever function computed them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.factors: list[tuple[Tensor, Tensor]] = []  # (…, m, K) and (…, K, n)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (aten.mm.default, aten.bmm.default):
            self.factors.append((args[0], args[1]))
        elif func in (aten.addmm.default, aten.baddbmm.default):
            self.factors.append((args[1], args[2]))
        elif func is aten.mv.default:
            self.factors.append((args[0], args[1][:, None]))
        self.note(func, args, out)
        return out

    def note(self, func: Any, args: Any, out: Any) -> None:
        """A hook for what else a subclass wants to know about an operation."""


def rows_at_once(watch: Products, x: Tensor) -> int:
    """The largest number of rows of x in one product, on either side."""
    return max((rows_of(a.mT, b, x) for a, b in watch.factors), default=1)


def rows_of(a: Tensor, b: Tensor, x: Tensor) -> int:
    """How many rows of x a product of aᵀ and b contains; both (…, K, n), one vector per column."""
    for factor in (a, b):
        first = factor[..., 0].reshape(-1, factor.shape[-2])[0]
        if len(first) == x.shape[-1] and bool((x == first).all(-1).any()):
            return factor.shape[-1]
    return min(a.shape[-1], b.shape[-1])  # scaled copies: the smaller side is x


def run_rows(answer: Answer, shape: tuple[int, ...], N: int, dtype: torch.dtype) -> Pairs:
    """The product, and how many rows are multiplied at once."""
    given = Arguments(
        x=numbers(*shape, seed=1).to(dtype), weight=numbers(N, shape[-1], seed=2).to(dtype)
    )
    with Products() as watch:
        out = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the product", form(out)
    yield "the product", out
    rows = given.before["x"].view(-1, shape[-1])
    with torch.no_grad():
        yield "the rows of x that one product gets", rows_at_once(watch, rows)


def run_alone(answer: Answer, rows: int, N: int, K: int) -> Pairs:
    """Whether the first rows are bit-identical alone and among all rows."""
    x = numbers(rows, K, dtype=torch.float32)
    weight = numbers(N, K, seed=2, dtype=torch.float32)
    together = answer(x, weight)
    for n in (1, 2, 3, 17):
        same = torch.equal(answer(x[:n], weight), together[:n])
        yield f"the first {n} of {rows} rows have other last bits alone", not same


def rows_by(pieces: Any) -> Answer:
    """Multiply rows (R, K) in these pieces, one product each."""

    def answer(x: Tensor, weight: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.cat([F.linear(piece, weight) for piece in pieces(rows)])
        return out.view(*x.shape[:-1], len(weight))

    return answer


def single(rows: Tensor) -> Any:
    return rows.split(1)


right_rows = rows_by(single)


def first_dimension(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([F.linear(part[None], weight) for part in x])


def by_column(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([F.linear(x, column[None]) for column in weight], dim=-1)


def flat(x: Tensor, weight: Tensor) -> Any:
    return right_rows(x.reshape(-1, x.shape[-1]), weight)


def one_too_many(x: Tensor, weight: Tensor) -> Any:
    return right_rows(x, weight).unsqueeze(-2)


def in_double(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.double(), weight.double()).to(x.dtype)


def only_one_matrix(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([F.linear(row, weight)[None] for row in x.view(len(x), x.shape[1])])


def first_row(x: Tensor, weight: Tensor) -> Any:
    return right_rows(x, weight)[..., :1, :].expand(*x.shape[:-1], len(weight))


ROW_BY_ROW = Exercise(
    notebook="12",
    hints=(
        "One row is (1, K). Which products with the weights (N, K) contain that row and no other?",
        "`x.reshape(-1, K)` contains all rows, also those of a batch. A loop over them works: "
        "`F.linear(row[None], weight)`. So does `torch.bmm` of (R, 1, K) and (R, K, N), which "
        "is R products of one row. `@` with a single matrix (K, N) is one product of all rows "
        "again.",
        "rows = x.reshape(-1, x.shape[-1]); out = torch.cat([F.linear(row[None], weight) for row "
        "in rows]); return out.view(*x.shape[:-1], len(weight))",
    ),
    right=solutions.row_by_row,
    cases=[
        Case(run_rows, shape=(5, 8), N=6, dtype=torch.float32),
        Case(run_rows, shape=(2, 3, 8), N=7, dtype=torch.float32),
        Case(run_rows, shape=(1, 8), N=3, dtype=torch.float32),
        Case(run_rows, shape=(6, 6), N=6, dtype=torch.float64),
        Case(run_rows, shape=(4, 1, 8), N=5, dtype=torch.float32),
        Case(run_rows, shape=(2, 3, 2, 8), N=5, dtype=torch.float32),
        Case(run_alone, rows=64, N=256, K=384),
    ],
    mistakes={
        "all rows are multiplied at once, so the order of a row's sum depends on how many rows "
        "there are: use one product per row. `@` of (R, 1, K) and one matrix is one product of "
        "all rows again, and so is vmap.": F.linear,
        "two rows are multiplied at once: multiply one row at a time.": rows_by(
            lambda rows: rows.split(2)
        ),
        "the batch is processed text by text, but all rows of a text at once: x.reshape(-1, K) "
        "contains the rows of all texts.": first_dimension,
        "each column is computed separately, but for all rows at once: process the rows one by "
        "one.": by_column,
        "a batch of texts has three dimensions: reshape it to rows first.": only_one_matrix,
        "the rows are returned as one long matrix: restore the shape of a batch.": flat,
        "a dimension of size 1 is left over: the product has the shape (…, N).": one_too_many,
        "the weights are not transposed: they are (N, K), so use weight.T, or F.linear.": (
            lambda x, weight: right_rows(x, weight.T)
        ),
        "float64 hides the order of the sum, but all rows are multiplied at once: use one "
        "product per row.": in_double,
        "every row gets the first one's result: each has its own.": first_row,
        "the last row is left out: every row needs a result.": lambda x, weight: right_rows(
            x, weight
        )[..., :-1, :],
        "the rows are returned in reverse order: keep their order.": (
            lambda x, weight: right_rows(x, weight).flip(-2)
        ),
        "the result is float32 for rows in float64: keep x's dtype.": (
            lambda x, weight: right_rows(x.float(), weight.float())
        ),
    },
    advice={
        "the shape of the product": "It is (…, N) for x (…, K).",
        "the product": "It is F.linear(x, weight), x times weight transposed.",
        "that one product gets": (
            "The order of its sums depends on how many rows there are: use one product per row."
        ),
        "other last bits": "Each row must be a product of its own, however many there are.",
    },
    axes=[("row", "column"), ("text", "row", "column")],
)


# ------------------------------------------------------------------ padded_attention

FUSED = "_scaled_dot_product"  # prefix of the names of PyTorch's attention kernels


class Attention(Products):
    """Also records the weights of a softmax, and the keys of a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []
        self.keys: list[Tensor] = []

    def note(self, func: Any, args: Any, out: Any) -> None:
        if func in (aten._softmax.default, aten._safe_softmax.default):
            self.weights.append(out)
        elif func.name().startswith(f"aten::{FUSED}"):
            self.keys.append(args[1])

    def lengths(self, size: int) -> dict[str, set[int]]:
        """How many keys each part of attention runs over, as far as that could be observed."""
        fused = {keys.shape[-2] for keys in self.keys}
        found = {"scores": {*fused}, "softmax": {*fused}, "sum over the values": {*fused}}
        found["softmax"] |= {weights.shape[-1] for weights in self.weights}
        for a, b in self.factors:
            if a.shape[-1] == size:  # a sum over the head dimension
                found["scores"].add(max(a.shape[-2], b.shape[-1]))
            else:
                found["sum over the values"].add(a.shape[-1])
        return found


def run_padded(
    answer: Answer,
    T: int,
    S: int,
    length: int,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
    factor: float = 1.0,
    window: int = 10**9,
) -> Pairs:
    """The last T of S tokens attend to the keys up to them, or to a window of those."""
    q, k, v = (factor * numbers(n, size, seed=i) for i, n in enumerate((T, S, S)))
    gap = torch.arange(S - T, S)[:, None] - torch.arange(S)
    given = Arguments(q=q.to(dtype), k=k.to(dtype), v=v.to(dtype), mask=(gap >= 0) & (gap < window))
    with Attention() as watch:
        out = answer(*given.tensors.values(), length)
    yield from given.changes()
    yield "the shape of the output", form(out)
    for part, counts in watch.lengths(size).items():
        # A part that was not observed, in another style, is right if the output is.
        yield f"the number of keys in the {part}", " and ".join(map(str, counts or {length}))
    yield "the output", out
    places = [weights.flatten(0, -2)[:, :S] > 0 for weights in watch.weights]
    right = [torch.equal(seen, given.before["mask"]) for seen in places if len(seen) == T]
    right += [torch.equal(k.reshape(-1, size)[:S], given.before["k"]) for k in watch.keys]
    yield "the padding is not at the end of the keys", not all(right)


def padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    length: int,
    more: Any = lambda length, S: length - S,
    keys: Any = lambda k, n: F.pad(k, (0, 0, 0, n)),
    values: Any = lambda v, n: F.pad(v, (0, 0, 0, n)),
    seen: Any = lambda mask, n: F.pad(mask, (0, n)),
    queries: Any = lambda q, n: q,
) -> Tensor:
    """The reference solution. Each step can be replaced."""
    n = more(length, len(k))
    return attend(queries(q, n), keys(k, n), values(v, n), seen(mask, n))


def padded_by(**step: Any) -> Answer:
    """padded_attention with one step replaced."""
    return lambda *given: padded(*given, **step)


def above(x: Tensor, n: int) -> Tensor:
    return F.pad(x, (0, 0, n, 0))


def all_real_keys(mask: Tensor, n: int) -> Tensor:
    return F.pad(torch.ones_like(mask), (0, n))


def triangle(mask: Tensor, n: int) -> Tensor:
    T, S = mask.shape
    return torch.ones(T, S + n, dtype=torch.bool).tril()


def scores_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, length: int) -> Tensor:
    n = length - len(k)
    scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
    weights = F.pad(scores, (0, n), value=float("-inf")).softmax(-1)
    return weights @ F.pad(v, (0, 0, 0, n))


def weights_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, length: int) -> Tensor:
    n = length - len(k)
    scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
    return F.pad(scores.softmax(-1), (0, n)) @ F.pad(v, (0, 0, 0, n))


def weights_cut(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, length: int) -> Any:
    n = length - len(k)
    scores = q @ F.pad(k, (0, 0, 0, n)).T / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~F.pad(mask, (0, n)), float("-inf")).softmax(-1)
    return weights[:, : len(v)] @ v


HIDE = "hide what is not there"
PADDED_ATTENTION = Exercise(
    notebook="12",
    hints=(
        "A key of zeros has a score of 0. Is its weight also 0, and what makes it 0?",
        "`F.pad` fills a boolean mask with False, which means hidden, as it should be. Keys and "
        "values get extra rows at the bottom, the mask gets extra columns on the right, as many "
        "as are missing.",
        "more = length - len(k); return attend(q, F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, "
        "more)), F.pad(mask, (0, more)))",
    ),
    right=solutions.padded_attention,
    cases=[
        Case(run_padded, T=3, S=9, length=32),
        Case(run_padded, T=1, S=5, length=12),
        Case(run_padded, T=4, S=4, length=40),
        Case(run_padded, T=1, S=1, length=7),
        Case(run_padded, T=3, S=20, length=20),
        Case(run_padded, T=5, S=11, length=13, window=3),
        Case(run_padded, T=3, S=9, length=24, size=4, factor=6.0, dtype=torch.float64),
        Case(run_padded, T=2, S=100, length=256),
    ],
    mistakes={
        "nothing is padded: attend must get `length` keys.": padded_by(more=lambda length, S: 0),
        f"a key of zeros also gets a weight: {HIDE}, with False in the mask.": padded_by(
            seen=lambda mask, n: F.pad(mask, (0, n), value=True)
        ),
        "the padding comes before the keys, so a key's position in the sum changes whenever the "
        "text grows: pad after them.": padded_by(
            keys=above, values=above, seen=lambda mask, n: F.pad(mask, (n, 0))
        ),
        "keys and values are padded in front, but the mask at the end: pad all of them at the "
        "end.": padded_by(keys=above, values=above),
        "the mask is padded in front, but keys and values at the end: pad all of them "
        "at the end.": padded_by(seen=lambda mask, n: F.pad(mask, (n, 0))),
        "keys are padded in front and values at the end, so each weight is applied to another "
        "key's value.": padded_by(keys=above),
        "values are padded in front and keys at the end, so each weight is applied to another "
        "key's value.": padded_by(values=above),
        "`length` rows are added: add only the missing ones, length - S.": padded_by(
            more=lambda length, S: length
        ),
        "one row too many is added: attention runs over exactly `length` keys.": padded_by(
            more=lambda length, S: length - S + 1
        ),
        "one row too few is added: attention runs over exactly `length` keys.": padded_by(
            more=lambda length, S: max(0, length - S - 1)
        ),
        "the queries are also padded: there are T of them before and after.": padded_by(
            queries=lambda q, n: F.pad(q, (0, 0, 0, n)),
            seen=lambda mask, n: F.pad(F.pad(mask, (0, n)), (0, 0, 0, n), value=True),
        ),
        "the mask is not padded: it needs a column for each of the `length` keys.": padded_by(
            seen=lambda mask, n: mask
        ),
        "the values are not padded: there must be as many as keys.": padded_by(
            values=lambda v, n: v
        ),
        "columns are added to keys and values: F.pad(x, (0, 0, 0, n)) adds rows.": padded_by(
            keys=lambda k, n: F.pad(k, (0, n)), values=lambda v, n: F.pad(v, (0, n))
        ),
        "rows are added to the mask: F.pad(mask, (0, n)) adds columns.": padded_by(
            seen=lambda mask, n: F.pad(mask, (0, 0, 0, n))
        ),
        f"the given mask is ignored, so all keys are visible: pad it, and {HIDE}.": padded_by(
            seen=all_real_keys
        ),
        f"a triangle by index replaces the given mask: pad the given one, {HIDE}.": (
            padded_by(seen=triangle)
        ),
        "the mask is inverted: True is where a query may look.": padded_by(
            seen=lambda mask, n: ~F.pad(mask, (0, n))
        ),
        "the scores are padded instead of the keys, so their product still changes shape "
        "whenever the text grows: pad the keys.": scores_padded,
        "the weights are padded after a softmax over S keys: pad keys, values and mask before "
        "it.": weights_padded,
        "the weights are cut back to S keys, so the sum over the values changes shape whenever "
        "the text grows.": weights_cut,
    },
    advice={
        "the shape of the output": "It has a row for each of the T queries.",
        "the number of keys": (
            "Pad keys, values and mask to exactly `length` keys: scores, softmax and the sum over "
            "the values run over all of them."
        ),
        "the output": f"It must equal attend's without padding: {HIDE}.",
        "at the end of the keys": (
            "A key must keep its position in the sum as the text grows: pad at the end."
        ),
        "your code raised": (
            "Keys and values get extra rows, F.pad(x, (0, 0, 0, n)), and the mask extra columns, "
            "F.pad(mask, (0, n))."
        ),
    },
    axes=[("query", "number")],
)
