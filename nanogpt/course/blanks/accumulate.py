"""Notebook 11, blank 2: accumulate."""

from ..page import Blank


def accumulate(model, x, y, parts):
    """The gradients of the whole batch, part by part; returns the loss of the whole batch."""
    total = 0.0
    for x_part, y_part in zip(x.chunk(parts), y.chunk(parts)):
        loss = model(x_part, y_part)[1] / parts
        loss.backward()
        total += loss.item()
    return total


BLANK = Blank(
    number="11.2",
    solution=accumulate,
    cases=[],
    mistakes={},
    hints=(
        "Two parts have the losses 2 and 4, each a mean over its examples. What is the loss of the whole batch, and what do two calls of backward() add up to?",
        "`x.chunk(parts)` gives the parts. Divide each loss by `parts` before `backward()`. Then the gradients add up to the gradient of the mean, and the losses to the mean loss.",
        "in the loop over zip(x.chunk(parts), y.chunk(parts)): loss = model(x_part, y_part)[1] / parts; loss.backward(); total += loss.item()",
    ),
    advice={
        "no gradient": "Call backward() on the loss of each part.",
        "the gradient": "It is the gradient of the mean over the whole batch: divide each part's loss by `parts`, and let the gradients add up.",
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
