"""Atomic writes, path handling, and the project's folders.

In a checkout, all files are inside it. A pip-installed copy has the package and the bundled
weights, and reads and writes `data` and `outputs` in the current folder.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # a full disk or quota
PACKAGE = Path(__file__).resolve().parent
IN_CHECKOUT = (PACKAGE.parent / "notebooks").is_dir()
try:
    ROOT = PACKAGE.parent if IN_CHECKOUT else Path.cwd()
except FileNotFoundError:  # the current folder was deleted; the command line reports it
    ROOT = Path()
PUBLISHED = ROOT / "outputs" / "published"
WEIGHTS = PUBLISHED / "checkpoints" if IN_CHECKOUT else PACKAGE / "weights"  # bundled
# The two bundled models, without suffix: the best one, and one in the lecture's form with its Head.
KEEPER = (ROOT / "outputs" / "keeper" if IN_CHECKOUT else WEIGHTS) / "keeper"
LECTURE_FORM = WEIGHTS / "medium"


# ------------------------------------------------------------------ paths given by the user


def user_path(path: str | Path) -> Path:
    """Expand a path like a shell: a leading `~` is the home folder, `~name` that of a user.

    Every path from an option, an environment variable or a call goes through here. Raises
    ValueError for a home folder that does not exist on this machine and for a null byte, OSError
    for a name that is too long for the file system.
    """
    # 1. The home folder, as a shell expands it. What the shell left quoted arrives here with a ~.
    text = os.path.expanduser(path)
    if text.startswith("~"):
        raise ValueError(
            f"{text!r}: no such home folder; write the full path, or ./{text} for a file of that "
            "name"
        )
    # 2. The path itself. What no file can be called is refused here, before anything looks there.
    found = Path(text)
    try:
        os.lstat(found)
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise ValueError(f"{text!r:.80}: no path can be called that ({error})") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise name_too_long(found.parent) from error
    if str(found).startswith("~"):  # it was ./~name; pathlib drops the ./
        return Path.cwd() / found
    return found


def real_path(path: str | Path) -> Path:
    """The absolute path with symbolic links resolved. A loop of links is kept; opening it fails."""
    return Path(os.path.realpath(user_path(path)))


def path_in(variable: str) -> Path | None:
    """The absolute path in an environment variable, None if it is unset. Raises ValueError."""
    named = os.environ.get(variable)
    return user_path(named).absolute() if named else None


# ------------------------------------------------------------------ writing


@contextmanager
def atomic_path(path: Path):
    """A temporary path next to `path`, renamed to it if the block succeeds, otherwise removed.

    A replaced file keeps its permissions. Raises OSError, with advice, if the folder cannot be
    written, the disk is full, or `path` must not be replaced.
    """
    # 1. Refuse what must not be replaced, before the caller writes anything.
    path = Path(path)
    check_replaceable(path)
    # 2. A temporary file in the same folder: a rename is atomic only within one file system.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with writing_advice(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        kept = path if path.exists() else temporary
        mode = kept.stat().st_mode  # safetensors would leave a private file
        os.chmod(temporary, 0o600)  # writable, whatever the umask is
    # 3. The caller writes. Flush the data to the disk before the rename, or a power cut could leave
    #    the new name with no contents.
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        # 4. From one moment to the next the name means the new file.
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(
            error.errno,
            f"{path} could not be written ({error.strerror}): make room and try again",
        ) from error
    finally:
        # 5. After an error or a Ctrl-C nothing is left. After the rename it is gone already.
        temporary.unlink(missing_ok=True)


@contextmanager
def writing_advice(folder: Path):
    """Add the folder to a write error. Without flock, FileLock raises NotImplementedError."""
    try:
        yield
    except (OSError, NotImplementedError) as error:
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            raise name_too_long(folder) from error
        raise OSError(
            getattr(error, "errno", errno.ENOSYS),
            f"cannot write into {folder} ({getattr(error, 'strerror', 0) or error}): "
            f"choose another folder",
        ) from error


def name_too_long(folder: Path) -> OSError:
    """The error for a name that the file system does not take."""
    # The folder's own name may be what is too long, so it is not shown in full.
    shown = f"{str(folder)[:80]}…" if len(str(folder)) > 80 else folder
    return OSError(
        errno.ENAMETOOLONG, f"the name of a file in {shown} is too long: choose a shorter one"
    )


def check_replaceable(path: Path) -> None:
    """Raise FileExistsError unless `path` does not exist or is a regular file that is writable.

    A rename would also replace a link, a pipe, a device or a read-only file.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # nothing there, or the folder cannot be read: writing will report it
    if stat.S_ISLNK(mode):
        raise FileExistsError(
            errno.EEXIST,
            f"{path} is a link to {os.readlink(path)}, and links are not replaced: "
            f"name the file itself",
        )
    if stat.S_ISDIR(mode):
        raise FileExistsError(errno.EEXIST, f"{path} is a folder: name a file")
    if not stat.S_ISREG(mode):
        raise FileExistsError(errno.EEXIST, f"{path} is a pipe or a device: name a file")
    if not mode & 0o222:
        raise FileExistsError(
            errno.EEXIST,
            f"{path} is read-only: name another file, or allow writing with chmod u+w",
        )


def check_no_file(folder: Path) -> None:
    """Raise ValueError for a file where a folder is needed."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name a folder")


def check_writable(path: Path) -> None:
    """Raise OSError if no file can be written at `path`."""
    check_replaceable(path)
    with writing_advice(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically. Raises OSError, as atomic_path does."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, data) -> None:
    """Write JSON atomically. Keys keep their order, so equal data gives equal bytes."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(path, f"{text}\n".encode())


def sha256(data: bytes | Path) -> str:
    """The SHA-256 of bytes or of a file, in hexadecimal."""
    return hashlib.sha256(data if isinstance(data, bytes) else Path(data).read_bytes()).hexdigest()


OURS = "nanogpt-notebooks"  # prefix of the "format" field in the JSON files that we write


def check_file(path: Path, ours: bool, overwrite: bool = False) -> None:
    """Raise ValueError if a file exists that is not `ours`, OSError as check_replaceable does."""
    check_replaceable(path)
    if os.path.lexists(path) and not (ours or overwrite):
        raise ValueError(
            f"{path} already exists, and this command did not write it: "
            f"move it away, or choose another path"
        )


def is_marked(path: Path) -> bool:
    """Whether the file is JSON that we wrote."""
    data = read_json(path)
    return isinstance(data, dict) and str(data.get("format")).startswith(OURS)


def read_json(path: Path):
    """The data of a JSON file; None if there is no such file or it cannot be read."""
    if not path.is_file():  # opening a pipe would wait for its writer
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
