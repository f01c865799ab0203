"""The command line, `python -m nanogpt COMMAND …`: each command parses, calls a library, prints.

A new command is one line in COMMANDS here, and one in the CALLS of the module named by its first
word: two functions, one that adds its options to a parser, and one that takes their values and
returns the exit code, or None for 0.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import warnings

from ..training.signals import STOPS, stop_code
from .common import cannot_print, leave, missing, run_command

COMMANDS = {  # command: what it does
    "run": "run the notebooks and render them",
    "train": "train a model on a text, in one or several processes",
    "bench ladder": "time every decoding engine on the same tokens",
    "bench gain": "when does a cache pay? its speedup over length, batch and model",
    "bench train": "time every recipe to the same loss",
    "bench speculate": "time speculation with several drafts",
    "bench load": "throughput and latency under a stream of requests",
    "bench gpu": "what only a GPU can show, step by step; resumes where it stopped",
    "generate": "generate many texts, with one or several workers; resumes where it stopped",
    "verify model": "does a model's cached text differ by rounding, or by a bug?",
    "verify class": "the same for a small random model of a transformers architecture",
    "verify server": "do batching, a cached prefix or a seed change a server's texts?",
    "verify kinds": "the same for every causal transformers architecture, as a table",
    "verify museum": "does the referee convict public cache bugs and acquit their fixes?",
    "verify certificate": "does the certificate in outputs/mine still hold?",
    "verify sweep": "decode thousands of texts with and without a cache",
    "serve": "serve a model over HTTP with an OpenAI-compatible API",
    "export": "export weights for transformers, vLLM or Karpathy's class",
    "grade": "grade a folder of learners' lesson.py files",
    "student": "write the notebooks without solutions, for a class",
    "slides": "render the slides of notebooks/teaching",
    "site": "render executed notebooks again",
    "sync": "copy the package's code into the notebooks",
}
MODULES = dict.fromkeys(
    ["run", "student", "slides", "site", "sync"], "notebooks"
)  # module of a first word, if not the word itself


def main(argv: list[str] | None = None) -> int:
    """Run the command named by the first words. Returns its exit code, 2 for an unknown command.

    Without `argv` this is the process's main function: it handles Ctrl-C, SIGTERM and SIGHUP until
    the exit, unless they are ignored, for example under nohup.
    """
    if argv is not None:
        return _dispatch(list(argv))
    warnings.formatwarning = _in_one_line
    usual = (signal.default_int_handler, signal.SIG_DFL)
    ours = [number for number in STOPS if signal.getsignal(number) in usual]
    for number in ours:
        signal.signal(number, leave)
    try:
        code = _dispatch(sys.argv[1:])
    except SystemExit as ended:  # argparse's own exit
        code = int(ended.code or 0)
    except OSError as error:  # from printing; a command reports all others itself
        code = cannot_print(error)
    except KeyboardInterrupt:  # a second one
        code = stop_code()
    for number in ours:  # the work is done: Python's shutdown may be interrupted
        signal.signal(number, signal.SIG_DFL)
    return flushed(code)


def _in_one_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning as a command prints it: without the line of code that it comes from."""
    return f"warning: {message}\n"


def flushed(code: int) -> int:
    """Flush all output. Returns `code`, or 1 or more instead of 0 if output was lost."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # for Python's own flush
            code = code or cannot_print(error)
    return code


def _dispatch(words: list[str]) -> int:
    """Import only the command's own module: a misspelt command fails without loading torch."""
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
    group = [name for name in COMMANDS if name.split()[0] in words[:1]]  # for example of "bench"
    first = words[0] if group else "COMMAND"
    rest = words[1:] if group else words
    wants_help = rest[:1] in (["-h"], ["--help"])
    lines = [f"usage: python -m nanogpt {first} …   (COMMAND --help lists its options)", ""]
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
