"""python -m nanogpt run: the notebooks, headless."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from types import SimpleNamespace

from ..checkpoint import load_checkpoint
from ..files import ROOT
from ..series import runner
from ..series.plan import DEFAULT
from .common import add_overwrite, check_clone, positive


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("notebooks", nargs="*", help="numbers or names, such as 00 03")
    add("--all", action="store_true", help=f"all of them; else {' '.join(DEFAULT)}")
    known = "auto (gpu where there is one, else laptop), smoke, laptop, full (as published), gpu"
    add("--profile", default="auto", help=known)
    add("--plan", dest="dry", action="store_true", help="print what it would do, with minutes")
    setting = {"dest": "settings", "metavar": "NAME=VALUE", "help": "set a notebook's parameter"}
    add("-p", action="append", default=[], **setting)
    add("--out", type=Path, metavar="FOLDER", help="where to write (outputs/run/PROFILE)")
    add("--timeout", type=positive, default=1800, metavar="S", help="seconds of a cell (1800)")
    add_overwrite(parser)
    add("--no-html", dest="html", action="store_false", help="do not render the pages")
    add("--source", type=Path, help=argparse.SUPPRESS)
    add = parser.add_mutually_exclusive_group().add_argument
    add("--publish", action="store_true", help="write outputs/published, if all pass")
    add("--reproduce", action="store_true", help="compare a whole run with outputs/published")


def run(args: argparse.Namespace) -> int:
    if not args.source:
        check_clone()
    whole = args.publish or args.reproduce
    checkpoint = "" if whole else os.environ.get("NANOGPT_CHECKPOINT", "")
    for setting in args.settings:
        name, _, value = setting.partition("=")
        checkpoint = value if name == "checkpoint" else checkpoint
    if checkpoint not in ("", "auto"):
        load_checkpoint(ROOT / checkpoint)  # in which kernels run; refused before one does
    # A polite kill tidies up as a Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return 0 if runner.run_series(SimpleNamespace(**vars(args))) else 1
    finally:
        signal.signal(signal.SIGTERM, before)
