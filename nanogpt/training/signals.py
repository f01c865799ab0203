"""Signals that end a process, and how a command that is stopped still saves its work.

`training` defers a stop until a step is complete, `series` saves what a run has produced, and `cli`
turns the signal into an exit code.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Ctrl-C; the signal sent by `kill`, a container or a batch system; a closing terminal.
STOPS = [getattr(signal, x) for x in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, x)]
_TERMINALS = [number for number in (1, 2) if os.isatty(number)]  # checked before it can close
received: list[int] = []  # the signals that stopped this command


def interrupt(number: int, frame: FrameType | None) -> None:
    """A signal handler that raises KeyboardInterrupt, as Python's own does for Ctrl-C."""
    note_stop(number)
    raise KeyboardInterrupt


def note_stop(number: int) -> None:
    """Remember the signal for the exit code. After a terminal has closed, print nothing more.

    Printing to a closed terminal raises an error, which would lose what a stop must save.
    """
    received.append(number)
    if number == getattr(signal, "SIGHUP", None):
        for stream in _TERMINALS:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


@contextmanager
def deferred_interrupt() -> Iterator[list[int]]:
    """Yield a list that receives the first Ctrl-C, SIGTERM or SIGHUP, so that steps are completed.

    A second one raises KeyboardInterrupt. A signal that would have killed the process does so at
    the end of the block. Nothing changes outside the main thread, or for a signal that is ignored
    or has a handler set by the caller.
    """
    signals: list[int] = []
    before: dict[int, Any] = {}  # handlers, by signal

    # 1. The handler: remember the first signal, and raise at the second, for those in a hurry.
    def note(number: int, frame: FrameType | None) -> None:
        if signals:
            raise KeyboardInterrupt
        note_stop(number)
        signals.append(number)

    # 2. Install it where the signal would end the process. Only the main thread may do so.
    if threading.current_thread() is threading.main_thread():
        usual = (signal.default_int_handler, interrupt, signal.SIG_DFL)
        before = {n: signal.getsignal(n) for n in STOPS if signal.getsignal(n) in usual}
    for number in before:
        signal.signal(number, note)
    # 3. The block looks at the list between its steps.
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # A signal without a handler kills, and its sender expects so: be killed by it now.
        if signals and before[signals[0]] is signal.SIG_DFL:
            os.kill(os.getpid(), signals[0])


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A with-block that ignores these signals, so that a stopped command can still save its work.

    A second signal is common: `make`, `timeout` and a terminal each signal the whole process group.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def stop_code() -> int:
    """The exit code of a process stopped by a signal: 128 plus its number; 130 for Ctrl-C."""
    return 128 + (received[-1] if received else signal.SIGINT)
