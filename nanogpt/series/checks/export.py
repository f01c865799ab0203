"""The checks of the changes made by an export: fold and flip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import solutions
from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, form, numbers

# ------------------------------------------------------------------ fold

NOTHING = 1e-7  # relative to the largest bias: what rounding may leave


def run_fold(answer: Answer, V: int, C: int, dtype: torch.dtype = torch.float64) -> Pairs:
    """One fold. What counts about d: W d - c is the same number in all rows, whichever it is.

    An answer may round in any way, so small deviations from that number are shown as 0.
    """
    W = numbers(V, C) / C**0.5
    c = numbers(V, seed=1) - 3
    if V > C + 1:  # a bias that can be represented
        c = W @ numbers(C, seed=2) + 0.7
    given = Arguments(W=W.to(dtype), c=c.to(dtype))
    d = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of d", form(d)
    yield "the dtype of d", str(getattr(d, "dtype", "none"))
    off = given.before["W"].double() @ d.double() - given.before["c"].double()
    rest = off - off.mean()
    small = rest.abs() < NOTHING * float(c.abs().max())
    yield "W d - c, minus its mean", rest.masked_fill(small, 0.0)


def run_near_singular(answer: Answer) -> Pairs:
    """A square system with nearly dependent rows: float64 solves it, float32 does not."""
    W = numbers(9, 8, seed=3)
    W[:, 7] = W[:, 6] + 1e-5 * W[:, 7]
    c = numbers(9, seed=4)
    d = answer(W.float(), c.float())
    off = W.float().double() @ d.double() - c.float().double()
    rounded = float((off - off.mean()).abs().max()) > 1e-4
    yield (
        "in a system that is close to singular W d - c is not the same number in all rows",
        rounded,
    )


def solved(
    W: Tensor,
    c: Tensor,
    column: Any = lambda W: -torch.ones(len(W), 1, dtype=W.dtype),
    bias: Any = lambda c: c,
    part: Any = lambda x, W: x[: W.shape[1]],
    dtype: torch.dtype = torch.float64,
) -> Any:
    """The reference solution. Each step can be replaced."""
    W = W.to(dtype)
    A = torch.cat([W, column(W)], dim=1)
    b = bias(c.to(dtype))[:, None]
    return part(torch.linalg.lstsq(A, b).solution[:, 0], W)


def fold_by(**step: Any) -> Answer:
    """fold with one step replaced."""
    return lambda W, c: solved(W, c, **step)


def without_column(W: Tensor) -> Tensor:
    return W[:, :0]


def as_column(x: Tensor, W: Tensor) -> Tensor:
    return x[: W.shape[1], None]


def only_square(W: Tensor, c: Tensor) -> Any:
    A = torch.cat([W.double(), -torch.ones(len(W), 1, dtype=torch.float64)], dim=1)
    return torch.linalg.solve(A, c.double())[: W.shape[1]]


def only_matrix(W: Tensor, c: Tensor) -> Any:
    A = torch.cat([W.double(), -torch.ones(len(W), 1)], dim=1)
    return torch.linalg.lstsq(A, c[:, None]).solution[: W.shape[1], 0]


def centred(W: Tensor, c: Tensor) -> Any:
    W -= W.mean(0)
    return solved(W, c)


FOLD = Exercise(
    notebook="10",
    hints=(
        "W d = c + λ 1, and λ is also unknown. With both on the left side, it reads W d - λ 1 = "
        "c: which matrix multiplies the vector (d, λ)?",
        "`torch.cat([W, column], dim=1)` with a column of minus ones, in float64. The first C "
        "numbers of the solution are d.",
        "A = torch.cat([W.double(), -torch.ones(len(W), 1, dtype=torch.float64)], dim=1); "
        "x = torch.linalg.lstsq(A, c.double()[:, None]).solution[:, 0]; return x[: W.shape[1]]",
    ),
    right=solutions.fold,
    cases=[
        Case(run_fold, V=5, C=4),
        Case(run_fold, V=9, C=8, dtype=torch.float32),
        Case(run_fold, V=4, C=6),
        Case(run_fold, V=30, C=6),
        Case(run_fold, V=65, C=64),
        Case(run_near_singular),
    ],
    mistakes={
        "W d misses c, because there are more equations than unknowns: make λ one more unknown, "
        "a column of -1 in the matrix.": fold_by(column=without_column),
        "the new column belongs to λ, so it must be constant: 0, 1, 2 … is not.": fold_by(
            column=lambda W: torch.arange(len(W), dtype=W.dtype)[:, None]
        ),
        "the last number of the solution is λ, not part of d: return the first C.": fold_by(
            part=lambda x, W: x
        ),
        "the last C numbers of the solution are returned: λ is the last one, so d is the first "
        "C.": fold_by(part=lambda x, W: x[-W.shape[1] :]),
        "only λ is returned: return d, the first C numbers.": fold_by(
            part=lambda x, W: x[W.shape[1] :]
        ),
        "d has one dimension too many: as a vector it has shape (C,).": fold_by(part=as_column),
        "d and λ are returned as a pair: return d.": fold_by(
            part=lambda x, W: (x[: W.shape[1]], x[W.shape[1]])
        ),
        "the sign is wrong: W d must add the bias c, but yours subtracts it.": fold_by(
            part=lambda x, W: -x[: W.shape[1]]
        ),
        "λ is fixed at minus the mean of c: it must be free, as one more unknown.": fold_by(
            column=without_column, bias=lambda c: c - c.mean()
        ),
        "λ is fixed at minus the first bias: it must be free, as one more unknown.": fold_by(
            column=without_column, bias=lambda c: c - c[0]
        ),
        "c is divided by its length: W d must be c itself, up to λ.": fold_by(
            bias=lambda c: c / c.norm()
        ),
        "you compute in float32, and the result is float32: begin with W.double().": fold_by(
            dtype=torch.float32
        ),
        "you compute in float32 and convert to float64 afterwards: begin with W.double().": fold_by(
            dtype=torch.float32, part=lambda x, W: x[: W.shape[1]].double()
        ),
        "the result is float32: leave it in float64.": fold_by(
            part=lambda x, W: x[: W.shape[1]].float()
        ),
        "solve() takes only square matrices: lstsq also handles a number of characters other "
        "than C + 1.": only_square,
        "W is float64 but c is not: both must be, so use c.double().": only_matrix,
        "the mean of W is subtracted from the caller's W in place: compute a new matrix.": centred,
    },
    advice={
        "the shape of d": "A vector of C numbers: the first ones of the solution, without λ.",
        "the dtype of d": "Compute in float64 from the beginning: W.double().",
        "W d - c, minus": (
            "It is 0 in all rows if W d - c is the same number in all of them. The new column of "
            "the matrix belongs to λ: the same number in each row."
        ),
        "close to singular": "Compute in float64 from the beginning: W.double().",
        "your code raised": (
            "The matrix has shape (V, C + 1), for any V, and the right-hand side (V, 1)."
        ),
    },
    axes=[("row",)],
)


# ------------------------------------------------------------------ flip


def run_flip(
    answer: Answer, heads: int, size: int, width: int, dtype: torch.dtype = torch.float32
) -> Pairs:
    """The returned matrix, described by the signs of its rows.

    Either half of a head may be negated: both are mirrors, and queries and keys get the same one.
    """
    given = Arguments(rows=numbers(heads * size, width, seed=heads).to(dtype))
    rows = given.before["rows"]
    got = answer(given.tensors["rows"], heads)
    yield from given.changes()
    yield "the shape of the matrix", form(got)
    yield "the dtype of the matrix", str(getattr(got, "dtype", "none"))
    moved = bool((got.abs() != rows.abs()).any())
    yield "rows are moved, or numbers are changed: only signs may change", moved
    alike = (got.abs()[:, None] == rows.abs()).all(-1)
    yield (
        "the old row at each position",
        torch.where(alike.any(1), alike.int().argmax(1), -1),
    )
    patterns = ["".join(map(sign_of, head)) for head in (got * rows).view(heads, size, width)]
    mirrors = ["+" * (size // 2) + "-" * (size // 2), "-" * (size // 2) + "+" * (size // 2)]
    shown = [mirrors[0] if pattern in mirrors else pattern for pattern in patterns]
    yield "the signs of the rows, head by head", " ".join(shown)


def sign_of(row: Tensor) -> str:
    """Whether a row was kept, negated or partly negated, by its products with the old one."""
    if (row > 0).all():
        return "+"
    return "-" if (row < 0).all() else "?"


def flipped(
    rows: Tensor,
    n_head: int,
    signs: Any = lambda H, hs: [*[1] * (hs // 2), *[-1] * (hs - hs // 2)] * H,
) -> Tensor:
    """The reference solution. The signs of the H · hs rows can be changed."""
    factors = torch.tensor(signs(n_head, len(rows) // n_head), dtype=rows.dtype)
    return rows * factors[:, None]


def flip_by(signs: Any) -> Answer:
    """flip with other signs."""
    return lambda rows, n_head: flipped(rows, n_head, signs)


def halves_of_all(H: int, hs: int) -> list[int]:
    return [1] * (H * hs // 2) + [-1] * (H * hs // 2)


def one_head(head: int) -> Any:
    """The signs if only one of the heads is flipped."""

    def signs(H: int, hs: int) -> list[int]:
        found = [1] * (H * hs)
        start = head % H * hs
        found[start + hs // 2 : start + hs] = [-1] * (hs // 2)
        return found

    return signs


def heads_and_halves_exchanged(H: int, hs: int) -> list[int]:
    size = hs // 2
    return ([1] * size + [-1] * size * (H - 1)) * 2


def sizes_exchanged(H: int, hs: int) -> list[int]:
    return [-1 if i % H >= H // 2 else 1 for i in range(H * hs)]


def other_half_to_zero(rows: Tensor, n_head: int) -> Tensor:
    return (rows + flipped(rows, n_head)) / 2


def turned_by_half(rows: Tensor, n_head: int) -> Tensor:
    a, b = rows.view(n_head, 2, -1, rows.shape[1]).unbind(1)
    return torch.cat([-b, a], dim=1).reshape(rows.shape)


def halves_swapped(rows: Tensor, n_head: int) -> Tensor:
    return rows.view(n_head, 2, -1, rows.shape[1]).flip(1).reshape(rows.shape)


def order_in_heads(rows: Tensor, n_head: int) -> Tensor:
    return rows.view(n_head, -1, rows.shape[1]).flip(1).reshape(rows.shape)


def joined_along_heads(rows: Tensor, n_head: int) -> Tensor:
    a, b = rows.view(n_head, 2, -1, rows.shape[1]).unbind(1)
    return torch.cat([a, -b]).reshape(rows.shape)


def columns(rows: Tensor, n_head: int) -> Tensor:
    half = rows.shape[1] // 2
    return torch.cat([rows[:, :half], -rows[:, half:]], dim=1)


def by_head(rows: Tensor, n_head: int) -> Tensor:
    return flipped(rows, n_head).view(n_head, -1, rows.shape[1])


def second_halves(rows: Tensor, n_head: int) -> Tensor:
    return -rows.view(n_head, 2, -1, rows.shape[1])[:, 1].flatten(0, 1)


def in_place(rows: Tensor, n_head: int) -> Tensor:
    rows.view(n_head, 2, -1, rows.shape[1])[:, 1].neg_()
    return rows


FLIP = Exercise(
    notebook="10",
    hints=(
        "Two heads of 4 rows each make 8 rows: which of them are the b's?",
        "`rows.view(n_head, 2, -1, rows.shape[1])` has the two halves of each head on its "
        "second axis. Negate one of them in a new tensor, and reshape it to the old shape.",
        "halves = rows.view(n_head, 2, -1, rows.shape[1]); return torch.cat([halves[:, :1], "
        "-halves[:, 1:]], dim=1).reshape(rows.shape)",
    ),
    right=solutions.flip,
    cases=[
        Case(run_flip, heads=3, size=4, width=5),
        Case(run_flip, heads=1, size=6, width=3),
        Case(run_flip, heads=3, size=6, width=2),
        Case(run_flip, heads=2, size=2, width=4),
        Case(run_flip, heads=4, size=8, width=8, dtype=torch.float64),
        Case(run_flip, heads=6, size=2, width=1, dtype=torch.bfloat16),
    ],
    mistakes={
        "every second row is negated: the two rows of a pair are not neighbours. Row i of a "
        "head pairs with row i + hs/2.": flip_by(lambda H, hs: [1, -1] * (H * hs // 2)),
        "the second half of the whole matrix is negated: it has n_head heads, and one half of "
        "each is.": flip_by(halves_of_all),
        "all rows are negated, which is a half turn and not a mirror image: negate one half of "
        "each head.": flip_by(lambda H, hs: [-1] * (H * hs)),
        "nothing is negated: the second half of each head is.": flip_by(
            lambda H, hs: [1] * (H * hs)
        ),
        "only head 0 is flipped: all of them are.": flip_by(one_head(0)),
        "only the last head is flipped: all of them are.": flip_by(one_head(-1)),
        "every second head is negated as a whole: negate one half of each head.": flip_by(
            lambda H, hs: [*[1] * hs, *[-1] * hs] * H
        ),
        "heads and halves are swapped in the view: n_head comes first, then 2.": flip_by(
            heads_and_halves_exchanged
        ),
        "n_head is mistaken for the head size: a head has len(rows) // n_head rows.": flip_by(
            sizes_exchanged
        ),
        "only the last row of each head is negated: half of its rows are.": flip_by(
            lambda H, hs: [*[1] * (hs - 1), -1] * H
        ),
        "all rows of a head but the first are negated: half of its rows are.": flip_by(
            lambda H, hs: [1, *[-1] * (hs - 1)] * H
        ),
        "columns are negated: the b's are rows.": columns,
        "the halves are swapped and one is negated, which is a quarter turn: negate one, and "
        "move nothing.": turned_by_half,
        "the halves are swapped: negate one, and move nothing.": halves_swapped,
        "the order of the rows is reversed, which torch.flip does: negate one half of each "
        "head.": lambda rows, n_head: rows.flip(0),
        "the order of the rows of each head is reversed, which is what torch.flip does: negate one "
        "half.": order_in_heads,
        "all first halves come first, then all second ones: each head keeps its two halves "
        "together, dim=1.": joined_along_heads,
        "the second half of each head becomes 0: negate it.": other_half_to_zero,
        "the heads are left as a separate dimension: reshape the matrix to the shape of "
        "`rows`.": by_head,
        "only the negated halves are returned: return the whole matrix.": second_halves,
        "your code changes `rows`, which is the model's own matrix: return a new one.": in_place,
    },
    advice={
        "the shape of the matrix": "It keeps the shape of `rows`.",
        "the dtype of the matrix": "It keeps its dtype.",
        "rows are moved": "Negate one half of each head, and leave every row where it is.",
        "the signs": (
            "A - is a negated row, a ? a partly negated one. Negate one half of each head."
        ),
        "your code raised": "The matrix has n_head times an even number of rows: "
        "rows.view(n_head, 2, -1, rows.shape[1]).",
    },
)
