"""Notebook 04, blank 7: one_text."""

from ..page import Blank
from ..traps import MemoryHead, decode


def one_text(model, prompt, noise):
    """decode(model, prompt, noise), with empty memories before and after."""
    heads = [module for module in model.modules() if isinstance(module, MemoryHead)]
    for head in heads:
        head.memory.clear()
    try:
        return decode(model, prompt, noise)
    finally:
        for head in heads:
            head.memory.clear()


BLANK = Blank(
    number="04.7",
    solution=one_text,
    cases=[],
    mistakes={},
    hints=(
        "When must the memories be empty, and which of these moments also comes after an error? What does Python run however a block ends?",
        "`model.modules()` yields every module, including the heads. `try: … finally: …` runs its last part even after an error.",
        "clear all memories; then try: return decode(model, prompt, noise); finally: clear all again",
    ),
    advice={
        "the form of": "It must return what decode returns, the new tokens.",
        "the tokens of": "All memories must be empty when a text begins.",
        "that `decode` generates": "The heads must be able to remember again: leave empty lists.",
        "after the stop": "Clean-up that must always run belongs in `finally`.",
        "after an error": "Clean-up that must always run belongs in `finally`.",
        "memory after": "Empty the memories of all heads when the text has ended.",
        "reaches the caller": "Let it propagate: `finally` does.",
    },
    axes=[("text", "token")],
)
