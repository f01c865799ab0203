"""A disk that fills up, and the files below a folder."""

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
