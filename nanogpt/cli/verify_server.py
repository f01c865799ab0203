"""python -m nanogpt verify server URL: does what must not matter change its texts?"""

from __future__ import annotations

from .common import main_of
from .verify_model import judged, parser_of


def options():
    """All options."""
    parser = parser_of("verify server", "Ask a completions server for the same texts in many ways.")
    ours = "http://localhost:8000"
    parser.add_argument("url", nargs="?", default=ours, help=f"its address ({ours})")
    return parser


main = main_of(options, lambda args: judged([args.url], args.seed))
