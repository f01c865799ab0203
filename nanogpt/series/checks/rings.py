"""The check of slot_of, the slots of a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import solutions
from .exercise import Anew, Answer, Case, Exercise, Pairs


def run_ring(answer: Answer, window: int, sinks: int, n: int = 20) -> Pairs:
    """The slots of positions 0 to n - 1, and what each position overwrites."""
    got = [answer(position, window, sinks) for position in range(n)]
    kinds = sorted({type(slot).__name__ for slot in got})
    yield "the type of the slots", " and ".join(kinds)
    last = sinks + window - 1
    outside = any(not 0 <= slot <= last for slot in got)
    yield f"a position gets a slot that does not exist: there are slots 0 to {last}", outside
    yield (
        "a position overwrites a sink, which keeps its slot forever",
        _overwrites(got, lambda old, new: old < sinks),
    )
    yield (
        "a position overwrites one that the next query may still see",
        _overwrites(got, lambda old, new: new - old < window),
    )
    yield f"the slots of positions 0 to {n - 1}", got


def _overwrites(slots: Sequence[int], wrong: Any) -> bool:
    """Whether a position overwrites an earlier one that must be kept."""
    held: dict[int, int] = {}
    for position, slot in enumerate(slots):
        if slot in held and wrong(held[slot], position):
            return True
        held[slot] = position
    return False


def run_without(answer: Answer) -> Pairs:
    """A ring without sinks; the argument is left out of the call."""
    yield (
        "the slots of positions 0 to 9 in a ring of 4, without `sinks`",
        [answer(position, 4) for position in range(10)],
    )


def run_any_order(answer: Answer) -> Pairs:
    """Single positions in several rings."""
    for position, window, sinks in (
        (1_000_003, 1000, 4),
        (0, 6, 0),
        (2**60 + 1, 4096, 0),
        (5, 16, 8),
        (3, 6, 1),
        (123_456, 1, 2),
    ):
        ring = f"a window of {window} and {sinks} sinks"
        yield f"the slot of position {position:,} with {ring}", answer(position, window, sinks)


RIGHT: Answer = solutions.slot_of


def slot_by(slot: Any, sink: Any = lambda position, window, sinks: position) -> Answer:
    """slot_of as one function for the ring's positions and one for the sinks."""

    def slot_of(position: int, window: int, sinks: int = 0) -> Any:
        if position < sinks:
            return sink(position, window, sinks)
        return slot(position, window, sinks)

    return slot_of


def right_slot(p: int, w: int, s: int) -> int:
    return s + (p - s) % w


def without_sinks(p: int, w: int, s: int = 0) -> int:
    return s + (p - s) % w


def one_sink_more(p: int, w: int, s: int = 0) -> int:
    return p if p <= s else right_slot(p, w, s)


def one_sink_less(p: int, w: int, s: int = 0) -> int:
    return p if p < s - 1 else right_slot(p, w, s)


def next_free() -> Answer:
    calls: list[int] = []

    def slot_of(position: int, window: int, sinks: int = 0) -> int:
        calls.append(position)
        count = len(calls) - 1
        return count if count < sinks else right_slot(count, window, sinks)

    return slot_of


def by_float(p: int, w: int, s: int) -> int:
    return s + round(((p - s) / w - (p - s) // w) * w)


SLOT_OF = Exercise(
    notebook="08",
    hints=(
        "With a window of 4 and 2 sinks, which position is the first in the ring, and which is "
        "the first to reuse its slot?",
        "A sink's slot is its position. For all others, count from the first position after the "
        "sinks, and let `%` wrap the count to 0 after every `window` positions.",
        "return position if position < sinks else sinks + (position - sinks) % window",
    ),
    right=RIGHT,
    cases=[
        Case(run_ring, window=4, sinks=0),
        Case(run_ring, window=4, sinks=2),
        Case(run_ring, window=5, sinks=1),
        Case(run_ring, window=3, sinks=3),
        Case(run_ring, window=2, sinks=5),
        Case(run_ring, window=1, sinks=0),
        Case(run_ring, window=7, sinks=3, n=40),
        Case(run_without),
        Case(run_any_order),
    ],
    mistakes={
        "the sinks are ignored: the ring has the slots after them, from `sinks` on.": (
            lambda position, window, sinks=0: position % window
        ),
        "the ring begins after the sinks, so its first position is `sinks`: count from there, "
        "position - sinks.": slot_by(lambda p, w, s: s + p % w),
        "the sinks are added to the position: count from the first position after them, position - "
        "sinks.": slot_by(lambda p, w, s: s + (p + s) % w),
        "the ring is counted backwards: use position - sinks, not sinks - position.": slot_by(
            lambda p, w, s: s + (s - p) % w
        ),
        "the ring begins after the sinks: add `sinks` to the remainder.": slot_by(
            lambda p, w, s: (p - s) % w
        ),
        "a sink's slot is its position: yours go into the ring and are overwritten.": (
            without_sinks
        ),
        "all slots form the ring, including the sinks', so sinks are overwritten: the ring has "
        "the `window` slots after them.": lambda position, window, sinks=0: (
            position % (sinks + window)
        ),
        "the sinks are subtracted from the window: the ring has `window` slots, and the sinks "
        "have their own.": slot_by(lambda p, w, s: s + (p - s) % max(w - s, 1)),
        "the ring's slots are one too large: position `sinks` takes the first of them, with "
        "remainder 0.": slot_by(lambda p, w, s: s + (p - s + 1) % w),
        "the ring is one slot too short: take the remainder by `window`.": slot_by(
            lambda p, w, s: s + (p - s) % max(w - 1, 1)
        ),
        "the ring is one slot too long: take the remainder by `window`.": slot_by(
            lambda p, w, s: s + (p - s) % (w + 1)
        ),
        "the last sink goes into the ring: a position is a sink if it is below `sinks`.": (
            one_sink_less
        ),
        "the ring never wraps: after `window` positions its first slot is reused, with %.": slot_by(
            lambda p, w, s: p
        ),
        "all positions past the end get the last slot: the ring's first slot is reused, "
        "with %.": slot_by(lambda p, w, s: min(p, s + w - 1)),
        "after the last slot the ring runs backwards: it starts over with its first slot.": slot_by(
            lambda p, w, s: s + min((p - s) % (2 * w), 2 * w - 1 - (p - s) % (2 * w))
        ),
        "the ring runs backwards: position `sinks` takes the first of its slots.": slot_by(
            lambda p, w, s: s + w - 1 - (p - s) % w
        ),
        "you use the quotient, which is how often the ring has wrapped: use the "
        "remainder, %.": slot_by(lambda p, w, s: s + (p - s) // w),
        "the sinks' slots come last: they must be the first ones.": (
            lambda position, window, sinks=0: (
                window + position if position < sinks else (position - sinks) % window
            )
        ),
        "the sinks all get slot 0: each has its own slot, its position.": slot_by(
            right_slot, lambda p, w, s: 0
        ),
        "for a sink nothing is returned: its slot is its position.": slot_by(
            right_slot, lambda p, w, s: None
        ),
        "slots are numbered from 0: yours begin with 1.": (
            lambda position, window, sinks=0: 1 + RIGHT(position, window, sinks)
        ),
        "a slot is an integer: leave division with / out.": (
            lambda position, window, sinks=0: float(RIGHT(position, window, sinks))
        ),
        "there are always 4 sinks: `sinks` says how many.": (
            lambda position, window, sinks=0: RIGHT(position, window, 4)
        ),
        "the calls are counted, not the position: a position's slot does not depend on when you "
        "ask.": Anew(next_free),
        "float division is too coarse for large positions: use the integer remainder, %.": slot_by(
            by_float
        ),
    },
    advice={
        "the type": "A slot is an integer.",
        "does not exist": "The sinks' slots come first, then `window` slots of the ring.",
        "overwrites a sink": "The ring has the slots after the sinks.",
        "may still see": "Two positions of one window share a slot: the ring has `window` slots.",
        "the slot": "A sink's slot is its position; after the sinks it is sinks + (position - "
        "sinks) % window.",
    },
)
