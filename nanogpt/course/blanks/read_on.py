"""Notebook 04, blank 3: read_on."""

from ..page import Blank
from ..traps import MemoryHead, places


def read_on(model, x):
    """The logits of the next tokens from a model of MemoryHeads.  (B, T) -> (B, T, V)"""
    head = next(module for module in model.modules() if isinstance(module, MemoryHead))
    start = sum(k.shape[1] for k, v in head.memory)
    return model(x, pos=places(start, x.shape[1], x))[0]


BLANK = Blank(
    number="04.3",
    solution=read_on,
    cases=[],
    mistakes={},
    hints=(
        "At which position is the next token if 12 tokens were read before it? And what knows how many were read?",
        "`model(x, pos=…)` takes the tokens' positions. Any `MemoryHead` in `model.modules()` knows how many tokens came before, because its `memory` holds their keys, one piece per call.",
        "start = sum(k.shape[1] for k, v in head.memory); then return model(x, pos=places(start, x.shape[1], x))[0]",
    ),
    advice={
        "the positions at": "The next token's position is the number of tokens before it, which is the number in one head's memory.",
        "the shape of the result": "The model returns logits (B, T, V) and a loss: return the logits.",
        "the logits": "Each token must be read once, at the position that equals the number of tokens before it.",
        "list index": "At first the memory is empty.",
        "StopIteration": "Look for the head among `model.modules()`.",
    },
    axes=[("text", "token", "candidate"), ("token",)],
)
