"""How often a timing repeats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from statistics import median

from .checks import check_int, check_number


@dataclass(frozen=True)
class Repeats:
    """How often a timing repeats after its warm-up: until it is known, or has had its time.

    It ends early when every ratio to the first system spreads no further than `spread`, the
    highest less the lowest over the median, and before a turn that would end after `seconds`.
    Raises ValueError.
    """

    most: int
    least: int = 2
    spread: float = 0.0  # of so many turns at least: KNOWN_AFTER
    seconds: float = inf  # of one timing, its warm-up included

    KNOWN_AFTER = 3

    def __post_init__(self):
        check_int("repeats", self.most, 1)
        check_int("least", self.least, 1)
        check_number("spread", self.spread, 0, inf)
        check_number("seconds", self.seconds, 0, inf)

    @classmethod
    def of(cls, repeats: int | Repeats) -> Repeats:
        """The same; a number is so many, whatever they show and take."""
        return repeats if isinstance(repeats, Repeats) else cls(repeats, least=repeats)

    def at_most(self, most: int) -> Repeats:
        """The same, with no more than so many."""
        return replace(self, most=min(self.most, most))

    def are_enough(self, values: list[list[float]], spent: float) -> bool:
        """Whether to end after these: a row of seconds for each system; `spent` since the start."""
        n = len(values[0])
        if n >= self.most or n < self.least:
            return n >= self.most
        if spent * (n + 2) / (n + 1) > self.seconds:  # the warm-up was a turn, too
            return True
        return n >= self.KNOWN_AFTER and max(map(spread, _ratios(values))) <= self.spread


def spread(values: list[float]) -> float:
    """The highest less the lowest, over the median."""
    return (max(values) - min(values)) / median(values)


def _ratios(values: list[list[float]]) -> list[list[float]]:
    """The ratio of the first system to each other one, turn by turn; of one system, its own."""
    first, *others = values
    return [[a / b for a, b in zip(first, own, strict=True)] for own in others] or [first]
