"""Files that are whole or absent, and the folders of the project.

In a checkout all lies in it. A copy that pip installed has the package and the weights that ship,
and reads and writes `data` and `outputs` in the folder in which it is run.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import secrets
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # a full disk or quota
PACKAGE = Path(__file__).resolve().parent
IN_CHECKOUT = (PACKAGE.parent / "notebooks").is_dir()
ROOT = PACKAGE.parent if IN_CHECKOUT else Path.cwd()
PUBLISHED = ROOT / "outputs" / "published"
WEIGHTS = PUBLISHED / "checkpoints" if IN_CHECKOUT else PACKAGE / "weights"  # those that ship
# The two models that ship, without suffix: the best one, and the lecture's form, for its Head.
KEEPER = (ROOT / "outputs" / "keeper" if IN_CHECKOUT else WEIGHTS) / "keeper"
LECTURE_FORM = WEIGHTS / "medium"


@contextmanager
def atomic_path(path: Path):
    """A temporary path beside `path`, renamed to it when the block succeeds, else removed.

    A file at `path` is untouched until then. Raises OSError, with advice, when the folder cannot be
    written or the disk is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with _advice(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode  # the usual one: safetensors writes a private file
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


def remove_leftovers(path: Path) -> None:
    """Remove what a killed process has left of writing `path`: temporary files of its very name.

    Call it only where no other process can be writing this file.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp")
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if pattern.fullmatch(left.name) and left.is_file() and not left.is_symlink():
            left.unlink(missing_ok=True)


@contextmanager
def _advice(folder: Path):
    """Say of an OSError which folder cannot be written. Without flock, FileLock's is another."""
    try:
        yield
    except (OSError, NotImplementedError) as error:
        why = f"cannot write into {folder} ({getattr(error, 'strerror', 0) or error})"
        number = getattr(error, "errno", errno.ENOSYS)
        raise OSError(number, f"{why}: choose another folder") from error


@contextmanager
def held(path: Path, what: str, wait: float = 0.0):
    """Hold the file at `path` as a lock for a with-block; it ends with the process, too.

    Raises ValueError, with advice, where another run still holds it after `wait` seconds or a file
    that is no lock is there, and OSError for a folder that cannot be written. `what` says what the
    run writes, as in "to out/small". Of a lock that others wait for the empty file stays.
    """
    lock = FileLock(path)
    check_writable(path)  # FileLock takes ENOENT for a Timeout
    # To lock empties a file.
    check_file(path, path.is_file() and path.stat().st_size == 0)
    with _advice(path.parent), suppress(Timeout):
        lock.acquire(timeout=wait)
    if not lock.is_locked:  # a Timeout
        raise ValueError(f"another run is writing {what}: wait for it, or name another place")
    try:
        yield
    finally:
        with suppress(OSError):  # the folder is gone or closed, or this is Windows
            if not wait:
                path.unlink()  # before it is released: who waits for the old file takes a new one
        lock.release()


def check_writable(path: Path) -> None:
    """Raise OSError when no file can be written at `path`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; name a file", str(path))
    with _advice(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all. Raises OSError, as atomic_path does."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, data) -> None:
    """Write data as JSON, whole or not at all. Keys keep their order: equal data is equal bytes."""
    write_whole(path, _json(data).encode())


def sha256(data: bytes | Path) -> str:
    """The SHA-256 of some bytes or of a file, in hexadecimal."""
    return hashlib.sha256(data if isinstance(data, bytes) else Path(data).read_bytes()).hexdigest()


# ------------------------------------------------------------------ whose file it is


class ForeignFiles(ValueError):
    """Files in the way that we did not write, or that were changed since, by name."""


def check_file(path: Path, ours: bool) -> None:
    """Raise ForeignFiles where something is at `path` that is not `ours`, or a link or a folder."""
    plain = path.is_file() and not path.is_symlink()
    if os.path.lexists(path) and not (plain and ours):
        why = "this command did not write it, or somebody changed it since"
        raise ForeignFiles(f"{path}: {why}: move it away, or name another place")


def sealed(data: dict) -> dict:
    """The data, with a digest of all the rest in its last field: nobody has changed the file."""
    return {**data, "digest": sha256(_json(data).encode())}


def read_sealed(path: Path) -> dict | None:
    """The sealed data that we wrote at `path`; None where nothing is, or anything else."""
    data = read_json(path)
    if not isinstance(data, dict) or "digest" not in data:
        return None
    del data["digest"]
    return data if path.read_bytes() == _json(sealed(data)).encode() else None


def read_json(path: Path):
    """The data of a JSON file; None where there is no such file that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _json(data) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
