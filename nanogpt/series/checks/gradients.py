"""The checks of gradients computed in parts: average and accumulate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from .. import solutions
from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, form, numbers

# ------------------------------------------------------------------ average


def run_average(answer: Answer, rows: list[int], size: int, dtype: torch.dtype) -> Pairs:
    """The average over each process's gradient."""
    parts = {f"gradients[{i}]": numbers(size, seed=i).to(dtype) for i in range(len(rows))}
    given = Arguments(**parts)
    counts = [*rows]
    found = answer([*given.tensors.values()], counts)
    yield from given.changes()
    yield "your code changes `rows`, which belong to the caller", counts != rows
    yield "the shape of the average", form(found)
    yield "the average", found


def averages(*rows: list[int], **settings: Any) -> list[Case]:
    """One case per list of rows. Weights may be rounded to float32 for gradients of any dtype."""
    return [Case(run_average, tolerance=1e-6, rows=one, **settings) for one in rows]


def averaged(
    gradients: list[Tensor],
    rows: list[int],
    weights: Any = lambda rows: rows,
    divisor: Any = sum,
) -> Any:
    """The reference solution. Each step can be replaced."""
    total = torch.zeros_like(gradients[0])
    for weight, gradient in zip(weights(rows), gradients, strict=False):
        total = total + weight * gradient
    return total / divisor(rows)


def average_by(**step: Any) -> Answer:
    """average with one step replaced."""
    return lambda gradients, rows: averaged(gradients, rows, **step)


def ones(rows: list[int]) -> list[int]:
    return [1] * len(rows)


def exchanged(rows: list[int]) -> list[int]:
    return rows[::-1]


def upside_down(rows: list[int]) -> list[float]:
    return [1 / n for n in rows]


def in_first(gradients: list[Tensor], rows: list[int]) -> Tensor:
    gradients[0] *= rows[0]
    for n, gradient in zip(rows[1:], gradients[1:], strict=True):
        gradients[0] += n * gradient
    return gradients[0] / sum(rows)


def in_each(gradients: list[Tensor], rows: list[int]) -> Any:
    for n, gradient in zip(rows, gradients, strict=True):
        gradient *= n
    return averaged(gradients, rows, weights=ones)


AVERAGE = Exercise(
    notebook="10",
    hints=(
        "One process has the mean over 6 rows, another the mean over 2. What were the sums, and "
        "how many rows do they cover?",
        "A mean times its number of rows is a sum. Sums over different rows can be added. "
        "Divide once, by the total number of rows.",
        "return sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
    ),
    right=solutions.average,
    cases=[
        *averages([4, 4], size=2, dtype=torch.float32),
        *averages([6, 2], size=3, dtype=torch.float32),
        *averages([1, 2, 5], [3, 3, 3], size=4, dtype=torch.float32),
        *averages([7], size=3, dtype=torch.float32),
        *averages([8, 8, 8, 5], [1, 1000], [2, 7, 1], size=50, dtype=torch.float64),
    ],
    mistakes={
        "that is the sum: with two processes each update would be twice as large, so "
        "divide.": average_by(weights=ones, divisor=lambda rows: 1),
        "that is the plain mean: with 6 rows and 2, each of the 2 would count three times as much "
        "as each of the 6. Weight each gradient by its rows.": average_by(
            weights=ones, divisor=len
        ),
        "the weights are swapped: each gradient is weighted by its own rows.": average_by(
            weights=exchanged
        ),
        "the gradients are weighted but not divided: divide by the total number of "
        "rows.": average_by(divisor=lambda rows: 1),
        "the weighted sum is divided by the number of processes: divide by the total number of "
        "rows.": average_by(divisor=len),
        "the weighted sum is divided twice: dividing by the total number of rows is "
        "enough.": average_by(divisor=lambda rows: sum(rows) * len(rows)),
        "a gradient is divided by its rows: it is already a mean, so multiply.": average_by(
            weights=upside_down, divisor=lambda rows: 1
        ),
        "the weights are 1 / rows, so the fewest rows count most: weight each gradient by its "
        "rows.": (average_by(weights=upside_down, divisor=lambda rows: sum(upside_down(rows)))),
        "the sum of the gradients is divided by the total number of rows: multiply each by its "
        "own rows first.": average_by(weights=ones),
        "the weights are squared: weight each gradient by its rows, once.": average_by(
            weights=lambda rows: [n * n for n in rows],
            divisor=lambda rows: sum(n * n for n in rows),
        ),
        "the weights are squared, then divided by the total number of rows: weight each "
        "gradient by its rows.": (average_by(weights=lambda rows: [n * n for n in rows])),
        "a gradient is divided by its rows, and the sum by the total: it is already a mean, so "
        "multiply it by its rows.": average_by(weights=upside_down),
        "// truncates the average to whole numbers: divide with /.": lambda gradients, rows: (
            averaged(gradients, rows, divisor=lambda rows: 1) // sum(rows)
        ),
        "the weights are integers, and // makes them 0: divide with /.": average_by(
            weights=lambda rows: [n // sum(rows) for n in rows], divisor=lambda rows: 1
        ),
        "all gradients get the first one's weight: each has its own.": average_by(
            weights=lambda rows: [rows[0]] * len(rows)
        ),
        "only the first two processes count: there may be any number.": average_by(
            weights=lambda rows: rows[:2], divisor=lambda rows: sum(rows[:2])
        ),
        "the last process is left out: all rows count.": average_by(
            weights=lambda rows: rows[:-1], divisor=lambda rows: max(1, sum(rows[:-1]))
        ),
        "only the process with the most rows counts: all rows do.": (
            lambda gradients, rows: gradients[rows.index(max(rows))].clone()
        ),
        "one number is returned: the average is element-wise, with a gradient's shape.": (
            lambda gradients, rows: averaged(gradients, rows).mean()
        ),
        "it changes the first gradient, which another process still needs: add up in a new "
        "tensor.": in_first,
        "it changes the gradients, which other processes still need: n * gradient is a new "
        "tensor.": in_each,
    },
    advice={
        "the shape of the average": "It has the shape of a gradient, a tensor.",
        "the average": (
            "Each gradient, a mean over its rows, is weighted by its number of rows: divide the "
            "weighted sum by the total number of rows."
        ),
        "`rows`": "Leave them as they are.",
    },
    axes=[("weight",)],
)


# ------------------------------------------------------------------ accumulate

WIDTH = 3  # numbers per example


class Line(nn.Module):
    """A linear model, (n, 3) -> (n,) and the mean loss, that records what it reads, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(numbers(WIDTH, seed=1))
        self.read: list[tuple[Tensor, Tensor]] = []
        self.open = 0  # forward passes whose backward pass is still to come
        self.most_open = 0

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        out = idx @ self.w
        if targets is None:
            return out, None
        if len(targets) != len(idx):
            raise ValueError(
                f"the model is given {len(idx)} examples of x and {len(targets)} of y: split both"
            )
        self.read.append((idx.clone(), targets.clone()))
        loss = (out - targets).square().mean()
        if loss.requires_grad:
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            loss.register_hook(self._closed)
        return out, loss

    def _closed(self, gradient: Tensor) -> None:
        self.open -= 1


def run_batch(answer: Answer, examples: int, parts: int) -> Pairs:
    """Two batches with different numbers."""
    for turn in range(2):
        model = Line()
        given = Arguments(
            x=numbers(examples, WIDTH, seed=10 + turn), y=numbers(examples, seed=20 + turn)
        )
        before = model.w.detach().clone()
        loss = answer(model, *given.tensors.values(), parts)
        yield from given.changes()
        yield (
            "your code updates the weights: only compute the gradients",
            not torch.equal(model.w.detach(), before),
        )
        yield "the model is left in eval mode", not model.training
        yield "no gradient is left in the weights", model.w.grad is None
        yield "the gradient", model.w.grad
        yield "the parts that the model reads", sorted(len(x) for x, _ in model.read)
        yield (
            "examples are left out, read twice, or paired with the target of another one",
            (pairs_of(model.read) != pairs_of([tuple(given.before.values())])),
        )
        yield "passes of the model that are kept for backward() at the same time", model.most_open
        yield "the type of the loss", "none" if loss is None else "a number"
        yield "the loss", float(loss.detach() if isinstance(loss, Tensor) else loss)


def pairs_of(read: list[Any]) -> list[Any]:
    """Examples and their targets, sorted, so that the order of reading does not matter."""
    rows = [torch.cat([x, y[:, None]], dim=1) for x, y in read]
    return sorted(torch.cat(rows).tolist()) if rows else []


def in_parts(
    model: Any,
    x: Tensor,
    y: Tensor,
    parts: int,
    cut: Any = lambda x, parts: x.chunk(parts),
    share: Any = lambda loss, parts, part: loss / parts,
    before: Any = lambda model: None,
    back: Any = lambda loss: loss.backward(),
    returned: Any = sum,
) -> Any:
    """The reference solution. Each step can be replaced."""
    losses = []
    for x_part, y_part in zip(cut(x, parts), cut(y, parts), strict=True):
        before(model)
        loss = share(model(x_part, y_part)[1], parts, x_part)
        back(loss)
        losses.append(loss.item())
    return returned(losses)


def accumulate_by(**step: Any) -> Answer:
    """accumulate with one step replaced."""
    return lambda *given: in_parts(*given, **step)


def undivided(loss: Tensor, parts: int, part: Tensor) -> Tensor:
    return loss


def whole(x: Tensor, parts: int) -> tuple[Tensor]:
    return (x,)


def one_backward(loss_of: Any) -> Answer:
    """backward() once, after the loop, from this function of all losses."""

    def answer(model: Any, x: Tensor, y: Tensor, parts: int) -> Any:
        cut = zip(x.chunk(parts), y.chunk(parts), strict=True)
        losses = [model(*part)[1] / parts for part in cut]
        loss_of(losses).backward()
        return sum(loss.item() for loss in losses)

    return answer


def backward_twice(loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


def mean_of(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def moves(model: Any, x: Tensor, y: Tensor, parts: int) -> Any:
    loss = in_parts(model, x, y, parts)
    with torch.no_grad():
        model.w -= 0.1 * model.w.grad
    return loss


def clears_at_the_end(model: Any, x: Tensor, y: Tensor, parts: int) -> Any:
    loss = in_parts(model, x, y, parts)
    model.zero_grad()
    return loss


def eval_mode(model: Any, x: Tensor, y: Tensor, parts: int) -> Any:
    return in_parts(model.eval(), x, y, parts)


def parts_of_x(model: Any, x: Tensor, y: Tensor, parts: int) -> Any:
    for part in x.chunk(parts):
        (model(part, y)[1] / parts).backward()


ACCUMULATE = Exercise(
    notebook="11",
    hints=(
        "Two parts have the losses 2 and 4, each a mean over its examples. What is the loss of "
        "the whole batch, and what do two calls of backward() add up to?",
        "`x.chunk(parts)` gives the parts. Divide each loss by `parts` before `backward()`. "
        "Then the gradients add up to the gradient of the mean, and the losses to the mean loss.",
        "in the loop over zip(x.chunk(parts), y.chunk(parts)): loss = model(x_part, y_part)[1] / "
        "parts; loss.backward(); total += loss.item()",
    ),
    right=solutions.accumulate,
    cases=[
        Case(run_batch, examples=6, parts=2),
        Case(run_batch, examples=8, parts=4),
        Case(run_batch, examples=5, parts=1),
        Case(run_batch, examples=5, parts=5),
        Case(run_batch, examples=60, parts=12),
    ],
    mistakes={
        "the gradient and the loss are `parts` times too large, because means are added: divide "
        "the loss of each part by `parts`.": accumulate_by(share=undivided),
        "the gradient is `parts` times too large, though the loss is right: divide before "
        "backward().": accumulate_by(share=undivided, returned=mean_of),
        "only the last part counts, because the gradients are cleared in between: let them add "
        "up.": accumulate_by(before=lambda model: model.zero_grad()),
        "the gradients are cleared at the end: leave them in the weights.": clears_at_the_end,
        "no gradient is computed: call backward() on the loss of each part.": accumulate_by(
            back=lambda loss: None
        ),
        "backward() is called once, for the last part only: it belongs inside the "
        "loop.": one_backward(lambda losses: losses[-1]),
        "backward() is called once, after the loop, so all parts stay in memory until then: "
        "call it in the loop.": one_backward(sum),
        "backward() is called twice for each part: once is enough.": accumulate_by(
            back=backward_twice
        ),
        "the whole batch is read at once: the model must get one part at a time.": accumulate_by(
            cut=whole, share=undivided
        ),
        "only the first part is read: all of them count.": accumulate_by(
            cut=lambda x, parts: x.chunk(parts)[:1]
        ),
        "the last part is left out: all of them count.": accumulate_by(
            cut=lambda x, parts: x.chunk(parts)[: max(1, parts - 1)]
        ),
        "x.split(n) makes parts of n examples, and x.chunk(n) makes n parts.": accumulate_by(
            cut=lambda x, parts: x.split(parts)
        ),
        "x is split but y is not: split both the same way.": parts_of_x,
        "a loss is divided by the number of its part's examples: it is already their mean. "
        "Divide by `parts`.": accumulate_by(share=lambda loss, parts, part: loss / len(part)),
        "a loss is divided by `parts` and by its number of examples: it is already their mean.": (
            accumulate_by(share=lambda loss, parts, part: loss / parts / len(part))
        ),
        "a loss is divided by `parts` twice: once is enough.": accumulate_by(
            share=lambda loss, parts, part: loss / parts**2
        ),
        "the returned loss is divided twice: the divided losses add up to the mean.": accumulate_by(
            returned=mean_of
        ),
        "the returned loss is only the last part's: add up all of them.": accumulate_by(
            returned=lambda losses: losses[-1]
        ),
        "the returned loss is the sum of all parts: the loss of the batch is a "
        "mean.": lambda *given: in_parts(*given) * given[-1],
        "your code updates the weights: only compute the gradients.": moves,
        "your code leaves the model in eval mode: leave it unchanged.": eval_mode,
    },
    advice={
        "no gradient": "Call backward() on the loss of each part.",
        "the gradient": (
            "It is the gradient of the mean over the whole batch: divide each part's loss by "
            "`parts`, and let the gradients add up."
        ),
        "the parts that": "The model reads `parts` equal parts: x.chunk(parts).",
        "examples are": "Each example is read once, with its own target.",
        "passes of the model": "Call backward() in the loop: it frees its part's memory.",
        "the type of the loss": "Return the loss of the whole batch.",
        "the loss": "It is the mean over the whole batch.",
        "updates the weights": "The optimizer does that later.",
        "in eval mode": "Leave the mode unchanged.",
    },
    axes=[("weight",)],
)
