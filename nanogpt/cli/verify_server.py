"""python -m nanogpt verify server URL: does what must not matter change its texts?"""

from __future__ import annotations

import argparse

from .verify_model import add_seed, judged


def run(args: argparse.Namespace) -> int:
    """Judge the server."""
    return judged([args.url], args.seed)


def options(parser: argparse.ArgumentParser) -> None:
    """All options."""
    add_seed(parser)
    ours = "http://localhost:8000"
    parser.add_argument("url", nargs="?", default=ours, help=f"its address ({ours})")
