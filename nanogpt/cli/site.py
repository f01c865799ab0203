"""python -m nanogpt site: render executed notebooks."""

from __future__ import annotations

from pathlib import Path

from ..publishing.site import newest, render
from .common import command_parser, exit_code


def main(argv: list[str] | None = None) -> int:
    """Write FOLDER/html and print the path of its index. Exit code 2 when it cannot be done."""
    parser = command_parser("site", "Render the executed notebooks of a folder as HTML.")
    parser.add_argument("folder", nargs="?", type=Path, help="the newest run by default")
    args = parser.parse_args(argv)
    return exit_code(lambda: print(render(args.folder or newest())))
