"""Notebook 09, blank 2: block_name."""

from ..page import Blank


def block_name(parent, tokens: list[int]):
    """A name for a full block, from its parent's name and its own tokens."""
    return (parent, tuple(tokens))


BLANK = Blank(
    number="09.2",
    solution=block_name,
    cases=[],
    mistakes={},
    hints=(
        "The tokens *the sea* occur in two texts, after different beginnings. Layers above the first mix what came before into each position. Are the keys of *the sea* the same?",
        "Two things decide: all tokens before the block, and its own tokens in order. The parent's name stands for everything before. A tuple of both will do. Lists cannot be dictionary keys.",
        "return (parent, tuple(tokens))",
    ),
    advice={
        "have the same name": "It must contain all of its own tokens in order, and the parent's name, each separate.",
        "is not in the name": "All tokens of the block must be in it.",
        "dictionary key": "Make it a tuple: a list cannot be a key.",
        "the second time": "Compute it from parent and tokens alone.",
        "your code changes": "Copy the list first.",
        "your code raised": "The parent is ROOT or a name that you returned, and a token is any integer from 0 on: a tuple takes both.",
    },
)
