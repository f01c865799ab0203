"""python -m nanogpt site: render executed notebooks."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..publishing.nbfile import SyncError
from ..publishing.site import SiteError, newest, render


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nanogpt site",
        description="Render the executed notebooks of a folder as HTML.",
    )
    parser.add_argument("folder", nargs="?", type=Path, help="the newest run by default")
    args = parser.parse_args(argv)
    try:
        print(render(args.folder or newest()))
    except (SiteError, SyncError, OSError) as error:
        parser.exit(2, f"site: {error}\n")
    return 0
