"""python -m nanogpt verify class llama: a small random model of an architecture of transformers."""

from __future__ import annotations

from .common import main_of
from .verify_model import judged, parser_of


def run(args) -> int:
    """Judge a small model of each architecture."""
    from ..verify.subjects import small

    return judged((small(name, args.seed) for name in args.names), args.seed)


def options():
    """All options."""
    parser = parser_of("verify class", "Judge the cache of an architecture, with random weights.")
    about = "as in llama gpt2 mistral (llama)"
    parser.add_argument("names", nargs="*", default=["llama"], metavar="NAME", help=about)
    return parser


main = main_of(options, run)
