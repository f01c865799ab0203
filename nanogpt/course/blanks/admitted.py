"""Notebook 09, blank 3: admitted."""

from ..page import Blank


def admitted(needs: list[int], free: int, most: int) -> int:
    """How many requests are admitted, from the front of the queue."""
    count = 0
    for need in needs[:most]:
        if need > free:
            break
        count += 1
        free -= need
    return count


BLANK = Blank(
    number="09.3",
    solution=admitted,
    cases=[],
    mistakes={},
    hints=(
        "The first request needs 5 blocks and 4 are free; the second one needs 1. How many are admitted? And how many blocks are free for the second one if the first one fits?",
        "Loop over `needs`, stop (`break`) at the first one that does not fit, and otherwise subtract its blocks from `free`. `needs[:most]` are those that may run.",
        "for need in needs[:most]: `break` if need > free; otherwise count += 1 and free -= need",
    ),
    advice={
        "the number of requests admitted": "From the front, each takes its blocks from the free ones; stop at the first that does not fit, and admit at most `most`.",
        "the queue itself": "Only count.",
        "your code raised": "The queue may be empty, and `most` may be more than it has.",
    },
)
