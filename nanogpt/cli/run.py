"""python -m nanogpt run: the notebooks, headless."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from ..data.corpus import CorpusError
from ..publishing.nbfile import SyncError
from ..publishing.parameters import RunError
from ..publishing.runner import run
from ..system.files import ROOT


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nanogpt run",
        description="Run the notebooks headless and render what they make.",
    )
    parser.add_argument(
        "notebooks", nargs="*", help="numbers or names, such as 00 03; without any, all"
    )
    parser.add_argument(
        "--profile",
        default="auto",
        help="auto (gpu where there is one, else cpu), smoke, cpu or gpu",
    )
    parser.add_argument(
        "-p", action="append", default=[], metavar="NAME=VALUE", help="set a notebook's parameter"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to write; outputs/run/PROFILE by default"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=1800, metavar="SECONDS", help="for each cell; 1800"
    )
    parser.add_argument(
        "--fail-fast", action="store_true", help="stop at the first notebook that fails"
    )
    parser.add_argument(
        "--no-html", dest="html", action="store_false", help="do not render the pages"
    )
    parser.add_argument(
        "--publish", action="store_true", help="write outputs/published, if all pass"
    )
    parser.add_argument(
        "--reproduce", action="store_true", help="compare a whole run with outputs/published"
    )
    parser.add_argument("--source", type=Path, default=ROOT / "notebooks", help=argparse.SUPPRESS)
    return parser


def seconds(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give whole seconds, at least 1")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all passed, 1 some failed, 2 the run could not begin, 130 stopped between notebooks."""
    parser = command_line()
    args = parser.parse_args(argv)
    # A polite kill tidies up as a Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return 0 if run(args) else 1
    except (RunError, SyncError, CorpusError) as error:
        parser.exit(2, f"run: {error}\n")
    except OSError as error:  # a full disk, above all
        parser.exit(1, f"run: {error}: what had passed before is kept\n")
    except KeyboardInterrupt:
        parser.exit(130, "run: interrupted\n")
    finally:
        signal.signal(signal.SIGTERM, before)
