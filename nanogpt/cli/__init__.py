"""The command line, `python -m nanogpt COMMAND …`: each command parses, calls a library, prints.

A new command is one line in COMMANDS here, and one in the CALLS of its module, which its first word
names: two functions, one that adds its options to a parser, and one that takes their values and
returns the exit code, or None for 0.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from contextlib import suppress

from ..console import STOPS, stop_code
from .common import leave, missing, run_command

BROKEN_PIPE = 141  # 128 + SIGPIPE, as a shell has it

COMMANDS = {  # the words that call it: what it does
    "run": "run the notebooks and render them",
    "train": "train a model on a text, in one process or several",
    "bench ladder": "time every engine at the same tokens",
    "bench train": "time every recipe to the same loss",
    "bench speculate": "time speculation with several drafts",
    "bench load": "throughput and latency under a stream of requests",
    "generate": "many texts, by one worker or several; resumed where it stopped",
    "verify model": "is a model's cached text off by rounding, or by a bug?",
    "verify class": "the same of a small model of one of transformers' architectures",
    "verify server": "does company, a cached prefix or a seed change a server's texts?",
    "verify kinds": "the same of every causal architecture of transformers, as a table",
    "verify museum": "are public bugs of caches convicted, and their repairs acquitted?",
    "verify certificate": "does the certificate in outputs/mine still hold?",
    "verify sweep": "decode thousands of texts with and without a cache",
    "serve": "answer over HTTP, as OpenAI's completions are answered",
    "export": "write weights as transformers, vLLM or Karpathy's class load them",
    "grade": "check a folder of learners' lesson.py files, as a table",
    "student": "write the notebooks without their solutions",
    "slides": "render the slides of notebooks/teaching",
    "site": "render executed notebooks again",
    "sync": "write the package's code into the notebooks",
}
MODULES = dict.fromkeys(
    ["run", "student", "slides", "site", "sync"], "notebooks"
)  # of a first word, if not the word


def main(argv: list[str] | None = None) -> int:
    """Run the command that the first words name. Returns its exit code, 2 when there is none.

    Without `argv` it is what this process is for: Ctrl-C, SIGTERM and SIGHUP are handled from here
    to the end, unless they are ignored, as under nohup, and closed streams are opened.
    """
    if argv is not None:
        return _dispatch(list(argv))
    open_streams()
    usual = (signal.default_int_handler, signal.SIG_DFL)
    ours = [number for number in STOPS if signal.getsignal(number) in usual]
    for number in ours:
        signal.signal(number, leave)
    try:
        os.getcwd()
        code = _dispatch(sys.argv[1:])
    except SystemExit as ended:  # argparse's
        code = int(ended.code or 0)
    except FileNotFoundError:
        print("error: the folder you are in was deleted: cd to another one", file=sys.stderr)
        code = 2
    except OSError as error:  # of printing: all others are told by the command
        code = cannot_print(error)
    except KeyboardInterrupt:  # a second one
        code = stop_code()
    for number in ours:  # all is done: what Python does at its end can be cut
        signal.signal(number, signal.SIG_DFL)
    return flushed(code)


def open_streams() -> None:
    """Open a closed stdin, stdout or stderr on the null device.

    Otherwise the next file that is opened would get its number, and what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def flushed(code: int) -> int:
    """Flush all output. Returns `code`; instead of 0 another one if nobody takes the output."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # for Python's own flush
            code = code or cannot_print(error)
    return code


def cannot_print(error: OSError) -> int:
    """The exit code if the output cannot be printed; said in a line unless its reader has left."""
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    with suppress(OSError):
        print(f"error: cannot print the output ({error.strerror})", file=sys.stderr, flush=True)
    return 2


def _dispatch(words: list[str]) -> int:
    """Only the command's own module is imported: a wrong word answers without torch."""
    tolerate_any_text()
    for n in (1, 2):
        name = " ".join(words[:n])
        if name in COMMANDS:
            home = MODULES.get(words[0], words[0])
            try:
                module = importlib.import_module(f"{__name__}.{home}")
            except ModuleNotFoundError as error:
                print(f"error: {name}: {missing(error)}", file=sys.stderr)
                return 2
            return run_command(name, COMMANDS[name], module.CALLS[name], words[n:])
    group = [name for name in COMMANDS if name.split()[0] in words[:1]]  # as of "bench"
    first = words[0] if group else "COMMAND"
    rest = words[1:] if group else words
    wants_help = rest[:1] in (["-h"], ["--help"])
    lines = [f"usage: python -m nanogpt {first} …   (--help after a command shows its options)", ""]
    lines += [f"  {name:18} {COMMANDS[name]}" for name in group or COMMANDS]
    if rest and not wants_help:
        lines += ["", f"error: unknown command {rest[0]!r}"]
    print("\n".join(lines), file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2


def tolerate_any_text() -> None:
    """Let stdout and stderr print a ? for each character that their encoding lacks.

    In the POSIX locale stdout is ASCII, with "surrogateescape" for the bytes of file names alone.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure and getattr(stream, "errors", None) in ("strict", "surrogateescape"):
            reconfigure(errors="replace")
