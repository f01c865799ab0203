"""What this folder raises, and how it imports the packages of the extra `pretrained`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class PretrainedError(ValueError):
    """A model that is missing, damaged, or not one that a Decoder computes exactly."""


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
