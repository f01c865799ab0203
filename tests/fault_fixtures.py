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
    """A place with little room: `fill(n)` leaves n bytes of it, `clear()` makes room again."""

    def __init__(self, folder: Path, limit: int | None = None):
        self.folder, self.mine, self.limit = folder, folder / "mine", limit
        self.mine.mkdir()

    def fill(self, leave: int) -> None:
        if self.limit is None:
            state = os.statvfs(self.folder)
            (self.folder / "others").write_bytes(bytes(state.f_bavail * state.f_frsize - leave))
        else:  # no file may grow beyond n bytes: the same refusal, on the same file system
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (leave, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )

    def clear(self) -> None:
        (self.folder / "others").unlink(missing_ok=True)
        if self.limit is not None:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (self.limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )


@pytest.fixture(params=["a full disk", "a limit on files"])
def disk(request, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "a full disk":
        if not mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", folder):
            pytest.skip("only root, where it may mount, can have a small file system")
        yield Disk(folder)
        unmount(folder)
    else:
        if resource is None:
            pytest.skip("this system limits no files")
        limited = Disk(folder, resource.getrlimit(resource.RLIMIT_FSIZE)[0])
        yield limited
        limited.clear()


@contextlib.contextmanager
def read_only(folder: Path):
    """Nothing can be written into the folder meanwhile; root needs a mount for that."""
    if hasattr(os, "geteuid") and os.geteuid():
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)
        return
    if not mount("--bind", folder, folder):
        pytest.skip("root writes everywhere, and here it may not mount")
    try:
        assert mount("-o", "remount,ro,bind", folder)
        yield
    finally:
        unmount(folder)
