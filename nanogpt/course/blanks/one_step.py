"""Notebook 01, blank 2: one_step, one update of the weights by a batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..drivers import Arguments, numbers
from ..page import Blank, Case


def one_step(model, optimizer, x, y):
    """Update the weights once; returns the batch's loss before the update."""
    _, loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# ------------------------------------------------------------------ what a check runs

ROWS, LENGTH = 34, 66  # windows of a batch, tokens of a window
SIZE = 40  # vocabulary size


class Toy(nn.Module):
    """A small model with dropout that records what it reads. Its gradients are large, so that
    clipping shows.

    (B, T) twice -> (B, T, SIZE) and the loss.
    """

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SIZE, 8).double()
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, SIZE).double()
        for seed, (weight, scale) in enumerate(zip(self.parameters(), (1e4, 1e-3, 1), strict=True)):
            weight.data = scale * numbers(*weight.shape, seed=seed)
        self.read = []

    def forward(self, idx, targets=None):
        self.read.append((idx, targets, self.training))
        logits = self.head(self.drop(self.embedding(idx)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def run_step(answer, optimizer, **options):
    """Three steps, each with its own batch."""
    model = Toy()
    moves = optimizer(model.parameters(), **options)
    moved_by = []  # the gradients at each call of optimizer.step()
    moves.register_step_post_hook(lambda *_: moved_by.append(flat(gradients(model))))
    for step in range(3):
        model.read.clear()
        moved_by.clear()
        before = flat(model.parameters())
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randint(SIZE, (2, ROWS, LENGTH), generator=generator)
        given = Arguments(x=x, y=y)
        loss = answer(model, moves, *given.tensors.values())
        name = f"step {step}"
        yield from given.changes()
        yield f"what the model reads in {name}", "; ".join(seen(given, *one) for one in model.read)
        yield f"{name} seeds the random number generator, or draws from it", float(torch.rand(()))
        yield f"calls of optimizer.step() in {name}", len(moved_by)
        yield f"the type of the loss that {name} returns", type(loss).__name__
        yield f"the loss that {name} returns", number(loss)
        if moved_by:
            yield f"the gradients that update the weights in {name}", moved_by[0]
        yield f"the update of the weights in {name}", flat(model.parameters()) - before
        yield "the model is left in eval mode", not model.training


def seen(given, idx, targets, training):
    """What the model has read, in words. Without targets the answer computes the loss itself."""
    words = [which(given, part) for part in (idx, targets)]
    if words == ["x", "None"]:
        words = ["x", "y"]
    return f"idx = {words[0]} and targets = {words[1]} in {'training' if training else 'eval'} mode"


def which(given, tensor):
    """The name of an argument, or what is in its place."""
    for name, held in given.before.items():
        if isinstance(tensor, Tensor) and torch.equal(tensor, held):
            return name
    return f"others, of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else repr(tensor)


def number(loss):
    """The loss as a number, 0 if it is none."""
    try:
        return float(loss.detach() if isinstance(loss, Tensor) else loss)
    except (TypeError, ValueError):
        return 0.0


def gradients(model):
    """The gradient of each weight; zeros where there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def flat(tensors):
    """All numbers of these tensors in one tensor."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="01.2",
    minutes=7,
    solution=one_step,
    cases=[
        Case(run_step, optimizer=torch.optim.SGD, lr=1e-5, momentum=0.9),
        Case(run_step, optimizer=torch.optim.AdamW, lr=0.1, weight_decay=0.1),
    ],
    mistakes={
        "the previous step's gradients are still there: clear them with zero_grad().": [
            "    optimizer.zero_grad()\n -> "
        ],
        "the weights do not move, because step() finds no gradients: zero_grad(), then backward(), "
        "then step().": [
            "optimizer.zero_grad() -> loss.backward()",
            "loss.backward()\n    loss.backward() -> loss.backward()\n    optimizer.zero_grad()",
        ],
        "this is not the loss of the step: return that of its own forward pass, before the update.": [
            "return loss -> _, loss = model(x, y)\n    return loss"
        ],
        "the step runs in eval mode, which turns dropout off: leave the model in training mode.": [
            "    _, ->     model.eval()\n    _,"
        ],
    },
    wrong=[
        "model(x, y) -> model(x[:, :64], y[:, :64])",
        "loss.backward() -> (loss / 2).backward()",
        "optimizer.step() -> optimizer.step()\n    optimizer.state.clear()",
        ".item() -> ",
    ],
    right=[
        """
def one_step(model, optimizer, x, y):
    logits, _ = model(x)
    B, T, C = logits.shape
    loss = F.cross_entropy(logits.view(B * T, C), y.reshape(B * T))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
""",
        """
def one_step(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad()
        loss = model(x, y)[1]
        loss.backward()
        return loss

    return optimizer.step(closure).item()
""",
        """
def one_step(model, optimizer, x, y):
    loss = model(x, targets=y)[-1]
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for p, gradient in zip(weights, torch.autograd.grad(loss, weights)):
        p.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
    return loss.tolist()
""",
    ],
    hints=(
        "The last batch's gradients are still in the parameters. When do they have to be cleared?",
        "Five calls: the model, `optimizer.zero_grad()`, `loss.backward()`, `optimizer.step()`, and `loss.item()` to return a plain number.",
        "_, loss = model(x, y), then optimizer.zero_grad(), loss.backward(), optimizer.step(), and return loss.item()",
    ),
    advice={
        "does not require grad": "Gradients are off, or the loss is detached: @torch.no_grad() belongs on generation, not on training.",
        "only for scalar outputs": "The model returns the logits first and the loss second: _, loss = model(x, y).",
        "'NoneType' object": "Without targets the model returns no loss: model(x, y).",
        "'tuple' object": "The model returns the logits and the loss: _, loss = model(x, y).",
        "Expected target": "model(x, y) already computes the loss. F.cross_entropy takes logits (N, C) and targets (N,): flatten both.",
        "what the model reads": "Pass it all of x and y, once, in this order, without changing its mode.",
        "the type of the loss": "Return the loss as a number: loss.item().",
        "the loss that": "It must be this batch's loss before the update.",
        "the gradients that update": "They must be exactly what backward() computes from the loss: no clipping, no scaling.",
    },
)
