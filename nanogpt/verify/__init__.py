"""Is a cached text the uncached one? The referee of any model or server, sweeps, the museum.

    from nanogpt.verify import assert_sound

    assert_sound(model)  # raises CacheBug, with the report and a script that shows it

Read report, subjects, texts, ways and door, then yardstick, reference, situations, referee.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report import Report


def assert_sound(model: Any, **options: Any) -> Report:
    """The referee's report on a model. Raises CacheBug, an AssertionError, for a bug.

    `options` are those of `nanogpt.referee`.
    """
    from .referee import referee

    return referee(model, **options).raise_for_bug()
