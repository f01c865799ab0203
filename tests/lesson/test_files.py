"""Atomic writes: a file is whole or absent."""

import os
import stat

import pytest
import torch

from nanogpt.files import atomic_path, write_json


def test_a_file_appears_whole_with_the_usual_permissions(tmp_path):
    target = tmp_path / "new" / "folder" / "file.txt"
    old = os.umask(0o027)
    try:
        with atomic_path(target) as temporary:
            temporary.write_text("all of it", encoding="utf-8")
            temporary.chmod(0o600)  # as safetensors does
            assert temporary.parent == target.parent, (
                "a rename is atomic within one file system only"
            )
            assert not target.exists()
        assert os.umask(0o027) == 0o027, "the process's own mask was changed"
    finally:
        os.umask(old)
    assert target.read_text(encoding="utf-8") == "all of it"
    assert list(target.parent.iterdir()) == [target]
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError()]
)
def test_a_failed_write_leaves_the_old_file(tmp_path, error):
    def write_half(target):
        with atomic_path(target) as temporary:
            temporary.write_text("ha", encoding="utf-8")
            raise error

    (tmp_path / "old.txt").write_text("old", encoding="utf-8")
    for name in ("old.txt", "new.txt"):
        with pytest.raises(type(error)):
            write_half(tmp_path / name)
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [
        ("old.txt", "old")
    ]


@pytest.mark.parametrize(
    "data", [{"loss": float("nan")}, {"x": float("inf")}, {"tensor": torch.ones(1)}]
)
def test_values_that_json_cannot_hold_are_refused_before_writing(tmp_path, data):
    (tmp_path / "old.json").write_text("{}", encoding="utf-8")
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "old.json", data)
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [
        ("old.json", "{}")
    ]
