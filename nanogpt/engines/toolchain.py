"""What a compiler made is kept in the user's cache folder, under a key of all that it depends on.

A build that fails or is killed leaves nothing behind. A damaged file is built again. Where the
folder cannot be written, the build is made for this process only.
"""

from __future__ import annotations

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
from ..system.files import atomic_path, sha256

# What `empty_cache_folder` sets in place of the user's folder.
_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


class CannotBuild(RuntimeError):
    """This machine cannot build an engine. The message says why, in one line."""


def cache_folder() -> Path:
    """Where builds are kept: NANOGPT_CACHE, else nanogpt in the user's cache folder."""
    if folder := _folder.get():
        return folder
    named = os.environ.get("NANOGPT_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nanogpt"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanogpt"


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
    for name, *flags in [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]:
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
    path = cache_folder() / f"{name}-{key}{suffix}"
    stamp = path.with_name(path.name + ".sha256")
    if _intact(path, stamp):
        return path
    try:
        folder = _own_folder(path.parent)
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="nanogpt-"))
        warn_caller(
            f"{path.parent} cannot keep builds ({error.strerror or error}): this one is built "
            f"again next time; set NANOGPT_CACHE to another folder"
        )
    new = folder / f".{path.name}.{os.getpid()}-{threading.get_ident()}{suffix}"
    try:
        make(new)
        digest = sha256(new)
        os.replace(new, folder / path.name)
        with atomic_path(folder / stamp.name) as temporary:
            temporary.write_text(digest)
    except CannotBuild:
        raise
    except Exception as error:
        raise CannotBuild(
            f"the build failed: {type(error).__name__}: {first_line(error)}"
        ) from error
    finally:
        new.unlink(missing_ok=True)
    return folder / path.name


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


def _intact(path: Path, stamp: Path) -> bool:
    try:
        same = stamp.read_text(encoding="ascii") == sha256(path)
        return same and path.stat().st_uid == _user(path)
    except (OSError, ValueError):  # missing, or not text
        return False


def _own_folder(folder: Path) -> Path:
    """The folder, made if need be. Raises OSError unless the user owns it and can write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != _user(folder):
        raise PermissionError(1, "it belongs to another user")
    with tempfile.TemporaryFile(dir=folder):
        return folder


def _user(path: Path) -> int:
    return os.getuid() if hasattr(os, "getuid") else path.stat().st_uid
