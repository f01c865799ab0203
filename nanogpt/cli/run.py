"""python -m nanogpt run: the notebooks, headless.

python -m nanogpt run                     all of them, with the profile that fits the machine
python -m nanogpt run 00 03 -p seed=7     two of them, with one of their parameters changed
python -m nanogpt run --plan              what it would do here, and how long that would take
python -m nanogpt run --publish           all of them into outputs/published, or nothing
python -m nanogpt run --reproduce         all of them, compared with outputs/published
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from ..publishing.runner import RunPlan, run, run_and_compare, run_and_publish, show_plan
from .common import command_parser, exit_code

KEPT = "what had passed before is kept"


def ratio(text: str) -> float:
    """A number above 0, or a fraction, as in 1/8. Raises ValueError."""
    top, slash, bottom = text.partition("/")
    value = float(top) / (float(bottom or 0) or float("inf") if slash else 1.0)
    if not 0 < value < float("inf"):
        raise ValueError("a speed is above 0")
    return value


OPTIONS = {
    "notebooks": {"nargs": "*", "help": "numbers or names, such as 00 03; without any, all"},
    "--profile": {
        "default": "auto",
        "help": "auto (gpu where there is one, else cpu), smoke, cpu, gpu, or a row of cpu",
    },
    "--plan": {"action": "store_true", "help": "print what it would do, with minutes, and exit"},
    "--full": {"action": "store_true", "help": "with cpu: as much work as the published run"},
    "--ratio": {
        "type": ratio,
        "metavar": "R",
        "help": "take this speed instead of measuring: 1 is the published run's, 1/8 an eighth",
    },
    "-p": {
        "action": "append",
        "default": [],
        "dest": "settings",
        "metavar": "NAME=VALUE",
        "help": "set a notebook's parameter",
    },
    "--out": {
        "type": Path,
        "metavar": "FOLDER",
        "help": "where to write; outputs/run/PROFILE by default",
    },
    "--timeout": {
        "type": int,
        "default": RunPlan.timeout,
        "metavar": "SECONDS",
        "help": f"for each cell; {RunPlan.timeout}",
    },
    "--fail-fast": {"action": "store_true", "help": "stop at the first notebook that fails"},
    "--no-html": {"dest": "html", "action": "store_false", "help": "do not render the pages"},
    "--publish": {"action": "store_true", "help": "write outputs/published, if all pass"},
    "--reproduce": {"action": "store_true", "help": "compare a whole run with outputs/published"},
    "--source": {"type": Path, "help": argparse.SUPPRESS},
}


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all passed, 1 some failed, 2 the run could not be done, 130 stopped."""
    parser = command_parser("run", "Run the notebooks headless and render what they make.")
    whole = parser.add_mutually_exclusive_group()
    for name, option in OPTIONS.items():
        place = whole if name in ("--publish", "--reproduce") else parser
        place.add_argument(name, **option)
    args = parser.parse_args(argv)
    kind = show_plan if args.plan else run
    kind = run_and_publish if args.publish else run_and_compare if args.reproduce else kind
    # A polite kill tidies up as a Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return exit_code(lambda: _run(kind, args))
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(kind: Callable[[RunPlan], bool], args: argparse.Namespace) -> int:
    try:
        plan = RunPlan(**{field.name: getattr(args, field.name) for field in fields(RunPlan)})
        return 0 if kind(plan) else 1
    except OSError as error:  # a full disk, above all
        raise OSError(f"{error}: {KEPT}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(KEPT) from None
