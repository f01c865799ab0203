"""python -m nanogpt verify class llama: a small random model of an architecture of transformers."""

from __future__ import annotations

import argparse

from .verify_model import add_seed, judged


def run(args: argparse.Namespace) -> int:
    """Judge a small model of each architecture."""
    from ..verify.subjects import small

    return judged((small(name, args.seed) for name in args.names), args.seed)


def options(parser: argparse.ArgumentParser) -> None:
    """All options."""
    add_seed(parser)
    about = "as in llama gpt2 mistral (llama)"
    parser.add_argument("names", nargs="*", default=["llama"], metavar="NAME", help=about)
