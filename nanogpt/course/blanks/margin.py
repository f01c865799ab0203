"""Notebook 03, blank 3: margin."""

from ..page import Blank


def margin(logits, noise):
    """By how many logits the best candidate beats the second best.  (V,), (V,) -> float"""
    best, second = (logits - noise.log()).topk(2).values
    return (best - second).item()


BLANK = Blank(
    number="03.3",
    solution=margin,
    cases=[],
    mistakes={},
    hints=(
        "Sampling is a race. What is a candidate's score in it, in logits: what does a large noise value do to its chances?",
        "The score of a candidate is `logits - noise.log()`. `scores.topk(2).values` are the best two.",
        "best, second = (logits - noise.log()).topk(2).values; then return (best - second).item()",
    ),
    advice={
        "the margin": "It is the best score, logits - noise.log(), minus the second best.",
        "not a number": "Return one number.",
    },
)
