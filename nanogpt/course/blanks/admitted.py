"""Notebook 09, blank 3: admitted, how many waiting requests may start."""

from ..drivers import whole
from ..page import Blank, Case


def admitted(needs: list[int], free: int, most: int) -> int:
    """How many requests are admitted, from the front of the queue."""
    count = 0
    for need in needs[:most]:
        if need > free:
            break
        count += 1
        free -= need
    return count


# ------------------------------------------------------------------ what a check runs


def run_queue(answer, needs, free, most):
    """One call."""
    queue = [*needs]
    count = answer(queue, free, most)
    yield "the number of requests admitted", whole(count)
    yield "your code changes `needs`, which is the queue itself", queue != needs


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="09.3",
    minutes=11,
    solution=admitted,
    cases=[
        Case(run_queue, needs=[2, 3], free=12, most=4),
        Case(run_queue, needs=[2, 3, 4], free=6, most=4),
        Case(run_queue, needs=[3, 2, 2], free=4, most=4),
        Case(run_queue, needs=[5, 1], free=4, most=4),
        Case(run_queue, needs=[1, 1, 1], free=9, most=2),
        Case(run_queue, needs=[3], free=3, most=1),
        Case(run_queue, needs=[], free=5, most=5),
        Case(run_queue, needs=[2, 9, 1, 1], free=4, most=3),
        Case(run_queue, needs=[1, 2], free=0, most=3),
        Case(run_queue, needs=[1, 2], free=9, most=0),
        Case(run_queue, needs=[7, 1, 1, 1, 1], free=7, most=3),
        Case(run_queue, needs=[1] * 500, free=300, most=400),
    ],
    mistakes={
        "a smaller request overtakes one that does not fit: stop there (`break`), because none may overtake.": [
            "break -> continue"
        ],
        "`most` is ignored: at most that many may run.": ["needs[:most] -> needs"],
        "one request too many may run: at most `most` may.": ["needs[:most] -> needs[: most + 1]"],
        "all or none are admitted: admit those at the front that fit.": (
            ["return count -> return count if count == len(needs[:most]) else 0"],
            [
                "return count -> return most if sum(needs[:most]) <= free else 0",
                "free -= need -> pass",
            ],
        ),
        "the smallest requests come first: the queue has an order, and none may overtake.": [
            "needs[:most] -> sorted(needs)[:most]"
        ],
        "these are the needs of the admitted requests: return how many there are.": [
            "return count -> return needs[:count]"
        ],
    },
    wrong=[
        "needs[:most] -> needs[: max(0, most - 1)]",
        "free -= need -> free -= 1",
        "count = 0 -> count = 0\n    needs.sort()",
        "return count -> return count > 0",
        "need > free -> need >= free",
    ],
    right=[
        """
def admitted(needs, free, most):
    import numpy as np

    return (np.cumsum(np.array(needs[:most], dtype=int)) <= free).sum()
""",
        """
def admitted(needs, free, most):
    totals = torch.tensor(needs[:most], dtype=torch.long).cumsum(0)
    return (totals <= free).sum()
""",
        """
def admitted(needs, free, most):
    for i, need in enumerate(needs):
        if i == most or need > free:
            return i
        free = free - need
    return len(needs)
""",
        """
def admitted(needs, free, most):
    return max(n for n in range(min(most, len(needs)) + 1) if sum(needs[:n]) <= free)
""",
    ],
    hints=(
        "The first request needs 5 blocks and 4 are free; the second one needs 1. How many are admitted? And how many blocks are free for the second one if the first one fits?",
        "Loop over `needs`, stop (`break`) at the first one that does not fit, and otherwise subtract its blocks from `free`. `needs[:most]` are those that may run.",
        "for need in needs[:most]: `break` if need > free; otherwise count += 1 and free -= need",
    ),
    advice={
        "the number of requests admitted": "From the front, each takes its blocks from the free ones; stop at the first that does not fit, and admit at most `most`.",
        "your code raised": "The queue may be empty, and `most` may be more than it has: ask for the length before needs[n].",
    },
)
