"""What every command shares: its options, their checks, and the way from an error to an exit code.

Exit codes: 0 done; 1 done, with a bad result (a mismatch, a loss that is not finite); 2 it could
not be done, and one line on stderr says why; 130 stopped by Ctrl-C.

Imports no torch: a command that needs none starts at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.checks import check_int
from ..config.shapes import SIZES
from ..system.files import ROOT, check_writable, write_json

if TYPE_CHECKING:
    from ..system.device import Device

OUTPUTS = ROOT / "outputs" / "run"


def positive(text: str) -> int:
    """An integer of at least 1, as argparse reads it from an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer of at least 1")
    return int(text)


POSITIVE = {"type": positive, "metavar": "N"}
OPTIONS = {
    "--size": {"choices": sorted(SIZES), "default": "small"},
    "--tokens": {**POSITIVE, "help": "new tokens (255, or what the block allows)"},
    "--repeats": {**POSITIVE, "default": 5, "help": "timed after a warm-up (5)"},
    "--checkpoint": {"metavar": "PATH", "help": "trained weights instead of random ones"},
    "--data": {"metavar": "PATH", "help": "any UTF-8 text (Tiny Shakespeare)"},
    "--device": {"choices": ["auto", "cpu", "cuda"], "default": "auto"},
    "--threads": {"type": int, "default": 1, "metavar": "N", "help": "CPU threads (1)"},
}


def command_parser(words: str, about: str) -> argparse.ArgumentParser:
    """A parser for the command that these words call, as in "bench ladder"."""
    return argparse.ArgumentParser(f"python -m nanogpt {words}", description=about)


def add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options of OPTIONS by name."""
    for name in names:
        parser.add_argument(name, **OPTIONS[name])


def add_json(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --json [PATH]; `default` names, in the help, the file that --json alone writes."""
    text = f"write the result as JSON (outputs/run/{default})"
    parser.add_argument("--json", nargs="?", const="", metavar="PATH", help=text)


def json_path(given: str | None, default: str) -> Path | None:
    """The file that --json names, or `default` in outputs/run; None without --json.

    Raises OSError now when it cannot be written: better before the work than after it.
    """
    if given is None:
        return None
    path = Path(given or OUTPUTS / default)
    check_writable(path)
    return path


def measured_device(args: argparse.Namespace) -> Device:
    """The device of --device, with --threads; said in a line. Raises ValueError."""
    set_threads(args.threads)
    from ..system.device import conditions, environment, pick_device

    device = pick_device(getattr(args, "device", "cpu"))
    print(f"measured on {conditions(environment(device))}")
    return device


def write_result(path: Path | None, device: Device, result: dict) -> None:
    """Write the result, and where it was measured, as JSON, if a path was given; and say so."""
    if path:
        from ..system.device import environment

        write_json(path, {"environment": environment(device)} | result)
        print(f"\nwritten: {path}")


def set_threads(n: int) -> None:
    """Compute on n CPU threads. Raises ValueError unless this machine has as many CPUs."""
    check_int("--threads", n, 1, os.cpu_count())
    import torch

    torch.set_num_threads(n)


def main_of(options: Callable, run: Callable) -> Callable:
    """The main(argv) -> exit code of a command that parses its `options()` and runs."""
    return lambda argv=None: exit_code(lambda: run(options().parse_args(argv)))


def exit_code(command: Callable[[], int | None], *, speaks: bool = True) -> int:
    """Run a command and return its exit code, 0 when it returns None; an error becomes one line.

    A KeyboardInterrupt may carry what was kept, as in KeyboardInterrupt("the weights are in …").
    With speaks=False nothing is printed: of several processes one is enough. An error that no user
    can cause is not caught: it keeps its traceback.
    """
    try:
        return command() or 0
    except KeyboardInterrupt as stopped:
        why, code = f"\nstopped: {stopped if str(stopped) else 'nothing was written'}", 130
    except FloatingPointError as error:
        why, code = f"error: {error}", 1
    except (ValueError, OSError, ImportError, MemoryError) as error:
        why, code = f"error: {str(error) or 'the memory of this machine is full'}", 2
    except RuntimeError as error:
        from ..engines.toolchain import CannotBuild

        if not isinstance(error, CannotBuild):
            raise
        why, code = f"error: {error}", 2
    if speaks:
        print(why, file=sys.stderr)
    return code
