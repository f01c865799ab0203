"""Does a KV cache change the output of a language model? A referee for models of any library.

    from kv_referee import assert_sound

    assert_sound(model)  # raises CacheBug, with the report and a script that shows the bug

README.md has the contract. To read the code, start with report and contract; then programs and
scenarios; then yardstick, judging and reference; then trial, comparing and damages; at last
shrinking, diagnosis and scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import NotOffered as NotOffered
    from .report import CacheBug as CacheBug
    from .report import CacheUndecided as CacheUndecided
    from .report import Report as Report
    from .report import Verdict as Verdict
    from .trial import referee as referee

_HOME = {
    "referee": "trial",
    "NotOffered": "errors",
    "CacheBug": "report",
    "CacheUndecided": "report",
    "Report": "report",
    "Verdict": "report",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is asked for: pytest loads the plugin without torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def assert_sound(model: Any, **options: Any) -> Report:
    """Run the referee on a model and return its report. `options` are those of `referee`.

    Raises AssertionErrors: CacheBug if there is a bug, CacheUndecided if nothing was proved.
    """
    from .trial import referee

    return referee(model, **options).raise_unless_sound()
