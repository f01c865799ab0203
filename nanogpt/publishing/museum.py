"""The museum's page: each public bug, where it turns a text, what finds it and what misses it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from ..config import address
from ..system.files import read_sealed
from ..verify.museum import FOLDER, POWERS, VERDICTS
from .html import TEMPLATES, coloured

GROUPS = ["positions", "masks", "storing", "reuse", "rollback", "batches and seeds", "plain pass"]
TRAPS = "first second third fourth fifth sixth seventh".split()  # of notebook 04


def page(names: Collection[str]) -> str | None:
    """The page, from the verdicts that `verify museum` wrote; None where they are not.

    `names` are the pages beside it. That of notebook 04 is linked if it is among them.
    """
    data = read_sealed(VERDICTS)
    if data is None:
        return None
    rows = [_room(row, data["seeds"]) for row in data["exhibits"]]
    traps = {row["trap"]: row for row in rows if row["trap"]}
    groups = {group: [row for row in rows if row["group"] == group] for group in GROUPS}
    return TEMPLATES.get_template("museum.html.j2").render(
        n=len(rows),
        seeds=data["seeds"],
        convicted=sum(row["convicted"] == data["seeds"] for row in rows),
        acquitted=sum(row["acquitted"] == data["seeds"] for row in rows),
        traps=[traps[trap] for trap in TRAPS],
        powers=POWERS,
        groups=groups,
        ways=_ways(rows),
        notebook=next((name for name in sorted(names) if name.startswith("04_")), None),
    )


def _room(row: dict, seeds: int) -> dict:
    """What the page says of an exhibit, beside its verdicts."""
    owner, kind, number = re.fullmatch(r".*\.com/(.+)/(\w+)/(\w+)", row["thread"]).groups()
    kind = {"issues": "issue", "pull": "pull request"}.get(kind, kind)
    trap = re.search(r"otebook 04's (\w+) trap", row["about"])
    turn = row["turn"]
    pairs = enumerate(zip(turn.get("expected", ""), turn.get("got", ""), strict=True))
    path = FOLDER / f"{row['name']}.py"
    code = path.read_text(encoding="utf-8").split('"""', 2)[2].strip() if path.is_file() else ""
    return row | {
        "owner": owner,
        "number": f"{kind} {number}",
        "trap": trap and trap[1],
        "first": next((i for i, (a, b) in pairs if a != b), None),
        "always": [way for way, n in row["found"].items() if n == seeds],
        "sometimes": {way: n for way, n in row["found"].items() if n < seeds},
        "never": [way for way in row["missed"] if way not in row["found"]],
        "code": coloured(code) if code else "",
        "file": address.REPO
        and f"https://github.com/{address.REPO}/blob/{address.REF}/notebooks/museum/{path.name}",
    }


def _ways(rows: list[dict]) -> list[dict]:
    """For each comparison: how many bugs it convicts for all seeds, and how many it alone."""
    convicts = Counter(way for row in rows for way in row["always"])
    alone = Counter(way for row in rows for way in row["found"] if len(row["found"]) == 1)
    tried = sorted({way for row in rows for way in row["found"] | row["missed"]})
    counts = [{"way": way, "found": convicts[way], "alone": alone[way]} for way in tried]
    return sorted(counts, key=lambda count: -count["found"])
