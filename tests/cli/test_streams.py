"""A full disk, a closed pipe, the POSIX locale: no traceback, and the right exit code."""

import os
import subprocess
import sys

import pytest

from nanogpt.files import ROOT

POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PYTHON = f"'{sys.executable}' -m nanogpt"
NEEDS_FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")


def run(script: str, **environment) -> tuple[int, str]:
    """The exit code of a script of a shell, and what stderr shows."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    env.pop("PYTHONIOENCODING", None)
    done = subprocess.run(["sh", "-c", script], capture_output=True, cwd=ROOT, env=env, timeout=120)
    return done.returncode, done.stderr.decode("utf-8", "replace")


CASES = [  # a script, its exit code, what it says
    pytest.param(f"{PYTHON} --help >/dev/full", 2, "cannot print the output", marks=NEEDS_FULL),
    (f"({PYTHON} --help; echo $? >&2) | true", 0, "141"),
    (f"{PYTHON} --help", 0, ""),
]


@pytest.mark.parametrize(("script", "code", "says"), CASES)
def test_a_stream_that_cannot_show_the_output_is_no_traceback(script, code, says):
    """A full disk, a reader who has left, and a locale without most characters."""
    found, said = run(script, **POSIX)
    assert (found, "Traceback" in said) == (code, False), said
    assert says in said
    assert len(said.splitlines()) <= 1


@pytest.mark.release
def test_a_name_of_bytes_that_are_no_text_can_be_written_and_read(tmp_path):
    folder = f"{os.fsencode(tmp_path).decode()}"
    script = f"""
    cd '{folder}'; name=$(printf 'x\\377 $y')
    {PYTHON} export --out "$name" && {PYTHON} export --out "$name"
    """
    assert run(script, **POSIX)[0] == 0
    assert (tmp_path / os.fsdecode(b"x\xff $y") / "config.json").is_file()
