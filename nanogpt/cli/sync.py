"""python -m nanogpt sync: keep the notebooks equal to the package.

python -m nanogpt sync                               write what differs
python -m nanogpt sync --check                       list what differs, write nothing, exit 1
python -m nanogpt sync --repo owner/name [--ref v1]  set the repository's address as well
"""

from __future__ import annotations

from ..config import address
from ..publishing.mirror import set_address, sync
from ..publishing.nbfile import SyncError
from ..system.files import ROOT
from .common import command_parser, exit_code


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 equal now, 1 something differs (with --check), 2 it could not be done."""
    parser = command_parser("sync", "Keep the notebooks equal to the package.")
    parser.add_argument("--check", action="store_true", help="list what differs and write nothing")
    parser.add_argument("--repo", metavar="OWNER/NAME", help="set the repository's address")
    parser.add_argument("--ref", help="the branch or tag that badges and the set-up cell name")
    args = parser.parse_args(argv)
    return exit_code(lambda: _sync(args.repo, args.ref, args.check))


def _sync(repo: str | None, ref: str | None, check: bool) -> int:
    if (repo or ref) and check:
        raise SyncError("--check writes nothing, so it cannot go with --repo or --ref")
    new = repo or address.REPO, ref or address.REF
    for path in (differ := set_address(*new, ROOT) if repo or ref else sync(ROOT, check=check)):
        print(f"{'differs' if check else 'written'}: {path.relative_to(ROOT)}")
    if differ and check:
        print("run `make sync` (python -m nanogpt sync); edit mirrored code in nanogpt/, not here")
        return 1
    return 0
