"""Notebook 08, blank 4: slot_of, the slots of a ring with sinks."""

from ..drivers import kind, whole
from ..page import Blank, Case


def slot_of(position, window, sinks=0):
    """The slot of a position: an integer from 0 to sinks + window - 1."""
    if position < sinks:
        return position
    return sinks + (position - sinks) % window


# ------------------------------------------------------------------ what a check runs


def run_ring(answer, window, sinks, n=20):
    """The slots of positions 0 to n - 1, and what each position overwrites."""
    got = [whole(answer(position, window, sinks)) for position in range(n)]
    yield "the type of the slots", " and ".join(sorted({*map(kind, got)}))
    last = sinks + window - 1
    outside = any(not 0 <= slot <= last for slot in got)
    yield f"a position gets a slot that does not exist: there are slots 0 to {last}", outside
    yield (
        "a position overwrites a sink, which keeps its slot forever",
        overwrites(got, lambda old, new: old < sinks),
    )
    yield (
        "a position overwrites one that the next query may still see",
        overwrites(got, lambda old, new: new - old < window),
    )
    yield f"the slots of positions 0 to {n - 1}", got


def overwrites(slots, wrong):
    """Whether a position overwrites an earlier one that must be kept."""
    held = {}
    for position, slot in enumerate(slots):
        if slot in held and wrong(held[slot], position):
            return True
        held[slot] = position
    return False


def run_without(answer):
    """A ring without sinks; the argument is left out of the call."""
    got = [whole(answer(position, 4)) for position in range(10)]
    yield "the slots of positions 0 to 9 in a ring of 4, without `sinks`", got


def run_any_order(answer):
    """Single positions in several rings, no further than a loop can count."""
    for position, window, sinks in (
        (90_003, 100, 4),
        (0, 6, 0),
        (5, 16, 8),
        (3, 6, 1),
        (999, 1, 2),
    ):
        ring = f"a window of {window} and {sinks} sinks"
        yield (
            f"the slot of position {position:,} with {ring}",
            whole(answer(position, window, sinks)),
        )


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="08.4",
    minutes=6,
    solution=slot_of,
    cases=[
        Case(run_ring, window=4, sinks=0),
        Case(run_ring, window=4, sinks=2),
        Case(run_ring, window=5, sinks=1),
        Case(run_ring, window=3, sinks=3),
        Case(run_ring, window=2, sinks=5),
        Case(run_ring, window=1, sinks=0),
        Case(run_without),
        Case(run_any_order),
    ],
    mistakes={
        "the ring begins after the sinks, so its first position is `sinks`: count from there, position - sinks.": [
            "(position - sinks) % window -> position % window"
        ],
        "the ring begins after the sinks: add `sinks` to the remainder.": [
            "sinks + (position - sinks) -> (position - sinks)"
        ],
        "the sinks' own slots are used again, and the position is not counted from `sinks`: add `sinks` to the remainder of position - sinks.": [
            "sinks + (position - sinks) -> position"
        ],
        "all slots form the ring, including the sinks', so sinks are overwritten: the ring has the `window` slots after them.": [
            "\ndef slot_of(position, window, sinks=0):\n    return position % (sinks + window)\n"
        ],
        "all positions past the end get the last slot: the ring's first slot is reused, with %.": [
            "sinks + (position - sinks) % window -> min(position, sinks + window - 1)"
        ],
    },
    wrong=[
        "position < sinks -> position < sinks - 1",
        "return position\n -> return 0\n",
        "(position - sinks) % window -> window - 1 - (position - sinks) % window",
        "sinks=0 -> sinks",
        "% window -> % window + 0.0",
    ],
    right=[
        """
def slot_of(position, window, sinks=0):
    while position >= sinks + window:
        position -= window
    return position
""",
        """
def slot_of(position, window, sinks=0):
    return min(position, sinks) + max(position - sinks, 0) % window
""",
        """
def slot_of(position, window, sinks=0):
    return position if position <= sinks else sinks + (position - sinks) % window
""",
    ],
    hints=(
        "With a window of 4 and 2 sinks, which position is the first in the ring, and which is the first to reuse its slot?",
        "A sink's slot is its position. For all others, count from the first position after the sinks, and let `%` wrap the count to 0 after every `window` positions.",
        "return position if position < sinks else sinks + (position - sinks) % window",
    ),
    advice={
        "does not exist": "The sinks' slots come first, from 0 on, then `window` slots of the ring.",
        "overwrites a sink": "A sink's slot is its position, for all positions below `sinks`, and the ring has the slots after them.",
        "may still see": "Two positions of one window share a slot: the ring has `window` slots.",
    },
)
