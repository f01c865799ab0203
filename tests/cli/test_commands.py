"""The dispatcher, what all commands share, and that asking for help costs nothing."""

import os
import pickle
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError

import pytest
import torch

from nanogpt.cli import COMMANDS, main
from nanogpt.cli.common import (
    OUTPUTS,
    exit_code,
    in_options,
    json_path,
    positive,
    set_threads,
)
from nanogpt.config import ParameterError, check_int
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.files import ROOT

CODE = "import sys; from nanogpt.cli import main; code = main(); assert 'torch' not in sys.modules"


@pytest.mark.parametrize("words", [["--help"], ["bench", "-h"], ["bench", "nothing"], []], ids=str)
def test_help_and_wrong_words_import_no_torch(words):
    command = [sys.executable, "-c", f"{CODE}; sys.exit(code)", *words]
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}  # the usage has a …
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=60, env=ascii_only
    )
    asked = bool(words) and words[-1] in ("-h", "--help")
    assert done.returncode == (0 if asked else 2), done.stderr
    shown = done.stdout if asked else done.stderr
    assert shown.startswith("usage: python -m nanogpt")
    assert ("unknown command 'nothing'" in shown) == ("nothing" in words)
    expected = {name for name in COMMANDS if not words[1:] or name.startswith("bench ")}
    assert {line[2:20].strip() for line in shown.splitlines() if line[:2] == "  "} == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_that_names_it_and_refuses_an_unknown_option(name, capsys):
    for option, code in (("--help", 0), ("--no-such-option", 2)):
        with pytest.raises(SystemExit) as ended:
            main([*name.split(), option])
        assert ended.value.code == code
    said = capsys.readouterr()
    assert f"usage: python -m nanogpt {name} " in " ".join(said.out.split())
    assert "--no-such-option" in said.err
    assert len(said.err.splitlines()) == 1, "an error is one line"


def test_an_empty_path_is_not_the_folder_one_is_in(capsys):
    with pytest.raises(SystemExit):
        main(["export", "--out", ""])  # as from a variable of the shell that is not set
    assert "--out: '': give a path" in capsys.readouterr().err


def test_a_broken_pipe_within_a_command_is_not_its_error():
    with pytest.raises(BrokenPipeError):
        exit_code(raises(BrokenPipeError()))


# Ctrl-C at a state, not at a time: when the named module is about to be imported.
CTRL_C = """
import os, runpy, signal, sys
class Finder:
    def find_spec(name, *_):
        if name == "{}":
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
runpy.run_module("nanogpt", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("words", "module"), [("export", "nanogpt.cli.export"), ("train", "torch._C")]
)
def test_ctrl_c_before_a_command_begins_is_one_line_and_130(words, module):
    command = [sys.executable, "-c", CTRL_C.format(module), *words.split()]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
    assert (done.returncode, done.stderr) == (130, "\nstopped: nothing was written\n")


def test_a_librarys_message_is_told_in_the_words_of_the_command_line(capsys):
    own = {"top_k": 0, "greedy": True, "n": 4, "top_n": 5}
    for message, names, here in (
        ("top_k=0: must be at least 1", ["top_k"], "--top-k 0: must be at least 1"),
        ("greedy=True uses no top_k", ["greedy"], "--greedy uses no top_k"),
        ("n=4: pick 2; or use greedy=True", ["n"], "--n 4: pick 2; or use --greedy"),
        ("n=4 is no multiple of n_head=3", ["n", "n_head"], "--n 4 is no multiple of n_head=3"),
        ("n=4: choose 2, as in n=2", ["n"], "--n 4: choose 2, as in --n 2"),
        ("n=4; top_n=5", ["n", "top_n"], "--n 4; --top-n 5"),
        ("n=4 and top_k=5", [], "n=4 and top_k=5"),
    ):
        assert in_options(ParameterError(message, *names), own) == here
    with pytest.raises(ParameterError) as refused:
        check_int("top_k", 0, 1)
    assert exit_code(raises(refused.value), own) == 2
    assert capsys.readouterr().err == "error: --top-k 0: must be an integer of at least 1\n"
    again = pickle.loads(pickle.dumps(refused.value))  # as it comes from another process
    assert (str(again), again.names) == ("top_k=0: must be an integer of at least 1", ("top_k",))


@pytest.mark.parametrize(
    "words",
    [
        "generate --out",
        "export --out",
        "student --out",
        "slides --out",
        "site",
        "grade",
        "verify kinds --folder",
    ],
)
def test_a_file_where_a_folder_is_needed_is_refused(words, tmp_path, capsys):
    """Before any work, and the file is unchanged."""
    path = tmp_path / "notes.txt"
    path.write_text("mine", encoding="utf-8")
    assert main([*words.split(), str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path} is a file: name a folder\n"
    assert path.read_text(encoding="utf-8") == "mine"


def raises(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("too long"), 2, "error: too long"),
        (FileNotFoundError(2, "no such file", "a"), 2, "error: no such file: 'a': check the path"),
        (OSError(28, "the disk is full"), 2, "error: the disk is full"),
        (ImportError("no transformers"), 2, "error: no transformers"),
        (CannotBuild("no compiler"), 2, "error: no compiler"),
        (FloatingPointError("the loss is nan"), 1, "error: the loss is nan"),
        (KeyboardInterrupt(), 130, "stopped: nothing was written"),
        (KeyboardInterrupt("all is in r.json"), 130, "stopped: all is in r.json"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_line_and_a_code(error, code, line, capsys, monkeypatch):
    assert exit_code(raises(error)) == code
    assert capsys.readouterr().err.strip() == line
    monkeypatch.setenv("LOCAL_RANK", "1")  # of several processes one is enough
    assert exit_code(raises(error)) == code
    assert capsys.readouterr().err == ""


def test_exit_codes_are_return_values_and_unexpected_errors_keep_their_traceback():
    assert [exit_code(lambda value=value: value) for value in (None, 0, 1)] == [0, 0, 1]
    for error in (RuntimeError("ours"), KeyError("ours")):
        with pytest.raises(type(error)):
            exit_code(raises(error))


def test_json_goes_where_it_is_told_or_beside_the_other_results(tmp_path):
    assert json_path(None, "a", "a.json") is None
    assert json_path("", "a", "a.json") == OUTPUTS / "a.json"
    assert json_path(str(tmp_path / "b.json"), "a", "a.json") == tmp_path / "b.json"
    with pytest.raises(OSError, match="is a folder: name a file"):
        json_path(str(tmp_path), "a", "a.json")


def test_threads_are_those_of_the_machine_and_counts_begin_at_1():
    before = torch.get_num_threads()
    for wrong in (0, os.cpu_count() + 1):
        with pytest.raises(ValueError, match=f"threads={wrong}: must be an integer"):
            set_threads(wrong)
    assert torch.get_num_threads() == before
    for wrong in ("0", "x"):
        with pytest.raises(ArgumentTypeError, match="integer of at least 1"):
            positive(wrong)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_hands_a_folder_with_a_space_on_as_one(tmp_path):
    """In a folder of its own: make itself takes no path with a space for its environment."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n", encoding="utf-8")
    python.chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    for file in ("requirements.txt", "constraints.txt", "lowest.txt", ".ready-ranges"):
        (tmp_path / file).touch()
    command = ["make", "-s", "VENV=.", "PINNED=", "LOWEST=", "html", "FOLDER=a b; c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.stdout == "<-m><nanogpt><site><a b; c>", done.stderr
