"""What a run takes: seconds of each notebook, row by row, and which row fits a machine.

The seconds of the full row are those of a published run, on the machine of REFERENCE, whose speed
is 1; those of the shorter rows are its cells, scaled to the row's counts. A machine's speed is two
numbers, since machines differ in them by different factors: how soon it makes small calls
(decoding, imports, figures, a compiler) and how soon it does arithmetic (training).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """A machine's speed, as a multiple of the reference's."""

    calls: float
    arithmetic: float
    together: float = 1.78  # what two notebooks do at once, one alone being 1: measured, 2 cores

    def __post_init__(self):
        if min(self.calls, self.arithmetic, self.together) <= 0:
            raise ValueError(f"{self}: a speed must be above 0")

    @property
    def ratio(self) -> float:
        """One number for both: in a run, calls take CALLS of the time and arithmetic the rest."""
        return 1 / (CALLS / self.calls + (1 - CALLS) / self.arithmetic)


@dataclass(frozen=True)
class Cost:
    """Seconds of one notebook on the reference machine."""

    calls: float
    arithmetic: float = 0.0
    alone: float = 0.0  # of the calls, what cells take that measure time: nothing runs beside them

    def seconds(self, speed: Speed) -> float:
        """Seconds on a machine of this speed."""
        return self.calls / speed.calls + self.arithmetic / speed.arithmetic


@dataclass(frozen=True)
class Row:
    """A profile, and what each notebook takes with it."""

    profile: str
    costs: dict[str, Cost]

    def cost(self, notebook: str) -> Cost:
        """The cost of a notebook by its number; of one that is not in the table, the mean."""
        known = self.costs.values()
        mean = Cost(*(sum(getattr(c, f) for c in known) / len(known) for f in Cost.__annotations__))
        return self.costs.get(notebook[:2], mean)

    def total(self, notebooks: Iterable[str], speed: Speed, lanes: int) -> float:
        """Seconds of them all, in so many lanes."""
        costs = [self.cost(name) for name in notebooks]
        alone = sum(cost.alone for cost in costs) / speed.calls
        rest = sum(cost.seconds(speed) for cost in costs) - alone
        return alone + rest / min(lanes, speed.together)


CALLS = 0.6
LIMIT = 358  # seconds that all notebooks may take: six minutes
# One training step of 1,024 characters (model "small"), and one token decoded by 16 Heads in turn,
# both on one thread: seconds on the machine of the table.
REFERENCE = {"arithmetic": 0.043, "calls": 0.0041}

ROWS = (
    Row(
        "cpu-fast",
        {
            "00": Cost(24, 0, 10),
            "01": Cost(22, 50),
            "02": Cost(10),
            "03": Cost(26),
            "04": Cost(32),
            "05": Cost(42, 0, 32),
            "06": Cost(105, 6, 36),
            "07": Cost(34, 6, 8),
            "08": Cost(36, 32, 5),
            "09": Cost(30, 0, 8),
            "10": Cost(19, 0, 11),
            "11": Cost(16, 30, 1),
            "12": Cost(24, 0, 7),
        },
    ),
    Row(
        "cpu-middle",
        {
            "00": Cost(20, 0, 8),
            "01": Cost(16, 26),
            "02": Cost(10),
            "03": Cost(18),
            "04": Cost(24),
            "05": Cost(26, 0, 18),
            "06": Cost(68, 3, 16),
            "07": Cost(28, 4, 6),
            "08": Cost(26, 18, 4),
            "09": Cost(24, 0, 6),
            "10": Cost(18, 0, 9),
            "11": Cost(12, 18, 1),
            "12": Cost(22, 0, 7),
        },
    ),
    Row(
        "cpu-slow",
        {
            "00": Cost(12, 0, 4),
            "01": Cost(10, 9),
            "02": Cost(8),
            "03": Cost(11),
            "04": Cost(15),
            "05": Cost(14, 0, 7),
            "06": Cost(30, 2, 8),
            "07": Cost(17, 2, 3),
            "08": Cost(16, 8, 2),
            "09": Cost(15, 0, 4),
            "10": Cost(15, 0, 6),
            "11": Cost(8, 8, 1),
            "12": Cost(15, 0, 4),
        },
    ),
    Row(
        "cpu-least",
        {
            "00": Cost(8, 0, 2),
            "01": Cost(8, 4),
            "02": Cost(7),
            "03": Cost(9),
            "04": Cost(11),
            "05": Cost(9, 0, 3),
            "06": Cost(18, 1, 4),
            "07": Cost(12, 1, 2),
            "08": Cost(11, 3, 1),
            "09": Cost(10, 0, 2),
            "10": Cost(13, 0, 5),
            "11": Cost(6, 4, 1),
            "12": Cost(10, 0, 3),
        },
    ),
)
FULL = Row(
    "cpu",
    {
        "00": Cost(41, 0, 22),
        "01": Cost(40, 236),
        "02": Cost(12),
        "03": Cost(51),
        "04": Cost(53),
        "05": Cost(81, 0, 65),
        "06": Cost(155, 12, 50),
        "07": Cost(49, 10, 12),
        "08": Cost(56, 60, 6),
        "09": Cost(45, 0, 20),
        "10": Cost(33, 0, 17),
        "11": Cost(14, 60, 1),
        "12": Cost(29, 0, 10),
    },
)


def choose_row(speed: Speed, lanes: int) -> Row:
    """The row of most work that a machine does within LIMIT, in so many lanes; else the least."""
    within = (row for row in ROWS if row.total(row.costs, speed, lanes) <= LIMIT)
    return next(within, ROWS[-1])
