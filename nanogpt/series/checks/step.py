"""The check of one_step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, numbers

ROWS = 70  # windows of a batch
WIDE = (300, 280)  # numbers in an input and in an output
STEPS = 3


class Toy(nn.Module):
    """A two-layer model with dropout that records its inputs. Its loss is large, so clipping shows.

    (B, 300), (B, 280) -> (B, 280) and the loss.
    """

    def __init__(self) -> None:
        super().__init__()
        ends = nn.Linear(WIDE[0], 5), nn.Linear(5, WIDE[1])
        self.layers = nn.Sequential(ends[0], nn.Tanh(), nn.Dropout(0.2), ends[1]).double()
        for seed, weight in enumerate(self.parameters()):
            weight.data = numbers(*weight.shape, seed=seed)
        self.read: list[str] = []

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        mode = "training" if self.training else "eval"
        target = "no targets" if targets is None else f"targets {tuple(targets.shape)}"
        self.read.append(f"idx {tuple(idx.shape)} and {target} in {mode} mode")
        shapes = [tuple(x.shape) for x in (idx, targets) if x is not None]
        if shapes != [(ROWS, WIDE[0]), (ROWS, WIDE[1])][: len(shapes)]:
            raise ValueError(
                f"the model reads {shapes} of x {(ROWS, WIDE[0])} and y {(ROWS, WIDE[1])}: pass "
                "it all of x and y, in this order"
            )
        out = self.layers(idx)
        loss = None if targets is None else 1e5 * (out - targets).square().mean()
        return out, loss


def run_step(answer: Answer, optimizer: Any, **options: Any) -> Pairs:
    """Three steps, each with its own batch."""
    model = Toy()
    moves = optimizer(model.parameters(), **options)
    moved_by: list[Tensor] = []  # the gradients at each call of optimizer.step()
    moves.register_step_post_hook(lambda *_: moved_by.append(flat(gradients(model))))
    for step in range(STEPS):
        model.read.clear()
        moved_by.clear()
        before = flat(model.parameters())
        given = Arguments(x=numbers(ROWS, WIDE[0], seed=step), y=numbers(ROWS, WIDE[1], seed=step))
        loss = answer(model, moves, *given.tensors.values())
        name = f"step {step}"
        yield from given.changes()
        yield f"what the model reads in {name}", "; ".join(model.read)
        yield f"{name} seeds the random number generator, or draws from it", float(torch.rand(()))
        yield f"calls of optimizer.step() in {name}", len(moved_by)
        yield f"the type of the loss that {name} returns", type(loss).__name__
        yield f"the loss that {name} returns", _number(loss)
        if moved_by:
            yield f"the gradients that update the weights in {name}", moved_by[0]
        yield f"the update of the weights in {name}", flat(model.parameters()) - before
        yield "the model is left in eval mode", not model.training


def _number(loss: Any) -> float:
    try:
        return float(loss.detach() if isinstance(loss, Tensor) else loss)
    except (TypeError, ValueError):
        return 0.0


def gradients(model: nn.Module) -> list[Tensor]:
    """The gradient of each weight; zeros where there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of these tensors in one tensor."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


# ------------------------------------------------------------------ mistakes


def step_by(
    order: tuple[str, ...] = ("clear", "backward", "move"),
    factor: float = 1.0,
    result: Any = lambda loss: loss.item(),
) -> Answer:
    """A training step of these parts, in this order. The defaults are the reference solution."""

    def one_step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Any:
        _, loss = model(x, y)
        for part in order:
            if part == "clear":
                optimizer.zero_grad()
            if part == "backward":
                (factor * loss).backward(retain_graph=True)
            if part == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if part == "move":
                optimizer.step()
        return result(loss)

    return one_step


def loss_after(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> float:
    step_by()(model, optimizer, x, y)
    with torch.no_grad():
        return float(model(x, y)[1])


def in_eval_mode(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Any:
    model.eval()
    return step_by()(model, optimizer, x, y)


def eval_and_train(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Any:
    loss = in_eval_mode(model, optimizer, x, y)
    model.train()
    return loss


def own_optimizer(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Any:
    return step_by()(model, torch.optim.SGD(model.parameters(), lr=0.1), x, y)


def seeded(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Any:
    torch.manual_seed(1337)
    return step_by()(model, optimizer, x, y)


ONE_STEP = Exercise(
    notebook="01",
    hints=(
        "The last batch's gradients are still in the parameters. When do they have to be cleared?",
        "Five calls: the model, `optimizer.zero_grad()`, `loss.backward()`, "
        "`optimizer.step()`, and `loss.item()` to return a plain number.",
        "_, loss = model(x, y), then optimizer.zero_grad(), loss.backward(), "
        "optimizer.step(), and return loss.item()",
    ),
    right=step_by(),
    cases=[
        Case(run_step, optimizer=torch.optim.SGD, lr=1e-5, momentum=0.9),
        Case(run_step, optimizer=torch.optim.AdamW, lr=0.1, weight_decay=0.1),
    ],
    mistakes={
        "the previous step's gradients are still there: clear them with zero_grad().": step_by(
            ("backward", "move")
        ),
        "the weights do not move, because step() finds no gradients: zero_grad(), then "
        "backward(), then step().": step_by(("backward", "clear", "move")),
        "the weights do not move: call optimizer.step() after backward().": step_by(
            ("clear", "backward")
        ),
        "step() comes before backward(), so it updates the weights with old gradients.": step_by(
            ("move", "clear", "backward")
        ),
        "optimizer.step() is called twice: call it once.": step_by(
            ("clear", "backward", "move", "move")
        ),
        "loss.backward() is called twice, and gradients add up.": step_by(
            ("clear", "backward", "backward", "move")
        ),
        "the gradients are clipped: do no clipping in this step.": step_by(
            ("clear", "backward", "clip", "move")
        ),
        "half of the loss is backpropagated: do no scaling in this step.": step_by(factor=0.5),
        "you return a tensor, which keeps the whole graph alive: loss.item() is the "
        "number.": step_by(result=lambda loss: loss),
        "this is the loss after the step: return the loss before it.": loss_after,
        "the step leaves the model in eval mode: eval() turns dropout off. Leave it in training "
        "mode.": in_eval_mode,
        "the step runs in eval mode: eval() turns dropout off. Leave it in training mode.": (
            eval_and_train
        ),
        "you update the weights with your own optimizer: use the one passed in.": (own_optimizer),
        "a seed in the step makes dropout the same each time: do not reset the random "
        "numbers.": seeded,
    },
    advice={
        "what the model reads": (
            "Pass it all of x and y, once, in this order, without changing its mode."
        ),
        "seeds the random number generator": "That changes the dropout of everything that follows.",
        "calls of optimizer.step()": "Call it once, on the optimizer passed in.",
        "the type of the loss": "Return the loss as a number: loss.item().",
        "the loss that": "It must be this batch's loss before the update.",
        "the gradients that update": (
            "They must be exactly what backward() computes from the loss: no clipping, no scaling."
        ),
        "the update of": (
            "The weights are not where that optimizer would move them: use only step()."
        ),
        "left in eval mode": "The model was in training mode: do not call eval() in a step.",
    },
)
