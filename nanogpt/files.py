"""Files that are whole or absent, and the folders of the project.

In a checkout all lies in it. A copy that pip installed has the package and the weights that ship,
and reads and writes `data` and `outputs` in the folder in which it is run.
"""

import errno
import hashlib
import json
import os
import secrets
import tempfile
from contextlib import contextmanager
from pathlib import Path

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

    Raises OSError, with advice, when the folder cannot be written or the disk is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with writing_advice(path.parent):
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
        problem = f"{path} could not be written whole ({error.strerror})"
        raise OSError(error.errno, f"{problem}: make room and try again") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing_advice(folder: Path):
    """Say of an OSError which folder cannot be written. Without flock, FileLock's is another."""
    try:
        yield
    except (OSError, NotImplementedError) as error:
        problem = f"cannot write into {folder} ({getattr(error, 'strerror', 0) or error})"
        number = getattr(error, "errno", errno.ENOSYS)
        raise OSError(number, f"{problem}: choose another folder") from error


def check_writable(path: Path) -> None:
    """Raise OSError when no file can be written at `path`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; name a file", str(path))
    with writing_advice(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all. Raises OSError, as atomic_path does."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, data) -> None:
    """Write data as JSON, whole or not at all. Keys keep their order: equal data is equal bytes."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(path, f"{text}\n".encode())


def sha256(data: bytes | Path) -> str:
    """The SHA-256 of some bytes or of a file, in hexadecimal."""
    return hashlib.sha256(data if isinstance(data, bytes) else Path(data).read_bytes()).hexdigest()


OURS = "nanogpt-notebooks"  # the beginning of the field "format" in the JSON files that we write


def check_file(path: Path, ours: bool, overwrite: bool = False) -> None:
    """Raise ValueError where a file that is not `ours`, a link or a folder is in the way."""
    plain = path.is_file() and not path.is_symlink()
    if os.path.lexists(path) and not (plain and (ours or overwrite)):
        cure = "move it away, or name another place"
        raise ValueError(f"{path} is there, and this command did not write it: {cure}")


def is_marked(path: Path) -> bool:
    """Whether the file is JSON that we wrote."""
    data = read_json(path)
    return isinstance(data, dict) and str(data.get("format")).startswith(OURS)


def read_json(path: Path):
    """The data of a JSON file; None where there is no such file that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
