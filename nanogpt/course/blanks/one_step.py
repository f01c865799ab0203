"""Notebook 01, blank 2: one_step."""

from ..page import Blank


def one_step(model, optimizer, x, y):
    """Update the weights once; returns the batch's loss before the update."""
    _, loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


BLANK = Blank(
    number="01.2",
    solution=one_step,
    cases=[],
    mistakes={},
    hints=(
        "The last batch's gradients are still in the parameters. When do they have to be cleared?",
        "Five calls: the model, `optimizer.zero_grad()`, `loss.backward()`, `optimizer.step()`, and `loss.item()` to return a plain number.",
        "_, loss = model(x, y), then optimizer.zero_grad(), loss.backward(), optimizer.step(), and return loss.item()",
    ),
    advice={
        "what the model reads": "Pass it all of x and y, once, in this order, without changing its mode.",
        "seeds the random number generator": "That changes the dropout of everything that follows.",
        "calls of optimizer.step()": "Call it once, on the optimizer passed in.",
        "the type of the loss": "Return the loss as a number: loss.item().",
        "the loss that": "It must be this batch's loss before the update.",
        "the gradients that update": "They must be exactly what backward() computes from the loss: no clipping, no scaling.",
        "the update of": "The weights are not where that optimizer would move them: use only step().",
        "left in eval mode": "The model was in training mode: do not call eval() in a step.",
    },
)
