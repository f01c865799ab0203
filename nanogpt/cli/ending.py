"""How a command ends: its exit code, one line on stderr, and Ctrl-C.

Exit codes: 0 done; 1 done, with a bad result (a mismatch, a loss that is not finite); 2 it could
not be done, and one line on stderr says why; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable

EXTRAS = {"jax": "peers", "ray": "ray", "transformers": "export"}  # of the wheel; else notebooks


def leave(number, frame) -> None:
    """A Ctrl-C before a command has begun ends the process: nothing is written yet.

    An exception could get lost in what is being imported, or come with its tracebacks.
    """
    if speaks():
        os.write(2, b"\nstopped: nothing was written\n")
    os._exit(130)


def speaks() -> bool:
    """Whether this process says what went wrong: of those that torchrun started here, one does."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def exit_code(command: Callable[[], int | None], names: Iterable[str] = ()) -> int:
    """Run a command and return its exit code, 0 when it returns None; an error becomes one line.

    `names` are those of its options, as the library calls them. A KeyboardInterrupt may carry what
    was kept, as in KeyboardInterrupt("the weights are in …"). An error that no user can cause is
    not caught: it keeps its traceback.
    """
    try:
        _begin()
        return command() or 0
    except KeyboardInterrupt as stopped:
        why, code = f"\nstopped: {stopped if str(stopped) else 'nothing was written'}", 130
    except FloatingPointError as error:
        why, code = f"error: {error}", 1
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        why, code = f"error: {missing(error)}", 2
    except (ValueError, OSError, ImportError, MemoryError) as error:
        words = re.sub(r"\[(Errno|WinError) \S+\] ", "", str(error))
        if isinstance(error, FileNotFoundError) and error.filename:
            words += ": check the path"
        why, code = f"error: {words or 'the memory of this machine is full'}", 2
    except RuntimeError as error:
        from ..engines.toolchain import CannotBuild

        if not isinstance(error, CannotBuild):
            raise
        why, code = f"error: {error}", 2
    if speaks():
        print(in_options(why, names), file=sys.stderr)
    return code


def missing(error: ModuleNotFoundError) -> str:
    """The package that is not installed, and the extra that installs it. Raises one of our own."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "nanogpt"):
        raise error
    extra = EXTRAS.get(package, "notebooks")
    return f'{package} is not installed: pip install "nanogpt-notebooks[{extra}]"'


def in_options(message: str, names: Iterable[str]) -> str:
    """A library's message in the words of the command line: top_k=0 is --top-k 0 there."""

    def option(found: re.Match) -> str:
        name, value = found.groups()
        if name not in names or not (value or "_" in name):  # plain words are words
            return found[0]
        option = f"--{name.replace('_', '-')}"
        return option if value in (None, "True") else f"{option} {value}"

    return re.sub(r"(?<![\w.-])([a-z]\w*)(?:=([^\s:;,]+))?", option, message)


def _begin() -> None:
    """From here on a Ctrl-C is a KeyboardInterrupt, where it ended the process until now."""
    if signal.getsignal(signal.SIGINT) is leave:
        import torch  # noqa: F401  which every command needs

        signal.signal(signal.SIGINT, interrupt)


def interrupt(number, frame) -> None:
    """Raise KeyboardInterrupt, but never in an import: there it could get lost, so it comes later.

    An import runs callbacks and C code that print an exception and go on.
    """
    while frame and hasattr(signal, "pthread_kill"):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            again = signal.pthread_kill, (threading.main_thread().ident, number)
            return threading.Timer(0.05, *again).start()
        frame = frame.f_back
    raise KeyboardInterrupt
