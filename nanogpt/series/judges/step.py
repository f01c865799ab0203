"""The judge of one_step."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor

from .common import Objection, drawn, near, need, objects, untouched

ROWS = 70  # windows of a batch, of which each has so many inputs and outputs
WIDE = (300, 280)


class Toy(nn.Module):
    """A model of two layers with dropout, in float64, that notes its inputs."""

    def __init__(self):
        super().__init__()
        ends = nn.Linear(WIDE[0], 5), nn.Linear(5, WIDE[1])
        self.layers = nn.Sequential(ends[0], nn.Tanh(), nn.Dropout(0.2), ends[1])
        for seed, weight in enumerate(self.parameters()):
            weight.data = drawn(*weight.shape, seed=seed, dtype=torch.float64)
        self.calls: list[tuple] = []

    def forward(self, idx, targets=None):
        """Outputs, and their mean square distance from the targets, times 100,000."""
        need(
            tuple(idx.shape) == (ROWS, WIDE[0]),
            f"of a batch {(ROWS, WIDE[0])} the model reads {tuple(idx.shape)}: hand it x and y "
            "whole, in this order.",
        )
        self.calls.append((idx, targets, self.training))
        out = self.layers(idx)
        return out, None if targets is None else 1e5 * (out - targets).square().mean()


class Line(nn.Module):
    """A model of one weight, which must become 1."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, 1))

    def forward(self, idx, targets=None):
        return self.w * idx, (self.w * idx - targets).square().mean()


OPTIMIZERS = {
    "SGD with momentum": lambda weights: torch.optim.SGD(weights, lr=1e-4, momentum=0.9),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.1, weight_decay=0.1),
}


@objects
def one_step(answer) -> None:
    """The loss of the batch, its gradients, and one move of the optimizer that came in."""
    after = _check_line(answer)
    for name, optimizer in OPTIMIZERS.items():
        _check_steps(answer, name, optimizer)
    need(
        after == [0.2, 0.36],
        f"w should be 0.2, then 0.36; with your step it is {after[0]}, then {after[1]}.",
    )


def _check_line(answer) -> list[float]:
    """Two steps of one weight, whose numbers anyone can follow.  -> the weight after each"""
    model = Line()
    x = torch.ones(1, 1)
    y = torch.ones(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    after = []
    for _ in range(2):
        losses.append(answer(model, optimizer, x, y))
        after.append(round(model.w.item(), 3))
        need(
            torch.is_grad_enabled(),
            "after your step gradients are off for all code that follows: leave them on.",
        )
    need(
        after != [0, 0],
        "the weights do not move: after zero_grad() come backward() and then step(), in that "
        "order.",
    )
    need(
        after != [0.2, 0.56],
        "the second step is too long: the gradients of the first are still there. Clear them.",
    )
    if isinstance(losses[0], Tensor):
        raise Objection(
            "you return a tensor, which holds on to the whole computation: loss.item() is the "
            "number."
        )
    number = isinstance(losses[0], (int, float))
    need(number or losses[0] is None, f"return the loss as a number, not as {losses[0]!r}.")
    late = " That is the loss after it." if number and abs(losses[0] - 0.64) < 1e-6 else ""
    right = number and abs(losses[0] - 1) < 1e-6
    need(right, f"the loss before the first step is 1; you return {losses[0]}.{late}")
    return after


def _check_steps(answer, name: str, kind) -> None:
    """Four steps, compared with the same four by the book."""
    theirs = Toy()
    right = Toy()
    optimizers = [kind(one.parameters()) for one in (theirs, right)]
    moved: list[list[Tensor]] = []  # the gradients at each move
    optimizers[0].register_step_post_hook(lambda opt, *rest: moved.append(_gradients(theirs)))
    for step in range(4):
        x = drawn(ROWS, WIDE[0], seed=step, dtype=torch.float64)
        y = drawn(ROWS, WIDE[1], seed=step, dtype=torch.float64)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step)
            wanted = _by_the_book(right, optimizers[1], x, y)
            later = torch.get_rng_state()
        gradients = _gradients(right)
        theirs.calls.clear()
        moved.clear()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step)
            loss = untouched(lambda x, y: answer(theirs, optimizers[0], x, y), x=x, y=y)
            same_draws = torch.equal(torch.get_rng_state(), later)
        _check_calls(theirs, x, y, same_draws)
        need(
            len(moved) == 1,
            f"optimizer.step() of the optimizer that came in was called {len(moved)} times: once "
            "is a step.",
        )
        need(
            abs(loss - wanted) < 1e-9 * abs(wanted),
            f"the loss of step {step} before it moves the weights is {wanted:.4f}; you return "
            f"{loss}.",
        )
        _check_gradients(moved[0], gradients, step)
        same = all(
            near(a, b, 1e-9) for a, b in zip(theirs.parameters(), right.parameters(), strict=True)
        )
        need(
            same,
            f"with {name}, after step {step} the weights are not where that optimizer moves them: "
            "move them with optimizer.step() alone.",
        )


def _by_the_book(model: Toy, optimizer, x: Tensor, y: Tensor) -> float:
    _, loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def _gradients(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def _check_calls(model: Toy, x: Tensor, y: Tensor, same_draws: bool) -> None:
    """Raise Objection for other inputs of the model, and for a mode or a seed that was changed."""
    read = [call for call in model.calls if call[1] is not None]
    need(len(read) == 1, f"a step calls model(x, y) once, and yours {len(read)} times.")
    seen_x, seen_y, training = read[0]
    need(
        torch.equal(seen_x, x) and torch.equal(seen_y, y),
        "the model reads another x or y than came in.",
    )
    need(
        training and model.training,
        "the model came in training mode: a step neither asks for eval() nor leaves it on.",
    )
    need(
        same_draws,
        "your step seeds the random numbers, or draws some: then dropout is not what it would be "
        "without your step.",
    )


def _check_gradients(moved: list[Tensor], right: list[Tensor], step: int) -> None:
    """Raise Objection unless the weights are moved by the gradients of this batch."""
    flat = torch.cat([x.flatten() for x in moved])
    wanted = torch.cat([x.flatten() for x in right])
    if near(flat, wanted, 1e-9):
        return
    ratio = float(flat @ wanted / (wanted @ wanted))
    if near(flat, ratio * wanted, 1e-6) and ratio:
        raise Objection(
            f"the gradients are {ratio:.2g} times those of the loss: no clipping, no scaling, no "
            "second backward() here."
        )
    if step:
        raise Objection(
            f"step {step} moves the weights by other gradients than those of its loss: are the "
            "ones of the step before still there?"
        )
    raise Objection(
        "the weights are moved by other gradients than those of the loss: take them as backward() "
        "gives them, of the loss alone."
    )
