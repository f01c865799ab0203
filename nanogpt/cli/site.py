"""python -m nanogpt site: render executed notebooks."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

from ..publishing.site import newest, render
from ..system.files import held
from .common import Parser, main_of


def run(args: argparse.Namespace) -> None:
    """Write FOLDER/html and print the path of its index."""
    folder = (args.folder or newest()).resolve()
    # A folder that is not there is not made for its lock: rendering says what is missing.
    with held(folder / ".lock", f"into {folder}") if folder.is_dir() else nullcontext():
        print(render(folder))


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = Parser("site", "Render the executed notebooks of a folder as HTML, into its html/.")
    about = "one that `run` has written into (the newest of outputs/run, else outputs/published)"
    parser.add_argument("folder", nargs="?", type=Path, help=about)
    return parser


main = main_of(options, run)
