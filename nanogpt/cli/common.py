"""What commands share: options, their checks, and results as JSON. Imports no torch."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..config import SIZES, ParameterError, check_int
from ..files import (
    KEEPER,
    LECTURE_FORM,
    OURS,
    ROOT,
    check_file,
    check_writable,
    path_in,
    read_json,
    user_path,
    write_json,
)
from ..training.signals import STOPS, interrupt, received, stop_code

if TYPE_CHECKING:
    from ..device import Device

OUTPUTS = ROOT / "outputs" / "run"
BROKEN_PIPE = 141  # 128 + SIGPIPE, as in a shell
# The extra of the wheel that contains a package; all others are in `notebooks`.
EXTRAS = {"xllamacpp": "peers", "ray": "ray", "transformers": "export"}
EXTRAS |= dict.fromkeys(["tokenizers", "gguf", "huggingface_hub"], "pretrained")


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer of at least 1")
    return int(text)


def named(text: str) -> Path:
    """Parse a path, for argparse. Refuses "", because Path("") is the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("'': give a path")
    try:
        return user_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    except OSError as error:
        raise argparse.ArgumentTypeError(error.strerror) from error


# A command: one function adds its options, the other runs it and returns its exit code (None: 0).
Calls = tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int | None]]
POSITIVE: dict[str, Any] = {"type": positive, "metavar": "N"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "--size": {"choices": sorted(SIZES), "default": "small"},
    "--tokens": {
        **POSITIVE,
        "help": "number of new tokens (255; 64 with a prompt; or as many as fit into the block)",
    },
    "--repeats": {**POSITIVE, "default": 5, "help": "timed repeats after a warm-up (5)"},
    "--checkpoint": {"metavar": "PATH", "help": "path of trained weights, instead of random ones"},
    "--data": {"metavar": "PATH", "help": "path of a UTF-8 text (Tiny Shakespeare)"},
    "--device": {"choices": ["auto", "cpu", "cuda"], "default": "auto"},
    "--threads": {"type": int, "default": 1, "metavar": "N", "help": "CPU threads (1)"},
}


class Parser(argparse.ArgumentParser):
    """A parser for the command with these words, for example "bench ladder"."""

    def __init__(self, words: str, about: str):
        super().__init__(f"python -m nanogpt {words}", description=about, allow_abbrev=False)
        self.register("type", Path, named)

    def error(self, message: str) -> NoReturn:
        """Report the error in one line, because the usage of some commands fills a screen."""
        reason = f"error: {message}; `{self.prog} --help` lists the options\n"
        self.exit(2, reason if speaks() else None)


def check_clone() -> None:
    """Raise ValueError if there are no notebooks: a pip-installed copy has none."""
    if not (ROOT / "notebooks").is_dir():
        raise ValueError(
            f"no notebooks/ in {ROOT}: an installed package has none, so git clone the "
            "repository and run this there"
        )


def add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options of _OPTIONS by name."""
    for name in names:
        parser.add_argument(name, **_OPTIONS[name])


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add --overwrite."""
    text = "replace files that this command writes; no other file is touched"
    parser.add_argument("--overwrite", action="store_true", help=text)


def add_lesson(parser: argparse._ActionsContainer, what: str) -> None:
    """Add --lesson [PATH]; `what` says in the help how your code is used."""
    path = (path_in("NANOGPT_MINE") or ROOT / "outputs" / "mine") / "lesson.py"
    about = f"use the code that you wrote in the notebooks: {what} (outputs/mine/lesson.py)"
    parser.add_argument("--lesson", nargs="?", type=Path, const=path, metavar="PATH", help=about)


def weights_for(args: argparse.Namespace, default: Path) -> str | Path:
    """The requested checkpoint; with --lesson and no checkpoint, one with the lecture's heads."""
    if args.checkpoint not in (None, KEEPER) or not args.lesson:
        return args.checkpoint or default
    weights = args.lesson.with_name("model.safetensors")
    return weights if weights.is_file() else LECTURE_FORM


def add_json(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --json [PATH]; `default` names, in the help, the file that --json alone writes."""
    text = f"write the result as JSON (outputs/run/{default})"
    parser.add_argument("--json", nargs="?", const="", metavar="PATH", help=text)


def json_path(given: str | None, what: str, default: str) -> Path | None:
    """The file that --json names, or `default` in outputs/run; None without --json.

    Raises before the work rather than after it: OSError if the file cannot be written, and
    ValueError if it exists and is not a result of the same command, which `what` names.
    """
    if given is None:
        return None
    path = user_path(given) if given else OUTPUTS / default
    check_writable(path)
    data = read_json(path)
    check_file(path, isinstance(data, dict) and data.get("what") == what)
    return path


def n_tokens(args: argparse.Namespace, most: int, usual: int = 255) -> int:
    """The new tokens of --tokens, or the usual number, at most `most`. Raises ValueError."""
    n = args.tokens or min(usual, most)
    check_int("tokens", n, 2, most)
    return n


def measured_device(args: argparse.Namespace) -> Device:
    """The device of --device, with --threads; printed in a line. Raises ValueError."""
    set_threads(args.threads)
    from ..bench.environment import conditions, environment
    from ..device import pick_device

    device = pick_device(getattr(args, "device", "cpu"))
    print(f"measured on {conditions(environment(device))}")
    return device


def write_result(path: Path | None, device: Device, result: dict[str, Any]) -> None:
    """If a path was given, write the result and its environment as JSON, and print the path."""
    if path:
        from ..bench.environment import environment

        write_json(path, {"format": f"{OURS} result", "environment": environment(device)} | result)
        print(f"\nwritten: {path}")


def set_threads(n: int) -> None:
    """Compute on n CPU threads. Raises ValueError if this machine has fewer CPUs."""
    check_int("threads", n, 1, os.cpu_count())
    import torch

    torch.set_num_threads(n)


def run_command(words: str, about: str, calls: Calls, argv: list[str]) -> int:
    """Parse the options of the command with these words, and run it. Returns its exit code."""
    options, run = calls
    parser = Parser(words, about)
    options(parser)
    args = parser.parse_args(argv)
    ours = [number for number in STOPS if signal.getsignal(number) is leave]
    if ours:
        import torch  # noqa: F401  (a Ctrl-C within an import can get lost)

    for number in ours:
        signal.signal(number, interrupt)
    return exit_code(lambda: run(args), vars(args))


# ------------------------------------------------------------------ how a command ends


def leave(number: int, frame: object) -> None:
    """End the process on a Ctrl-C or kill before a command has begun and written anything."""
    if speaks():
        with suppress(OSError):  # a terminal that is gone
            os.write(2, b"\nstopped: nothing was written\n")
    os._exit(128 + number)


def speaks() -> bool:
    """Whether this process reports errors: only one of those that torchrun started here does."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def exit_code(command: Callable[[], int | None], names: Iterable[str] = ()) -> int:
    """Run a command and return its exit code, 0 when it returns None; an error becomes one line.

    1: done, with a bad result (a mismatch, a non-finite loss); 2: it could not be done, and a line
    on stderr names the cause; 128 + N: stopped by signal N, so 130 for Ctrl-C, 143 for SIGTERM
    and 129 for a closed terminal. `names` are its options, by their names in the library. A
    KeyboardInterrupt may say which results were kept. An error that no user can cause is not
    caught and keeps its traceback.
    """
    received.clear()
    try:
        return command() or 0
    except BrokenPipeError:  # whoever read the output has left
        raise
    except KeyboardInterrupt as stopped:
        _report(f"\nstopped: {stopped if str(stopped) else 'nothing was written'}")
        return stop_code()
    except FloatingPointError as error:
        _report(f"error: {error}")
        return 1
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
        _report(f"error: {cause_of(error, names)}")
        return 2


def _report(message: str) -> None:
    if speaks():
        with suppress(OSError):  # a closed pipe, or a terminal that is gone
            print(message, file=sys.stderr, flush=True)


def cause_of(error: Exception, names: Iterable[str]) -> str:
    """What was wrong and what to do, in the words of a command with these options.

    Raises the error again if no user can cause it.
    """
    if isinstance(error, RuntimeError):
        from ..engines.toolchain import CannotBuild

        if not isinstance(error, CannotBuild):
            raise error
    if isinstance(error, ModuleNotFoundError):
        return missing(error)
    if isinstance(error, ParameterError):
        return in_options(error, names)
    words = re.sub(r"\[Errno \S+\] ", "", str(error))
    if isinstance(error, FileNotFoundError) and error.filename:
        words += ": check the path"
    return words or "this machine is out of memory"


def cannot_print(error: OSError) -> int:
    """The exit code if the output cannot be printed; prints why, unless the pipe was closed."""
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    with suppress(OSError):
        print(f"error: cannot print the output ({error.strerror})", file=sys.stderr, flush=True)
    return 2


def missing(error: ModuleNotFoundError) -> str:
    """The missing package and the extra that installs it. Re-raises if the package is ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "nanogpt"):
        raise error
    extra = EXTRAS.get(package, "notebooks")
    return f'{package} is not installed: pip install "nanogpt-notebooks[{extra}]"'


def in_options(error: ParameterError, own: Iterable[str]) -> str:
    """The error's message, with a command's `own` parameters as options: --top-k 0 for top_k=0."""
    message = str(error)
    for name in sorted(own, key=len, reverse=True):  # muon_lr before lr
        option = f"--{name.replace('_', '-')}"
        # A switch may also be advice in a message about another parameter.
        message = re.sub(rf"\b{name}=True\b", option, message)
        if name in error.names:
            message = message.replace(f"{name}=", f"{option} ")
    return message
