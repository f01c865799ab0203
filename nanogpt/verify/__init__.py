"""Is a cached text the uncached one? The referee of any model or server, sweeps, the museum.

    from nanogpt.verify import assert_sound

    assert_sound(model)  # raises CacheBug, with the report and a script that shows the bug

contract.py says what a model of another library must offer. To read the referee itself, begin with
report, subjects, contract, offers and texts; then yardstick, reference, ways, situations, damages
and referee; then diagnosis and scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .report import Report


def assert_sound(model: Any, **options: Any) -> Report:
    """The referee's report on a model. `options` are those of `nanogpt.referee`.

    Raises AssertionErrors: CacheBug for a bug, CacheUndecided where nothing was proved.
    """
    from .referee import referee

    return referee(model, **options).raise_unless_sound()
