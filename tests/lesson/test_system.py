"""Devices, the environment card, and files that are whole or absent."""

import io
import json
import os
import stat
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from nanogpt.bench.environment import environment
from nanogpt.cli import tolerate_any_text
from nanogpt.cluster.folders import held
from nanogpt.console import Progress
from nanogpt.device import pick_device
from nanogpt.files import atomic_path, write_json


@pytest.fixture
def cuda(monkeypatch):
    """Pretends a CUDA device: call it with whether it multiplies bfloat16 by itself."""

    def pretend(there=True, native=True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Test GPU")
        # Without the argument a T4 answers True, since it can emulate.
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True: including_emulation or native,
        )

    return pretend


@pytest.mark.parametrize(
    ("there", "native", "prefer", "text"),
    [
        (False, False, "auto", "cpu, float32: no CUDA device was found"),
        (True, True, "auto", "cuda, bfloat16: Test GPU multiplies"),
        (True, False, "auto", "cuda, float16: Test GPU has no native bfloat16"),
        (True, True, "cuda", "cuda, bfloat16: "),
        (True, True, "cpu", "cpu, float32: as requested"),
    ],
)
def test_a_device_comes_with_its_dtype_and_the_reason(cuda, there, native, prefer, text):
    cuda(there, native)
    assert str(pick_device(prefer)).startswith(text)


def test_a_device_that_is_not_there_is_an_error(cuda):
    cuda(there=False)
    with pytest.raises(ValueError, match="sees no CUDA device: choose cpu or auto"):
        pick_device("cuda")
    with pytest.raises(ValueError, match="device='mps' is unknown: choose auto, cpu or cuda"):
        pick_device("mps")


def test_the_environment_card_is_plain_data_that_says_what_a_result_depends_on():
    card = environment(pick_device("cpu"))
    assert json.loads(json.dumps(card)) == card
    assert card["torch"] == torch.__version__
    assert card["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert (card["device"], card["threads"]) == ("cpu", torch.get_num_threads())


@pytest.mark.parametrize("missing", ["git", "repository"])
def test_without_git_the_card_says_that_nothing_is_known(missing, tmp_path, monkeypatch):
    if missing == "git":
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("nanogpt.bench.environment.ROOT", tmp_path)
    card = environment(pick_device("cpu"))
    assert (card["commit"], card["dirty"]) == (None, None)


@pytest.mark.parametrize("value", ["1", "0", ""])
@pytest.mark.parametrize("watched", ["terminal", "notebook", "no"])
def test_progress_is_plain_lines_where_nobody_watches(monkeypatch, watched, value):
    monkeypatch.setenv("TQDM_DISABLE", value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: watched == "terminal", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if watched == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", json)
    with Progress(1, "steps") as progress:
        assert progress.disable == (value == "1" or watched == "no")


def test_where_nobody_watches_a_line_is_printed_at_once_and_no_bar(monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    with Progress(2, "steps") as bar:
        bar.set_postfix_str("loss 1.00", refresh=False)
        bar.update(2)
        bar.print("step 2 of 2")
        assert shown.getvalue() == b"step 2 of 2\n"
    assert shown.getvalue() == b"step 2 of 2\n"


# ------------------------------------------------------------------ whole or absent


def test_a_file_appears_whole_with_the_usual_rights(tmp_path):
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
def test_a_failure_half_way_leaves_what_was_there(tmp_path, error):
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


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder where no file can be made")
def test_a_lock_that_cannot_be_made_is_not_another_runs():
    with (
        pytest.raises(OSError, match=r"cannot write into /proc \(.*choose another folder"),
        held(Path("/proc/.x.lock"), "to /proc/x"),
    ):
        pass


def test_a_folder_whose_files_cannot_be_locked_gets_the_same_advice(monkeypatch, tmp_path):
    """FileLock has an error of its own for some network drives."""
    missing = Mock(side_effect=NotImplementedError("no flock"))
    monkeypatch.setattr("nanogpt.cluster.folders.FileLock.acquire", missing)
    advice = r"cannot write into .* \(no flock\): choose another folder"
    with pytest.raises(OSError, match=advice), held(tmp_path / "x.lock", "to x"):
        pass


def test_a_terminal_of_another_encoding_shows_a_question_mark(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    tolerate_any_text()
    print("sha256 86c4e6aa9db7…", flush=True)
    assert shown.getvalue() == b"sha256 86c4e6aa9db7?\n"


@pytest.mark.parametrize(
    "data", [{"loss": float("nan")}, {"x": float("inf")}, {"tensor": torch.ones(1)}]
)
def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path, data):
    (tmp_path / "old.json").write_text("{}", encoding="utf-8")
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "old.json", data)
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [
        ("old.json", "{}")
    ]
