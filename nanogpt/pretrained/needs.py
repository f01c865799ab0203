"""This folder's exception, and the imports of the packages of the extra `pretrained`."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PretrainedError(ValueError):
    """A model that is missing, damaged, or not one that a Decoder computes exactly."""


def shown(name: str) -> str:
    """A name from a file, safe for a one-line message: escaped or shortened if necessary.

    A malicious file may contain tensor names with line breaks or terminal escape sequences.
    """
    return name if name.isprintable() and len(name) <= 100 else f"{name!r:.100}"


LONGEST_VALUE = 200  # characters of a value in a message
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = LONGEST_VALUE


def shown_value(value: Any) -> str:
    """A value from a file for a one-line message: escaped, in at most 200 characters.

    A malicious file may hold a string of megabytes, lists in lists or a lone surrogate.
    """
    return _SHORT.repr(value)[:LONGEST_VALUE]


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Wrap imports: a missing package is reported with the extra that installs it.

    Raises ModuleNotFoundError. `what` says what the package is needed for.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs the package {error.name}, which is not installed: "
            f'pip install "nanogpt-notebooks[pretrained]"',
            name=error.name,
        ) from error
