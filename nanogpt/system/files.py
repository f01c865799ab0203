"""Files that are whole or absent, and the folders of the project.

In a checkout all lies in it. A copy that pip installed has the package and the weights that ship,
and reads and writes `data` and `outputs` in the folder in which it is run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # a full disk or quota
LEFT_AFTER = 3600  # seconds: no write takes that long
PACKAGE = Path(__file__).resolve().parents[1]
IN_CHECKOUT = (PACKAGE.parent / "notebooks").is_dir()
ROOT = PACKAGE.parent if IN_CHECKOUT else Path.cwd()
PUBLISHED = ROOT / "outputs" / "published"
WEIGHTS = PUBLISHED / "checkpoints" if IN_CHECKOUT else PACKAGE / "weights"  # those that ship


@contextmanager
def atomic_path(path: Path):
    """A temporary path beside `path`, renamed to it when the block succeeds, else removed.

    A file at `path` is untouched until then. What a killed write of this file left is removed.
    Raises OSError, with advice, when the folder cannot be written or the disk is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with _advice(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode  # the usual one: safetensors writes a private file
    for left in path.parent.glob(f".{path.name.replace('[', '[[]')}.????????.tmp"):
        with suppress(OSError):  # another process was quicker
            if temporary.stat().st_mtime - left.stat().st_mtime > LEFT_AFTER:
                left.unlink()
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in FULL:
            raise
        why = f"{path} could not be written whole ({error.strerror}): make room and try again"
        raise OSError(error.errno, why) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _advice(folder: Path):
    """Say of an OSError which folder cannot be written."""
    try:
        yield
    except OSError as error:
        why = f"cannot write into {folder} ({error.strerror}): choose another folder"
        raise type(error)(error.errno, why) from error


@contextmanager
def held(path: Path, what: str):
    """Hold the file at `path` as a lock for a with-block; it ends with the process, too.

    Raises ValueError, with advice, where another run holds it, and OSError for a folder that cannot
    be written. `what` says what the run writes, as in "to out/small".
    """
    lock = FileLock(path)
    with _advice(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):
            lock.acquire(blocking=False)
    if not lock.is_locked:
        raise ValueError(f"another run is writing {what}: wait for it, or name another place")
    try:
        yield
    finally:
        with suppress(OSError):  # the folder is gone or closed, or this is Windows
            path.unlink()  # before it is released: who waits for the old file takes a new one
        lock.release()


def check_writable(path: Path) -> None:
    """Raise OSError when no file can be written at `path`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; name a file", str(path))
    with _advice(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_json(path: Path, data) -> None:
    """Write data as JSON, whole or not at all. Keys keep their order: equal data is equal bytes."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def exchange(new: Path, target: Path) -> None:
    """Put the complete folder `new` in the place of `target`, and only then delete the old one.

    Raises OSError when `new` cannot be moved; the old one is back in its place then.
    """
    recover(target)
    old = _aside(target)
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:  # another disk, or it went meanwhile
        recover(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def recover(target: Path) -> None:
    """Finish an exchange that was killed half-way: the old folder comes back, or goes for good."""
    old = _aside(target)
    if old.exists() and target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}-old")


def sha256(data: bytes | Path) -> str:
    """The SHA-256 of some bytes or of a file, in hexadecimal."""
    return hashlib.sha256(data if isinstance(data, bytes) else Path(data).read_bytes()).hexdigest()
