"""The page of the museum: public bugs, and the checks that find or miss each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import Any

from ..files import read_json
from ..verify import museum
from . import address
from .html import TEMPLATES, coloured

_KINDS = {"issues": "issue", "pull": "pull request"}


def museum_page(names: Collection[str]) -> str | None:
    """The public bugs, and the checks that find or miss each; None without the referee's verdicts.

    `names` are the other pages. Notebook 04's page is linked if it is among them.
    """
    data = rooms()
    if data is None:
        return None
    return TEMPLATES.get_template("museum.html.j2").render(
        data,
        notebook=next((name for name in sorted(names) if name.startswith("04_")), None),
        coloured=coloured,
        repository=address.REPO and f"https://github.com/{address.REPO}/blob/{address.REF}",
    )


def rooms() -> dict[str, Any] | None:
    """The data of the page, from the stored verdicts; None without them."""
    data = read_json(museum.VERDICTS_FILE)
    if not isinstance(data, dict):
        return None
    rows = [_room(row) for row in data["exhibits"]]
    seeds = data["seeds"]
    names: set[str] = set()
    convictions: Counter[str] = Counter()  # bugs that a decoding path convicts with every seed
    alone: Counter[str] = Counter()  # bugs that no other path convicts
    for row in rows:
        names.update(row["found"])
        names.update(row["missed"])
        convictions.update(way for way, n in row["found"].items() if n == seeds)
        if len(row["found"]) == 1:
            alone.update(row["found"].keys())
    ways = []
    for way in sorted(names, key=lambda way: (-convictions[way], way)):
        ways.append({"way": way, "found": convictions[way], "alone": alone[way]})
    return {"bugs": rows, "seeds": seeds, "powers": museum.POWERS, "ways": ways}


def _room(row: dict[str, Any]) -> dict[str, Any]:
    """An exhibit's row, with the facts shown next to its verdicts."""
    owner, kind, number = row["thread"].partition(".com/")[2].rsplit("/", 2)
    trap = re.search(r"otebook 04's (\w+) trap", row["about"])
    turn = row.get("turn", {})
    texts = [turn.get(name, "").split() for name in ("expected", "got")]
    path = museum.FOLDER / f"{row['name']}.py"
    code = path.read_text(encoding="utf-8").split('"""', 2)[2].strip() if path.is_file() else ""
    return row | {
        "owner": owner,
        "number": f"{_KINDS.get(kind, kind)} {number}",
        "trap": trap and trap[1],
        "first": museum.first_difference(*texts),
        "code": code,
    }
