"""Findings: claims about a run's numbers, shown only if the run supports them.

A short run has too few seeds, repeats or steps for some claims. The cell then says so, and shows
the published result next to its own, marked as published.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from ..files import PUBLISHED


@dataclass(frozen=True)
class Finding:
    """A claim, whether a run supports it, and whether that run is long enough to tell."""

    name: str
    claim: str  # without numbers: "Muon lowers the loss by more than a seed does"
    numbers: str  # the run's: "−0.12, a seed 0.01"
    holds: bool
    enough: bool = True
    needs: str = ""  # the requirement: "5 repeats, this run has 2"

    @property
    def supported(self) -> bool:
        """Whether the run is long enough, and supports the claim."""
        return self.enough and self.holds

    def __str__(self) -> str:
        if not self.enough:
            return f"this run is too short to tell whether {self.claim}: it takes {self.needs}"
        if not self.holds:
            return f"not supported by this run ({self.numbers}): {self.claim}"
        return f"{self.claim}: {self.numbers}"

    def lines(self, published: Finding | None) -> str:
        """The finding, and below it the published one if this run does not support it."""
        if self.supported or published is None:
            return str(self)
        return f"{self}\n    published, not from this run: {published}"


@lru_cache
def published_findings(number: str) -> dict[str, Finding]:
    """The published notebook's findings, by name; {} if there are none."""
    path = PUBLISHED / "json" / f"{number}.json"
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8")).get("findings", [])
    return {row["name"]: Finding(**row) for row in rows}


def as_data(findings: list[Finding]) -> list[dict[str, Any]]:
    """Findings as plain data, for a notebook's JSON."""
    return [asdict(finding) for finding in findings]
