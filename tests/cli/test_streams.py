"""Whatever stdin, stdout, stderr, the locale and the folder are: no traceback, the right code."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanogpt.files import ROOT

POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PYTHON = f"'{sys.executable}' -m nanogpt"
NEEDS_FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
SHELL = pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
pytestmark = SHELL


def run(script: str, **environment) -> tuple[int, str]:
    """The exit code of a script of a shell, and what stderr shows."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    env.pop("PYTHONIOENCODING", None)
    done = subprocess.run(["sh", "-c", script], capture_output=True, cwd=ROOT, env=env, timeout=120)
    return done.returncode, done.stderr.decode("utf-8", "replace")


CASES = [  # a script, its exit code, what it says
    (f"{PYTHON} --help >&-", 0, ""),
    (f"{PYTHON} --help >&- 2>&-", 0, ""),
    (f"{PYTHON} --help <&-", 0, ""),
    (f"{PYTHON} --help <&- >&- 2>&-", 0, ""),
    (f"{PYTHON} nothing 2>&-", 2, ""),
    (f"{PYTHON} nothing >&- 2>&-", 2, ""),
    pytest.param(f"{PYTHON} --help >/dev/full", 2, "cannot print the output", marks=NEEDS_FULL),
    pytest.param(f"{PYTHON} nothing 2>/dev/full", 2, "", marks=NEEDS_FULL),
    (f"({PYTHON} --help; echo $? >&2) | true", 0, "141"),
    (f"mkdir '{{tmp}}/gone'; cd '{{tmp}}/gone'; rmdir ../gone; {PYTHON} --help", 2, "was deleted"),
]


@pytest.mark.parametrize(("script", "code", "says"), CASES)
@pytest.mark.parametrize("locale", [{}, POSIX], ids=["this locale", "POSIX"])
def test_a_stream_that_is_closed_or_full_is_no_traceback(tmp_path, locale, script, code, says):
    found, said = run(script.replace("{tmp}", str(tmp_path)), **locale)
    assert (found, "Traceback" in said) == (code, False), said
    assert says in said
    assert len(said.splitlines()) <= 1


def test_a_closed_stdout_is_not_the_next_file_that_is_opened(tmp_path):
    """A file that a command opens must not get number 1 or 2, where print would write into it."""
    script = (
        f"'{sys.executable}' -c \"from nanogpt.cli import open_streams; open_streams(); "
        "file = open('{tmp}/a', 'w'); import os; os.write(1, b'x'); print('y'); "
        'assert file.fileno() > 2" >&- 2>&- <&-'
    )
    assert run(script.replace("{tmp}", str(tmp_path)))[0] == 0
    assert (tmp_path / "a").read_text(encoding="utf-8") == ""


def calls_without_encoding(path: Path) -> list[str]:
    """Calls that read or write text in the locale's encoding."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        named = {word.arg for word in node.keywords}
        text_files = name in ("read_text", "write_text") and len(node.args) == (
            name == "write_text"
        )
        opened = getattr(node.func, "id", "") == "open" and not any(
            "b" in str(getattr(mode, "value", "")) for mode in node.args[1:2]
        )
        if (
            text_files or opened or (name in ("run", "Popen") and "text" in named)
        ) and "encoding" not in named:
            found.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
    return found


def test_text_is_utf_8_whatever_the_locale():
    found = [
        call for path in (ROOT / "nanogpt").rglob("*.py") for call in calls_without_encoding(path)
    ]
    # The one in mirror.py is of the notebooks' first cell, whose kernel is in UTF-8.
    assert [call for call in found if "mirror.py" not in call] == []


@pytest.mark.parametrize(
    ("words", "streams"),
    [
        ("generate --checkpoint é", "2>&-"),
        ("site 'no…'", ""),
    ],
)
def test_commands_in_the_posix_locale(words, streams):
    code, said = run(f"{PYTHON} {words} {streams}", **POSIX)
    assert (code, "Traceback" in said) == (0 if "--help" in words else 2, False), said


@pytest.mark.release
def test_a_name_of_bytes_that_are_no_text_can_be_written_and_read(tmp_path):
    folder = f"{os.fsencode(tmp_path).decode()}"
    script = f"""
    cd '{folder}'; name=$(printf 'x\\377 $y')
    {PYTHON} export --out "$name" && {PYTHON} export --out "$name"
    """
    assert run(script, **POSIX)[0] == 0
    assert (tmp_path / os.fsdecode(b"x\xff $y") / "config.json").is_file()
