"""Notebook 07, blank 1: tokens_gained."""

from ..page import Blank


def tokens_gained(proposals: list[int], choices: list[int]) -> list[int]:
    """The tokens that one pass adds to the text; len(choices) == len(proposals) + 1."""
    n = 0
    while n < len(proposals) and proposals[n] == choices[n]:
        n += 1
    return choices[: n + 1]


BLANK = Blank(
    number="07.1",
    solution=tokens_gained,
    cases=[],
    mistakes={},
    hints=(
        "The draft proposes 7, 8, 9, and the model chooses 7, 8, 5, 6. After which text did it choose the 5, and after which the 6?",
        "Count the proposals that equal their choice, up to the first that differs: n. How many of the `choices` follow correct text?",
        "return choices[: n + 1], where n counts up while n < len(proposals) and proposals[n] == choices[n]",
    ),
    advice={
        "still needs": "Slices like choices[:n] make a new list; append, pop and del do not.",
        "the tokens that": "Return the choices up to and including the first that differs from its proposal; all of them if none does.",
    },
)
