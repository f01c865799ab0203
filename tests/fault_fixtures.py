"""Faults that are really caused: disks that fill up, folders that close."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import resource
except ImportError:  # Windows
    resource = None


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, hidden ones too: any temporary file that is left shows here."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def mount(*words) -> bool:
    if not sys.platform.startswith("linux") or os.geteuid():
        return False
    try:
        return subprocess.run(["mount", *map(str, words)], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def unmount(folder: Path) -> None:
    for words in (["umount", folder], ["umount", "--lazy", folder]):
        if subprocess.run(words, capture_output=True).returncode == 0:
            return


class Disk:
    """A place, `mine`, where no file may grow beyond n bytes after `fill(n)`, until `clear()`."""

    def __init__(self, folder: Path):
        self.mine = folder
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self, leave: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (leave, self.before[1]))

    def clear(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.fixture
def disk(tmp_path):
    if resource is None:
        pytest.skip("this system limits no files")
    (tmp_path / "mine").mkdir()
    limited = Disk(tmp_path / "mine")
    yield limited
    limited.clear()


@contextlib.contextmanager
def read_only(folder: Path):
    """Nothing can be written into the folder or below it meanwhile; root needs a mount for that."""
    if hasattr(os, "geteuid") and os.geteuid():
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        for path in folders:
            path.chmod(0o555)
        try:
            yield
        finally:
            for path in folders:
                path.chmod(0o755)
        return
    if not mount("--bind", folder, folder):
        pytest.skip("root writes everywhere, and here it may not mount")
    try:
        assert mount("-o", "remount,ro,bind", folder)
        yield
    finally:
        unmount(folder)
