"""Does a KV cache change the output of a language model? A referee for models of any library.

    from kv_referee import assert_sound

    assert_sound(model)  # raises CacheBug, with the report and a script that reproduces the bug

contract.py describes what a model from another library must provide. To read the referee's own
code, start with report, subjects, contract, offers and texts; then yardstick, reference, ways,
situations, damages and referee; then diagnosis and scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..kv_referee.report import Report


def assert_sound(model: Any, **options: Any) -> Report:
    """Run the referee on a model and return its report. `options` are those of `referee`.

    Raises AssertionErrors: CacheBug if there is a bug, CacheUndecided if nothing was proved.
    """
    from .referee import referee

    return referee(model, **options).raise_unless_sound()
