"""The dispatcher, what all commands share, and that asking for help costs nothing."""

import os
import subprocess
import sys
from argparse import ArgumentTypeError

import pytest
import torch

from nanogpt.cli import COMMANDS, main
from nanogpt.cli.common import OUTPUTS, exit_code, json_path, positive, set_threads
from nanogpt.engines.toolchain import CannotBuild

CODE = "import sys; from nanogpt.cli import main; code = main(); assert 'torch' not in sys.modules"


@pytest.mark.parametrize("words", [["--help"], ["bench", "-h"], ["bench", "nothing"], []], ids=str)
def test_help_and_wrong_words_import_no_torch(words):
    command = [sys.executable, "-c", f"{CODE}; sys.exit(code)", *words]
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}  # the usage has a …
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ascii_only)
    asked = bool(words) and words[-1] in ("-h", "--help")
    assert done.returncode == (0 if asked else 2), done.stderr
    shown = done.stdout if asked else done.stderr
    assert shown.startswith("usage: python -m nanogpt")
    assert ("unknown command 'nothing'" in shown) == ("nothing" in words)
    expected = {name for name in COMMANDS if not words[1:] or name.startswith("bench ")}
    assert {line[2:18].strip() for line in shown.splitlines() if line[:2] == "  "} == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_that_names_it_and_refuses_an_unknown_option(name, capsys):
    for option, code in (("--help", 0), ("--no-such-option", 2)):
        with pytest.raises(SystemExit) as ended:
            main([*name.split(), option])
        assert ended.value.code == code
    said = capsys.readouterr()
    assert f"usage: python -m nanogpt {name} " in " ".join(said.out.split())
    assert "--no-such-option" in said.err


def raises(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("too long"), 2, "error: too long"),
        (FileNotFoundError(2, "no such file", "a"), 2, "error: [Errno 2] no such file: 'a'"),
        (ImportError("no transformers"), 2, "error: no transformers"),
        (CannotBuild("no compiler"), 2, "error: no compiler"),
        (FloatingPointError("the loss is nan"), 1, "error: the loss is nan"),
        (KeyboardInterrupt(), 130, "stopped: nothing was written"),
        (KeyboardInterrupt("all is in r.json"), 130, "stopped: all is in r.json"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_line_and_a_code(error, code, line, capsys):
    assert exit_code(raises(error)) == code
    assert capsys.readouterr().err.strip() == line
    assert exit_code(raises(error), speaks=False) == code
    assert capsys.readouterr().err == ""


def test_what_a_command_returns_is_its_code_and_a_mistake_of_ours_keeps_its_traceback():
    assert [exit_code(lambda value=value: value) for value in (None, 0, 1)] == [0, 0, 1]
    for error in (RuntimeError("ours"), KeyError("ours")):
        with pytest.raises(type(error)):
            exit_code(raises(error))


def test_json_goes_where_it_is_told_or_beside_the_other_results(tmp_path):
    assert json_path(None, "a.json") is None
    assert json_path("", "a.json") == OUTPUTS / "a.json"
    assert json_path(str(tmp_path / "b.json"), "a.json") == tmp_path / "b.json"
    with pytest.raises(OSError, match="this is a folder"):
        json_path(str(tmp_path), "a.json")


def test_threads_are_those_of_the_machine_and_counts_begin_at_1():
    before = torch.get_num_threads()
    for wrong in (0, os.cpu_count() + 1):
        with pytest.raises(ValueError, match=f"--threads={wrong}: must be an integer"):
            set_threads(wrong)
    assert torch.get_num_threads() == before
    for wrong in ("0", "-1", "x", "1.5", ""):
        with pytest.raises(ArgumentTypeError, match="integer of at least 1"):
            positive(wrong)
