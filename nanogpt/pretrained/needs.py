"""What this folder raises, and how it imports the packages of the extra `pretrained`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class PretrainedError(ValueError):
    """A model that is missing, damaged, or not one that a Decoder computes exactly."""


def shown(name: str) -> str:
    """A name from a file for a message of one line: as it is, unless it would not print or is long.

    A hostile file may name a tensor with line breaks or with commands for a terminal.
    """
    return name if name.isprintable() and len(name) <= 100 else f"{name!r:.100}"


@contextmanager
def needed(what: str) -> Iterator[None]:
    """A with-block of imports; a package that is absent is named, with the extra that has it.

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
