"""A mistake of every function: it computes, and returns nothing."""

from __future__ import annotations

from typing import Any

from .exercise import Answer


def without_return(answer: Answer) -> Answer:
    """The answer without its `return`."""

    def computes(*arguments: Any) -> None:
        answer(*arguments)

    return computes
