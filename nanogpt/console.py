"""Progress bars in a terminal and a notebook, one-line errors, and signals that end a process."""

import os
import signal
import sys
import threading
from contextlib import contextmanager

from tqdm import tqdm


class Progress(tqdm):
    """A progress bar in a terminal or a notebook; hidden elsewhere, or if TQDM_DISABLE is set.

    It goes to stdout, like the lines around it: JupyterLab shows stderr separately, in red.
    """

    def __init__(self, total: int, name: str, *, hidden: bool = False, **options):
        off = hidden or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        terminal = sys.stdout is not None and sys.stdout.isatty()  # None: it was closed
        off |= not (terminal or "ipykernel" in sys.modules)
        options |= {"desc": name, "disable": off, "leave": False, "mininterval": 0.5}
        super().__init__(total=total, file=sys.stdout, **options)

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        if sys.stdout is not None:
            self.write(line)
            sys.stdout.flush()


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


# ------------------------------------------------------------------ signals that end a process

# Ctrl-C; the signal sent by `kill`, a container or a batch system; a closing terminal.
STOPS = [getattr(signal, x) for x in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, x)]
_TERMINALS = [number for number in (1, 2) if os.isatty(number)]  # checked before it can close
received: list[int] = []  # the signals that stopped this command


def interrupt(number: int, frame) -> None:
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
def uninterrupted():
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
