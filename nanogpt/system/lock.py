"""One run at a time: a lock on a file, which ends with the process that holds it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def held(path: Path, what: str):
    """Hold the file at `path` as a lock for a with-block; it is removed at the end.

    Raises ValueError, with advice, where another run holds it, and OSError for a folder that cannot
    be written. `what` says what the run writes, as in "to out/small".
    """
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"another run is writing {what}: wait for it, or name another place"
        ) from None
    except OSError as error:
        raise type(error)(
            error.errno,
            f"cannot write into {path.parent} ({error.strerror}): choose another folder",
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the folder is gone or closed, or this is Windows
            path.unlink()  # before it is released: who waits for the old file takes a new one
        lock.release()
