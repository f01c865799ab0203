"""Exceptions: which mean "not offered", which end the judging, and which are findings."""

from __future__ import annotations


class NotOffered(Exception):
    """Raised by an adapter for what its library does not support; the message says why."""


class NoLogits(ValueError):
    """An adapter returned something other than logits: a mistake in the adapter, not the cache."""


class OutOfTime(Exception):
    """The seconds are used up: nothing new starts."""


# What may come out of somebody else's code. KeyboardInterrupt, and the signals of test runners,
# are of neither class and stop the referee.
ERRORS: tuple[type[BaseException], ...] = (Exception, SystemExit)
# The classes that mean "not offered" wherever they are raised; an adapter may name more.
REFUSALS: tuple[type[BaseException], ...] = (NotOffered, NotImplementedError, MemoryError)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
