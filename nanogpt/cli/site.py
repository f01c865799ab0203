"""python -m nanogpt site: render executed notebooks."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

from ..cluster.folders import held
from ..series.site import newest, render


def run(args: argparse.Namespace) -> None:
    """Write FOLDER/html and print the path of its index."""
    folder = (args.folder or newest()).resolve()
    # A folder that is not there is not made for its lock: rendering says what is missing.
    with held(folder / ".lock", f"into {folder}") if folder.is_dir() else nullcontext():
        print(render(folder))


def options(parser: argparse.ArgumentParser) -> None:
    about = "one that `run` has written into (the newest of outputs/run, else outputs/published)"
    parser.add_argument("folder", nargs="?", type=Path, help=about)
