"""python -m nanogpt sync: keep the notebooks equal to the package."""

from __future__ import annotations

import argparse

from ..config import address
from ..publishing.mirror import set_address, sync
from ..publishing.nbfile import SyncError
from ..system.files import ROOT


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nanogpt sync", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="list what differs and write nothing")
    parser.add_argument("--repo", metavar="OWNER/NAME", help="set the repository's address first")
    parser.add_argument("--ref", help="the branch or tag that badges and the set-up cell name")
    args = parser.parse_args(argv)
    repo, ref = args.repo or address.REPO, args.ref or address.REF
    try:
        if (args.repo or args.ref) and args.check:
            raise SyncError("--check writes nothing, so it cannot go with --repo or --ref")
        if args.repo or args.ref:
            set_address(repo, ref)
        differ = sync(ROOT, repo, ref, check=args.check)
    except (SyncError, OSError) as error:
        parser.exit(2, f"sync: {error}\n")
    for path in differ:
        print(f"{'differs' if args.check else 'written'}: {path.relative_to(ROOT)}")
    if differ and args.check:
        print(
            "run `make sync` (python -m nanogpt sync); edit mirrored code in nanogpt/, not in the notebook"
        )
    return int(bool(differ) and args.check)
