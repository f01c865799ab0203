"""python -m nanogpt verify certificate: does what the page in outputs/mine says still hold?"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..system.files import ROOT, WEIGHTS

DEFAULT = ROOT / "outputs" / "mine" / "certificate.html"


def run(args: argparse.Namespace) -> int:
    """Compute it all again. Exit code 1: it does not hold."""
    from ..model.checkpoint import load_checkpoint
    from ..notebook.certificate import check, read, rows, title

    wrong = check(args.path, load_checkpoint(args.checkpoint))
    if not wrong:
        said = read(args.path)
        print("\n".join([title(said), *(f"  {name}: {words}" for name, words in rows(said))]))
    print("\n".join(f"It does not hold: {why}" for why in wrong) or "It holds: computed again.")
    return int(bool(wrong))


def options(parser: argparse.ArgumentParser) -> None:
    """All options."""
    parser.epilog = "Exit code 0: it holds; 1: it does not; 2: there is none that can be read."
    where = "the page (outputs/mine/certificate.html), with lesson.py beside it"
    parser.add_argument("path", nargs="?", type=Path, default=DEFAULT, help=where)
    weights = "the trained weights it was made with (those that ship)"
    parser.add_argument("--checkpoint", default=WEIGHTS / "small", metavar="PATH", help=weights)
