"""What a compiler made is kept in the user's cache folder, under a key of all that it depends on.

A build that fails or is killed leaves nothing behind. A damaged file is built again. Where the
folder cannot be written, or belongs to somebody else, the build is made for this process only.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

import torch

from ..system.console import warn_caller
from ..system.files import atomic_path, remove_leftovers, sha256

# What `empty_cache_folder` sets in place of the user's folder.
_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


class CannotBuild(RuntimeError):
    """This machine cannot build an engine. The message says why, in one line."""


def cache_folder() -> Path:
    """Where builds are kept: NANOGPT_CACHE, else nanogpt in the user's cache folder.

    Raises FileNotFoundError where there is no home folder to look in.
    """
    if folder := _folder.get():
        return folder
    try:
        if named := os.environ.get("NANOGPT_CACHE"):
            return Path(named).expanduser().absolute()
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "nanogpt"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanogpt"
    except RuntimeError as error:  # a user without a home, the home of an unknown user
        name = named or "the cache folder"
        raise FileNotFoundError(errno.ENOENT, f"{error}", name) from None


@lru_cache(maxsize=1)
def _folder_of_this_process() -> Path:
    """Where builds lie that no cache folder can keep; removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="nanogpt-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def empty_cache_folder() -> Iterator[None]:
    """Keep builds in a new, empty folder for the length of a with-block, to time a first build."""
    with tempfile.TemporaryDirectory(prefix="nanogpt-") as folder:
        token = _folder.set(Path(folder))
        try:
            yield
        finally:
            _folder.reset(token)


@lru_cache(maxsize=1)
def compiler() -> list[str]:
    """CXX with its flags, else the first of c++, g++ and clang++. Raises CannotBuild."""
    named = os.environ.get("CXX", "").strip()
    try:
        commands = [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]
    except ValueError as error:  # a quotation mark without its other one
        raise CannotBuild(f"CXX={named!r} cannot be read ({error}): correct it") from None
    for name, *flags in commands:
        path = shutil.which(name)
        if path:
            return [path, *flags]
    raise CannotBuild(f"no C++ compiler ({named or 'c++, g++, clang++'}): install one, or set CXX")


@lru_cache(maxsize=1)
def machine() -> dict:
    """What compiled code depends on besides its source: torch, the compiler, the processor."""
    try:
        cpu = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        flags = [
            line.split(":", 1)[1].split() for line in cpu if line.startswith(("flags", "Features"))
        ]
    except OSError:
        flags = [[platform.processor()]]
    try:
        version = subprocess.run(
            [*compiler(), "--version"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuild(
            f"{compiler()[0]} cannot be run: {first_line(error)}; set CXX to another one"
        ) from error
    return {
        "torch": torch.__version__,
        "compiler": [*(version.stdout.splitlines()[:1] or compiler()[:1]), *compiler()[1:]],
        "platform": f"{platform.system()} {platform.machine()}",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "flags": sorted({flag for line in flags for flag in line}),
    }


def key_of(**parts) -> str:
    """One name for all that a build depends on: these parts, and the machine."""
    text = json.dumps({"machine": machine(), **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def kept(name: str, key: str, suffix: str, make: Callable[[Path], None]) -> Path:
    """The file under this key: the kept one if it is intact, else one built now by `make(path)`.

    Raises CannotBuild when `make` does, and for any other error of a compiler.
    """
    file = f"{name}-{key}{suffix}"
    folder = _folder_for(file)
    if _intact(folder / file):
        return folder / file
    new = folder / f".{file}.{os.getpid()}-{threading.get_ident()}{suffix}"
    try:
        make(new)
        remove_leftovers(new, f".{file}.*")
        digest = sha256(new)
        os.replace(new, folder / file)
        with atomic_path(_stamp(folder / file)) as temporary:
            temporary.write_text(digest)
    except CannotBuild:
        raise
    except Exception as error:
        raise CannotBuild(
            f"the build failed: {type(error).__name__}: {first_line(error)}"
        ) from error
    finally:
        new.unlink(missing_ok=True)
    return folder / file


def _folder_for(file: str) -> Path:
    """The cache folder, where it is the user's own and holds this file or can be written.

    Else a folder of this process, with a warning where the file is still to be built.
    """
    try:
        folder = cache_folder()
        _check_owner(folder)
        if not _intact(folder / file):
            _make_writable(folder)
        return folder
    except OSError as error:
        folder = _folder_of_this_process()
        if not _intact(folder / file):
            warn_caller(
                f"{error.filename} cannot keep builds ({error.strerror}): this "
                f"one is built again next time; set NANOGPT_CACHE to another folder"
            )
        return folder


def compile_cpp(source: Path, out: Path, defines: dict) -> None:
    """Compile one C++ file into a library. Raises CannotBuild with what the compiler said."""
    names = [f"-D{name}={value}" for name, value in defines.items()]
    # Sums may be taken in any order, so that they fill a register. Not -ffast-math: linking with it
    # would switch off denormal numbers for the whole process, torch included.
    math = [
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fno-signed-zeros",
        "-fassociative-math",
        "-ffinite-math-only",
    ]
    why = ""
    for tuned in (["-march=native"], ["-mcpu=native"], []):
        flags = ["-std=c++17", "-O3", "-w", *tuned, *math, "-shared", "-fPIC", *names]
        command = [*compiler(), *flags, str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return
        errors = (line for line in done.stderr.splitlines() if "error" in line)
        why = why or next(errors, f"exit {done.returncode}")
    raise CannotBuild(f"{compiler()[0]} cannot compile {source.name}: {why[:300]}")


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _stamp(path: Path) -> Path:
    """Where the checksum of a build is."""
    return path.with_name(path.name + ".sha256")


def _intact(path: Path) -> bool:
    try:
        same = path.stat().st_uid == _user(path)
        return same and _stamp(path).read_text(encoding="ascii") == sha256(path)
    except (OSError, ValueError):  # missing, or not text
        return False


def _check_owner(folder: Path) -> None:
    """Raises PermissionError for a folder in which somebody else could exchange a library."""
    if folder.exists() and folder.stat().st_uid != _user(folder):
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))


def _make_writable(folder: Path) -> None:
    """Make the folder, for the user alone, if need be. Raises OSError unless it can be written."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror or str(error), str(folder)) from error


def _user(path: Path) -> int:
    return os.getuid() if hasattr(os, "getuid") else path.stat().st_uid
