"""Notebook 11, blank 2: accumulate, the gradient of a batch in parts."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..drivers import Arguments, numbers
from ..page import Blank, Case


def accumulate(model, x, y, parts):
    """The gradients of the whole batch, part by part; returns the loss of the whole batch."""
    total = 0.0
    for x_part, y_part in zip(x.chunk(parts), y.chunk(parts)):
        loss = model(x_part, y_part)[1] / parts
        loss.backward()
        total += loss.item()
    return total


# ------------------------------------------------------------------ what a check runs


SIZE = 5  # of the vocabulary
T = 4  # tokens of an example


class Bigram(nn.Module):
    """Next-token logits from a table, in the shapes of a GPT; records what it reads, and when."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(numbers(SIZE, SIZE, seed=1))
        self.read = []
        self.open = 0  # forward passes whose backward pass is still to come
        self.most_open = 0

    def forward(self, idx, targets=None):
        logits = self.table[idx]  # (B, T, V)
        self.read.append(idx.clone())
        if logits.requires_grad:
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            logits.register_hook(self._close)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, -2), targets.flatten())

    def _close(self, gradient):
        self.open -= 1


def run_batch(answer, examples, parts):
    """Two batches with different numbers."""
    for turn in range(2):
        model = Bigram()
        rng = torch.Generator().manual_seed(examples + turn)
        x, y = torch.randint(SIZE, (2, examples, T), generator=rng)
        given = Arguments(x=x, y=y)
        before = model.table.detach().clone()
        loss = answer(model, x, y, parts)
        yield from given.changes()
        changed = not torch.equal(model.table.detach(), before)
        yield "your code updates the weights: only compute the gradients", changed
        yield "the model is left in eval mode", not model.training
        yield "no gradient is left in the weights", model.table.grad is None
        yield "the parts that the model reads", sorted(map(len, model.read))
        # Sorted, because parts may be read in any order.
        read = sorted(torch.cat(model.read).tolist()) if model.read else []
        yield "examples are left out or read twice", read != sorted(given.before["x"].tolist())
        yield "the gradient", model.table.grad
        yield "passes of the model that are kept for backward() at the same time", model.most_open
        yield "the type of the loss", type_of(loss)
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        yield "the loss", torch.tensor(float(loss), dtype=torch.float64)


def batch(examples, parts):
    """A case; a loss added up in float32 is near enough."""
    return Case(run_batch, tolerance=1e-6, examples=examples, parts=parts)


def type_of(loss):
    """A number of any kind, or what else it is."""
    if loss is None:
        return "none"
    return "a number" if hasattr(loss, "__float__") else f"a {type(loss).__name__}"


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="11.2",
    minutes=9,
    solution=accumulate,
    cases=[
        batch(examples=6, parts=2),
        batch(examples=8, parts=4),
        batch(examples=5, parts=1),
        batch(examples=5, parts=5),
        batch(examples=60, parts=12),
    ],
    mistakes={
        "the gradient and the loss are `parts` times too large, because means are added: divide the loss of each part by `parts`.": [
            " / parts -> "
        ],
        "the gradient is `parts` times too large, though the loss is right: divide before backward().": [
            " / parts -> ",
            "return total -> return total / parts",
        ],
        "only the last part counts, because the gradients are cleared in between: let them add up.": [
            "        loss.backward() ->         model.zero_grad()\n        loss.backward()"
        ],
        "backward() is called once, for the last part only: it belongs inside the loop.": [
            "        loss.backward()\n -> ",
            "    return total ->     loss.backward()\n    return total",
        ],
        "the whole batch is read at once: the model must get one part at a time.": [
            "chunk(parts) -> chunk(1)",
            " / parts -> ",
        ],
        "the returned loss is divided once too often or not at all: the divided losses add up to the mean.": (
            ["loss.item() -> loss.item() * parts"],
            ["return total -> return total / parts"],
        ),
    },
    wrong=[
        "y.chunk(parts) -> y.chunk(parts)[::-1]",
        "total = 0.0 -> total = 0.0\n    model.eval()",
        "return total -> torch.optim.SGD(model.parameters(), 0.1).step()\n    return total",
        "loss.backward() -> loss.backward(retain_graph=True)\n        loss.backward()",
        "x.chunk(parts) -> x.chunk(parts)[: max(1, parts - 1)]",
    ],
    right=[
        """
def accumulate(model, x, y, parts):
    n = len(x) // parts
    losses = []
    for i in range(parts):
        _, loss = model(x[i * n : (i + 1) * n], y[i * n : (i + 1) * n])
        (loss / parts).backward()
        losses.append(loss)
    return sum(losses) / parts
""",
        """
def accumulate(model, x, y, parts):
    total = 0
    for i in range(parts):
        loss = model(x[i::parts], y[i::parts])[1] / parts
        loss.backward()
        total = total + loss.detach()
    return total
""",
        """
def accumulate(model, x, y, parts):
    model.zero_grad()
    total = 0.0
    for part in zip(x.chunk(parts), y.chunk(parts)):
        logits, loss = model(*part)
        loss.backward()
        total += float(loss)
    for p in model.parameters():
        p.grad /= parts
    return total / parts
""",
        """
def accumulate(model, x, y, parts):
    losses = []
    for a, b in reversed(list(zip(x.split(len(x) // parts), y.split(len(y) // parts)))):
        loss = model(a, targets=b)[1]
        loss.backward(torch.tensor(1 / parts, dtype=loss.dtype))
        losses.append(loss.detach())
    return torch.stack(losses).mean()
""",
    ],
    hints=(
        "Two parts have the losses 2 and 4, each a mean over its examples. What is the loss of the whole batch, and what do two calls of backward() add up to?",
        "`x.chunk(parts)` gives the parts. Divide each loss by `parts` before `backward()`. Then the gradients add up to the gradient of the mean, and the losses to the mean loss.",
        "in the loop over zip(x.chunk(parts), y.chunk(parts)): loss = model(x_part, y_part)[1] / parts; loss.backward(); total += loss.item()",
    ),
    advice={
        "updates the weights": "The optimizer does that later.",
        "does not require grad": "Here gradients must be on: no no_grad(), detach() or set_grad_enabled(False) before backward().",
        "the gradient": "It is the gradient of the mean over the whole batch: divide each part's loss by `parts`, and let the gradients add up. Each part of x goes with the same part of y.",
        "the parts that": "The model reads `parts` equal parts: x.chunk(parts).",
        "the type of the loss": "Return the loss of the whole batch, a number.",
        "the loss": "It is the mean over the whole batch.",
    },
    axes=[("row", "column")],
)
