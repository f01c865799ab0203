"""Locks of output folders."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from nanogpt.training.folders import held


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder where no file can be made")
def test_a_lock_in_a_read_only_folder_is_a_write_error():
    with (
        pytest.raises(OSError, match=r"cannot write into /proc \(.*choose another folder"),
        held(Path("/proc/.x.lock"), "to /proc/x"),
    ):
        pass


def test_a_file_system_without_locks_is_a_write_error(monkeypatch, tmp_path):
    """FileLock has an error of its own for some network drives."""
    missing = Mock(side_effect=NotImplementedError("no flock"))
    monkeypatch.setattr("nanogpt.training.folders.FileLock.acquire", missing)
    advice = r"cannot write into .* \(no flock\): choose another folder"
    with pytest.raises(OSError, match=advice), held(tmp_path / "x.lock", "to x"):
        pass
