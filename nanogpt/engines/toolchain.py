"""Compiled builds, kept in the user's cache folder under a hash of everything they depend on.

A build that fails or is killed leaves nothing behind that is used later. Processes that need the
same build wait while one of them makes it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from platformdirs import user_cache_dir

from ..console import first_line
from ..files import atomic_path, path_in
from .shared_types import HEADER

# Warnings are for those who change the code: of a build that succeeds, nothing is shown.
FLAGS = "-std=c++17 -O3 -Wall -Wextra -pthread"
# Allow sums in any order, so that they can be vectorised. Not -ffast-math: linking with it would
# switch off denormal numbers for the whole process, including torch.
MATH = "-fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math -ffinite-math-only"


class CannotBuild(RuntimeError):
    """This machine cannot build an engine. The message says why, in one line."""


@lru_cache(maxsize=1)
def compiler() -> list[str]:
    """The C++ compiler: CXX with its flags, else the first of c++, g++ and clang++.

    Raises CannotBuild if there is none.
    """
    named = os.environ.get("CXX", "").split()
    for name, *flags in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        path = shutil.which(name)
        if path:
            return [path, *flags]
    tried = " ".join(named) or "c++, g++, clang++"
    raise CannotBuild(f"no C++ compiler ({tried}): install one, or set CXX")


@lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """The parts of a build's key other than its source: torch, the compiler, the processor."""
    info = Path("/proc/cpuinfo")  # on Linux: one paragraph per core
    cpu = info.read_text("utf-8", "replace").split("\n\n")[0].splitlines() if info.exists() else []
    flags = [line for line in cpu if line.startswith(("flags", "Features"))]
    command = [*compiler(), "--version"]
    try:
        version = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = first_line(error)
        raise CannotBuild(
            f"{command[0]} cannot be run: {reason}; set CXX to another one"
        ) from error
    return {
        "torch": torch.__version__,
        "compiler": [*version.splitlines()[:1], *compiler()],
        "platform": f"{platform.system()} {platform.machine()}",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "flags": flags or platform.processor(),
    }


def source_text(source: Path) -> str:
    """A C++ file followed by the files it includes with quotes, as one text."""
    text = source.read_text(encoding="utf-8")
    included = re.findall(r'^#include "(.*)"', text, re.MULTILINE)
    files = [source.parent / name for name in included if name != HEADER]  # which is no file
    return text + "".join(map(source_text, files))


def load_library(name: str, source: Path, header: str) -> ctypes.CDLL:
    """Load a compiled C++ file, built if needed. Raises CannotBuild.

    `header` is what it includes as shared_types.h: what it shares with Python.
    """
    parts = {"source": source_text(source), "header": header, "flags": f"{FLAGS} {MATH}"}
    path = kept_build(name, parts, ".so", lambda out: compile_cpp(source, out, header))
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise cannot_load(path, error) from error


def compile_cpp(source: Path, out: Path, header: str) -> None:
    """Compile one C++ file into a library. Raises CannotBuild with the compiler's first error."""
    reason = ""
    # 1. The header is a file for as long as the compiler runs.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, HEADER).write_text(header, encoding="utf-8")
        # 2. Tune for this processor, by the first of these flags that the compiler knows.
        for tuned in (["-march=native"], ["-mcpu=native"], []):
            flags = [*FLAGS.split(), *tuned, *MATH.split(), f"-I{folder}"]
            command = [*compiler(), *flags, "-shared", "-fPIC", str(source), "-o", str(out)]
            done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
            if done.returncode == 0:
                return
            # 3. If none works, the first failure is the one to report.
            errors = (line for line in done.stderr.splitlines() if "error" in line)
            reason = reason or next(errors, f"exit {done.returncode}")
    raise CannotBuild(f"{compiler()[0]} cannot compile {source.name}: {reason[:300]}")


def kept_build(name: str, parts: dict[str, Any], suffix: str, make: Callable[[Path], None]) -> Path:
    """The file that `make(path)` builds from these parts on this machine, from the cache if there.

    Raises CannotBuild if `make` does, and for any other build error.
    """
    # 1. Its name says what it was made of, and on which machine.
    text = json.dumps({"machine": machine(), **parts}, sort_keys=True)
    file = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:32]}{suffix}"
    path = cache_folder() / file
    # 2. A folder that nobody else can write to.
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.stat().st_uid != os.getuid():
            # That user could replace a library that this process loads.
            raise PermissionError("it belongs to another user")
        # 3. One process builds, into a temporary file that is renamed when it is whole.
        if not path.exists():
            with FileLock(path.with_suffix(".lock")):
                if not path.exists():  # no other process built it while this one waited
                    with atomic_path(path) as temporary:
                        make(temporary)
    except CannotBuild:
        raise
    except OSError as error:
        reason = f"{path.parent} cannot keep builds ({error.strerror or error})"
        raise CannotBuild(f"{reason}: set NANOGPT_CACHE to another folder") from error
    except Exception as error:
        cause = f"{type(error).__name__}: {first_line(error)}"
        raise CannotBuild(f"the build failed: {cause}") from error
    return path


def cannot_load(path: Path, error: Exception) -> CannotBuild:
    """The error to raise for a cached build that does not load."""
    reason = first_line(error)
    return CannotBuild(f"{path} cannot be loaded ({reason}): delete it to build it again")


def cache_folder() -> Path:
    """Where builds are kept: NANOGPT_CACHE, else nanogpt in the user's cache folder.

    A user without a home folder, as in some containers, gets a folder in the temporary directory.
    """
    named = path_in("NANOGPT_CACHE")
    if named:
        return named
    without_home = Path(tempfile.gettempdir(), f"nanogpt-{getattr(os, 'getuid', int)()}")
    try:
        usual = Path(user_cache_dir("nanogpt", appauthor=False))
    except RuntimeError:  # raised by newer platformdirs; older versions return ~/…
        return without_home
    return usual if usual.is_absolute() else without_home
