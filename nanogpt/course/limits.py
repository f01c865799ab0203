"""A time limit for a reader's code."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 5  # wall-clock limit as a multiple of the CPU limit, for busy machines


class TooLong(BaseException):
    """A time limit was exceeded; a reader's `except Exception` does not catch it."""


@contextmanager
def limit(seconds: float, words: str) -> Iterator[None]:
    """Wrap a reader's code: raise TooLong after `seconds`.

    The limit is in CPU seconds; the wall-clock limit is PATIENCE times as long. Signals work only
    in the main thread; in another there is no limit. An outer limit continues after an inner one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        waited = time.monotonic() - begun
        if time.process_time() - computed < seconds and waited < PATIENCE * seconds:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds / 10))
            return
        raise TooLong(f"{words} within {seconds:g} seconds: is there a loop that never ends?")

    handler = signal.signal(signal.SIGALRM, stop)
    begun = time.monotonic()
    computed = time.process_time()
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        rest = max(0.01, remaining - (time.monotonic() - begun)) if remaining else 0
        signal.setitimer(signal.ITIMER_REAL, rest)
