"""Files that are whole or absent, and the folders of the project.

In a checkout all lies in it. A copy that pip installed has the package and the weights that ship,
and reads and writes `data` and `outputs` in the folder in which it is run.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # a full disk or quota
PACKAGE = Path(__file__).resolve().parent
IN_CHECKOUT = (PACKAGE.parent / "notebooks").is_dir()
try:
    ROOT = PACKAGE.parent if IN_CHECKOUT else Path.cwd()
except FileNotFoundError:  # the folder was deleted, which the command line says
    ROOT = Path()
PUBLISHED = ROOT / "outputs" / "published"
WEIGHTS = PUBLISHED / "checkpoints" if IN_CHECKOUT else PACKAGE / "weights"  # those that ship
# The two models that ship, without suffix: the best one, and the lecture's form, for its Head.
KEEPER = (ROOT / "outputs" / "keeper" if IN_CHECKOUT else WEIGHTS) / "keeper"
LECTURE_FORM = WEIGHTS / "medium"


# ------------------------------------------------------------------ paths that people name


def user_path(path: str | Path) -> Path:
    """The path as a shell reads it: a leading `~` is the home folder, `~name` that of a user.

    Every path that a person gives, in an option, a variable or a call, goes through here. Raises
    ValueError for a home folder that this machine does not know.
    """
    text = os.path.expanduser(path)
    if text.startswith("~"):
        raise ValueError(
            f"{text!r}: there is no such home folder; write the whole path, or ./{text} for a file "
            "of that name"
        )
    found = Path(text)
    if str(found).startswith("~"):  # it was ./~name, and pathlib drops the dot
        return Path.cwd() / found
    return found


def real_path(path: str | Path) -> Path:
    """The whole path without symbolic links. A loop of links stays, and opening it names it."""
    return Path(os.path.realpath(user_path(path)))


def path_in(variable: str) -> Path | None:
    """The whole path that an environment variable names, None without one. Raises ValueError."""
    named = os.environ.get(variable)
    return user_path(named).absolute() if named else None


# ------------------------------------------------------------------ writing


@contextmanager
def atomic_path(path: Path):
    """A temporary path beside `path`, renamed to it when the block succeeds, else removed.

    A file that is replaced keeps its permissions. Raises OSError, with advice, when the folder
    cannot be written, the disk is full, or `path` is something that must not be replaced.
    """
    path = Path(path)
    check_replaceable(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with writing_advice(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        kept = path if path.exists() else temporary
        mode = kept.stat().st_mode  # safetensors would leave a private file
        os.chmod(temporary, 0o600)  # whatever the umask is, it can be written now
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
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


@contextmanager
def writing_advice(folder: Path):
    """Say of an OSError which folder cannot be written. Without flock, FileLock's is another."""
    try:
        yield
    except (OSError, NotImplementedError) as error:
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            raise OSError(
                errno.ENAMETOOLONG,
                f"the name of a file in {folder} is too long: choose a shorter one",
            ) from error
        raise OSError(
            getattr(error, "errno", errno.ENOSYS),
            f"cannot write into {folder} ({getattr(error, 'strerror', 0) or error}): "
            f"choose another folder",
        ) from error


def check_replaceable(path: Path) -> None:
    """Raise FileExistsError unless there is nothing at `path`, or a plain file that is not locked.

    A rename would replace a link, a pipe or a device, and a file that was made read-only, too.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # nothing is there, or the folder is closed: whoever writes will see
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


def check_writable(path: Path) -> None:
    """Raise OSError when no file can be written at `path`."""
    check_replaceable(path)
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
    """Raise ValueError if a file that is not `ours` is in the way, OSError as check_replaceable."""
    check_replaceable(path)
    if os.path.lexists(path) and not (ours or overwrite):
        raise ValueError(
            f"{path} is there, and this command did not write it: "
            f"move it away, or name another place"
        )


def is_marked(path: Path) -> bool:
    """Whether the file is JSON that we wrote."""
    data = read_json(path)
    return isinstance(data, dict) and str(data.get("format")).startswith(OURS)


def read_json(path: Path):
    """The data of a JSON file; None if there is no such file or it cannot be read."""
    if not path.is_file():  # to open a pipe would wait for its writer
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


# ------------------------------------------------------------------ what somebody else's file is

OURS_ONLY = "name a checkpoint that this project wrote, such as one of `python -m nanogpt train`"
PRETRAINED = "load_pretrained and `generate --model` read it"
UNPICKLED = (
    "nothing is unpickled here; read it with torch.load(PATH, weights_only=True), put its tensors "
    "into a GPT with load_state_dict, and call save_checkpoint"
)
UNPACK = "unpack it, and name the file inside"
SIGNATURES = [  # the first bytes of a file, what it is, and what to do where a checkpoint is wanted
    (b"\x80", "a pickle, such as an old torch.save", UNPICKLED),
    (b"GGUF", "a GGUF file, llama.cpp's format", f"{PRETRAINED}, elsewhere {OURS_ONLY}"),
    (b"\x93NUMPY", "a NumPy array", OURS_ONLY),
    (b"\x89HDF", "an HDF5 file, such as Keras's weights", OURS_ONLY),
    (b"\x7fELF", "a program or a library", OURS_ONLY),
    (b"\x1f\x8b", "a gzip archive", UNPACK),
    (b"BZh", "a bzip2 archive", UNPACK),
    (b"\xfd7zXZ", "an xz archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
    (b"7z\xbc\xaf", "a 7z archive", UNPACK),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself with `git lfs pull`"),
    (b"<", "a web page or XML", "fetch the file itself: the download saved a page about it"),
    (b"{", "JSON", "name the .safetensors file beside it"),
]


def identify(path: Path) -> tuple[str, str]:
    """What is at `path`, and what to do with it where a checkpoint is wanted. Nothing is unpickled.

    The first is empty for a missing file, one of an unknown kind, or with a .safetensors header.
    """
    if not os.path.lexists(path):
        return "", OURS_ONLY
    if not path.exists():
        return f"a link to {os.readlink(path)}, which is not there", "mend the link"
    if path.is_dir():
        return _identify_folder(path)
    if not path.is_file():
        return "a pipe or a device", OURS_ONLY
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError as error:
        return f"a file that cannot be read ({error.strerror})", "ask its owner, or name another"
    if not start:
        return "an empty file", "copy or fetch it again"
    if start[8:9] == b"{":  # 8 bytes of length, then JSON
        return "", OURS_ONLY
    if start.startswith(b"PK\x03\x04"):
        return _identify_zip(path)
    for signature, what, cure in SIGNATURES:
        if start.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(signature):
            return what, cure
    return "", OURS_ONLY


def _identify_folder(path: Path) -> tuple[str, str]:
    names = sorted(found.name for found in path.glob("*.safetensors"))
    checkpoints = [name for name in names if not name.endswith(".state.safetensors")]
    if (path / "config.json").is_file():
        return "a folder of Hugging Face's transformers", (
            f"{PRETRAINED}, `verify model` judges it; elsewhere name a checkpoint that this "
            f"project wrote"
        )
    if checkpoints:
        return "a folder", f"name a file in it, such as {', '.join(checkpoints[:3])}"
    return "a folder without checkpoints", OURS_ONLY


def _identify_zip(path: Path) -> tuple[str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return "a cut or damaged zip archive, as torch.save writes them", "copy or fetch it again"
    if any(name.endswith("data.pkl") for name in names):
        return "a PyTorch file (torch.save)", UNPICKLED
    if names and all(name.endswith(".npy") for name in names):
        return "a NumPy archive", OURS_ONLY
    return "a zip archive", UNPACK
