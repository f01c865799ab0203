"""Notebook 08, blank 4: slot_of."""

from ..page import Blank


def slot_of(position, window, sinks=0):
    """The slot of a position: an integer from 0 to sinks + window - 1."""
    if position < sinks:
        return position
    return sinks + (position - sinks) % window


BLANK = Blank(
    number="08.4",
    solution=slot_of,
    cases=[],
    mistakes={},
    hints=(
        "With a window of 4 and 2 sinks, which position is the first in the ring, and which is the first to reuse its slot?",
        "A sink's slot is its position. For all others, count from the first position after the sinks, and let `%` wrap the count to 0 after every `window` positions.",
        "return position if position < sinks else sinks + (position - sinks) % window",
    ),
    advice={
        "the type": "A slot is an integer.",
        "does not exist": "The sinks' slots come first, then `window` slots of the ring.",
        "overwrites a sink": "The ring has the slots after the sinks.",
        "may still see": "Two positions of one window share a slot: the ring has `window` slots.",
        "the slot": "A sink's slot is its position; after the sinks it is sinks + (position - sinks) % window.",
    },
)
