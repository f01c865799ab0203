"""This folder's exception, and the imports of the packages of the extra `pretrained`."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PretrainedError(ValueError):
    """A model that is missing, damaged, or not one that a Decoder computes exactly.

    A message is one line that any terminal shows: what is not printable in it, such as a line
    break or an escape sequence in the name of a tensor, is escaped.
    """

    def __init__(self, message: str):
        super().__init__(printable(message))


def printable(text: str) -> str:
    """A text with escapes for what is not printable: line breaks, ANSI codes, half surrogates."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def shown(name: str) -> str:
    """A name from a file for a message: quoted and shortened if it is not a plain one."""
    plain = name and name.isprintable() and len(name) <= LONGEST_VALUE
    return name if plain else f"{name!r:.{LONGEST_VALUE}}"


LONGEST_VALUE = 100  # characters of a name or a value in a message, which may have two
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = LONGEST_VALUE


def shown_value(value: Any) -> str:
    """A value from a file for a message, in at most LONGEST_VALUE characters.

    A malicious file may hold a string of megabytes, or lists in lists.
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
