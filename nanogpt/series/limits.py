"""A limit on the time of a reader's code."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 5  # times as long by the clock, on a machine that has more to do


class TooLong(BaseException):
    """A loop that does not end; no `except Exception` of the reader's holds it back."""


@contextmanager
def limit(seconds: float, words: str) -> Iterator[None]:
    """Around code of a reader's: raise TooLong after so many seconds, where a signal can do that.

    They are seconds of computing: by the clock it may take PATIENCE times as long. A signal comes
    in the main thread, and not on Windows. Inside another limit that one goes on after it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "setitimer")):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        waited = time.monotonic() - begun
        if time.process_time() - computed < seconds and waited < PATIENCE * seconds:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds / 10))
            return
        raise TooLong(f"{words} after {seconds:g} seconds: is there a loop that never ends?")

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
