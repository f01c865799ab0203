"""Folders that several processes may write to: locks, markers, and leftovers of a killed run."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..files import check_file, check_no_file, check_writable, is_marked, writing_advice
from .resume import state_path


@contextmanager
def held(path: Path, target: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file for a with-block; the lock is also released when the process ends.

    Raises ValueError, with advice, if another run still holds it after `wait` seconds or if the
    file is not a lock, and OSError for a folder that cannot be written. `target` is part of the
    message, for example "to out/small". With `wait`, the empty file is not removed, because others
    may be waiting for it.
    """
    lock = FileLock(path)
    check_writable(path)  # FileLock would report ENOENT as a Timeout
    # Locking truncates the file.
    check_file(path, path.is_file() and path.stat().st_size == 0)
    with writing_advice(path.parent), suppress(Timeout):
        lock.acquire(timeout=wait)
    if not lock.is_locked:  # a Timeout
        raise ValueError(f"another run is writing {target}: wait for it, or choose another path")
    try:
        yield
    finally:
        with suppress(OSError):  # the folder is gone or not writable
            if not wait:
                path.unlink()  # before the release: the next run creates a new one
        lock.release()


@contextmanager
def held_run(out: Path) -> Iterator[None]:
    """Lock the files of the training run `out` for a with-block, as `held` does.

    Removes temporary files that a killed run has left for these files.
    """
    with held(out.with_name(f".{out.name}.lock"), f"to {out}"):
        ends = (".safetensors", ".json", "-last.safetensors", "-last.json", ".jsonl")
        for path in (state_path(out), *(out.with_name(f"{out.name}{end}") for end in ends)):
            remove_leftovers(path)
        yield


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files that a killed process left when writing `path`.

    Call it only if no other process can be writing this file.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp")
    for rest in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if pattern.fullmatch(rest.name) and rest.is_file() and not rest.is_symlink():
            rest.unlink(missing_ok=True)


def check_folder(folder: Path, marker: str, overwrite: bool = False) -> None:
    """Raise ValueError unless the folder is new, empty, or has our marker, a JSON file.

    With `overwrite` any folder is accepted; only files with our names are replaced there.
    """
    if overwrite or not os.path.lexists(folder):
        return
    check_no_file(folder)
    others = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    if others and not is_marked(folder / marker):
        raise ValueError(
            f"{folder} contains {others[0]}, and this command did not create that folder: "
            f"name a new or empty one, or pass --overwrite"
        )
