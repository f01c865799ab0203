"""python -m nanogpt sync: keep the notebooks equal to the package."""

from __future__ import annotations

import argparse

from ..files import ROOT
from ..series import address
from ..series.mirror import set_address, sync
from ..series.nbfile import SyncError
from .common import check_clone


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 equal now, 1 something differs (with --check), 2 it could not be done."""
    check_clone()
    new, check = (args.repo or address.REPO, args.ref or address.REF), args.check
    if (args.repo or args.ref) and check:
        raise SyncError("--check writes nothing, so it cannot go with --repo or --ref")
    differ = set_address(*new, ROOT) if args.repo or args.ref else sync(ROOT, check=check)
    for path in differ:
        print(f"{'differs' if check else 'written'}: {path.relative_to(ROOT)}")
    if differ and check:
        print("run `make sync` (python -m nanogpt sync); edit mirrored code in nanogpt/, not here")
    return int(bool(differ) and check)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="list what differs and write nothing")
    parser.add_argument("--repo", metavar="OWNER/NAME", help="set the repository's address")
    parser.add_argument("--ref", help="the branch or tag that badges and the set-up cell name")
