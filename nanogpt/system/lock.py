"""One run at a time: a lock on a file, which ends with the process that holds it."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two runs apart there
    fcntl = None


@contextmanager
def held(path: Path, what: str):
    """Hold the file at `path` as a lock for a with-block; it is removed at the end.

    Raises ValueError, with advice, where another run holds it, and OSError for a folder that cannot
    be written. `what` says what the run writes, as in "to out/small".
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(path, what)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"cannot write into {path.parent} ({error.strerror}): choose another folder",
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the folder is gone or closed, or this is Windows
            path.unlink()
        file.close()


def _locked(path: Path, what: str):
    """The open file with this process's number in it, once no other process holds it."""
    while True:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with file:
                file.seek(0)
                raise ValueError(
                    f"another run (process {file.read().strip()}) is writing {what}: wait for it, "
                    f"or name another place"
                ) from None
        if not fcntl or _is_at(file, path):
            with suppress(OSError):  # a full disk: the lock holds without the number
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), str(os.getpid()).encode())
            return file
        file.close()  # whoever held it has removed it: take the new one


def _is_at(file, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
