"""Files that are whole or absent, and the folders of the project.

In a checkout all lies in it. A copy that pip installed has the package and the weights that ship,
and reads and writes `data` and `outputs` in the folder in which it is run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"cannot write into {path.parent} ({error.strerror}): choose another folder",
        ) from error
    os.close(handle)
    temporary = Path(name)
    remove_leftovers(temporary, f".{path.name}.????????.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp made it private
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(
            error.errno,
            f"{path} could not be written whole ({error.strerror}): make room and try again",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(new: Path, pattern: str) -> None:
    """Remove the files of this pattern beside `new` that are an hour older: of killed writes.

    Only * and ? are special in the pattern.
    """
    for left in new.parent.glob(pattern.replace("[", "[[]")):
        with suppress(OSError):  # another process was quicker
            if new.stat().st_mtime - left.stat().st_mtime > LEFT_AFTER:
                left.unlink()


def check_writable(path: Path) -> None:
    """Raise OSError when no file can be written at `path`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; name a file", str(path))
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
