"""The checks of the kept blanks by the names of the blanks, as the notebooks import them.

    from nanogpt.series.judges import Head as problem

`problem(answer)` says what is wrong with an answer, in a sentence or two, or returns None.
"""

from __future__ import annotations

from .blanks import Problem
from .checks import EXERCISES, problem_of

_PROBLEMS: dict[str, Problem] = {name: problem_of(name) for name in EXERCISES}
__all__ = [*EXERCISES]


def __getattr__(name: str) -> Problem:
    if name not in _PROBLEMS:
        raise AttributeError(f"no exercise is called {name!r}: there is {', '.join(_PROBLEMS)}")
    return _PROBLEMS[name]
