"""Every speedup quoted in the project, in one table, with its baseline and its source.

The table is data, speedups.json: parts of a story, with rows. A row names a file below `outputs/`
and the path to a summary inside it; the numbers are read from there and never typed. A path is keys
with `/` between them, and `key=value` for the one item of a list that has that value. `sync` writes
the rows that are `short` into the README, and the site's index shows all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import PUBLISHED, ROOT
from ..timing import Summary

BEGIN = "<!-- The speedups: written by `make sync` from nanogpt/site/speedups.json -->"
TABLE_END = "<!-- End of the speedups -->"


@dataclass(frozen=True)
class Row:
    """A speedup, and the source of its number."""

    id: str  # its anchor, without "speed-"
    what: str
    against: str  # the baseline
    model: str
    tokens: int  # new tokens
    machine: str
    file: str  # below outputs/
    path: str  # to a summary of ratios, or of tokens per second
    over: str = ""  # the path to the summary of tokens per second to divide by, if any
    note: str = ""
    short: bool = False  # whether it is in the README's table
    weights: str = "float32"

    @property
    def settings(self) -> str:
        """The number of threads and the type of the weights, or what a GPU was told."""
        return f"{SETTINGS[self.machine]}, {self.weights}"

    @property
    def anchor(self) -> str:
        """The id of its row in a page and in the README."""
        return f"speed-{self.id}"


@dataclass(frozen=True)
class StoryPart:
    """A step of the story: some rows under a heading."""

    title: str
    says: str  # without numbers
    rows: list[Row]


_DATA = json.loads(Path(__file__).with_name("speedups.json").read_text(encoding="utf-8"))
SETTINGS: dict[str, str] = _DATA["settings"]  # by machine
STORY = [
    StoryPart(part["title"], part["says"], [Row(**row) for row in part["rows"]])
    for part in _DATA["parts"]
]
ROWS = {row.id: row for part in STORY for row in part.rows}
# The number on each notebook's card (a row of the table), and its caption.
CARDS = {number: (card["row"], card["caption"]) for number, card in _DATA["cards"].items()}


def find(data: Any, path: str) -> Any:
    """Follow a path into the contents of a file. Raises LookupError."""
    items = None  # those of a list that have all values so far
    for key in path.split("/"):
        name, is_condition, value = key.partition("=")
        if is_condition:
            among = data if items is None else items
            items = [item for item in among if str(item.get(name)) == value]
            continue
        if items is not None:
            data = _only(items, path)
            items = None
        data = data[key]
    return data if items is None else _only(items, path)


def _only(items: list[Any], path: str) -> Any:
    if len(items) != 1:
        raise LookupError(f"{len(items)} items at {path}: exactly 1 is needed")
    return items[0]


def ratio(data: Any, row: Row) -> Summary:
    """The speedup of a row, from the contents of its file.

    The quotient of two summaries is the quotient of their medians, with the widest range.
    """
    own: Summary = find(data, row.path)
    if not row.over:
        return own
    base: Summary = find(data, row.over)
    return {
        "median": own["median"] / base["median"],
        "low": own["low"] / base["high"],
        "high": own["high"] / base["low"],
        "n": own["n"],
    }


def number(value: float) -> str:
    """A ratio with its sign, in about three digits: 0.93×, 2.2×, 13.4×, 124×."""
    return f"{value:.{_digits(value)}f}×"


def spread(value: Summary) -> str:
    """The range of a summary, with the same number of digits as its median."""
    digits = _digits(value["median"])
    return f"{value['low']:.{digits}f}–{value['high']:.{digits}f}"


def _digits(value: float) -> int:
    """The digits after the point with which a ratio is shown."""
    if value < 1:
        return 2
    return 1 if value < 20 else 0


def measured(published: Path = PUBLISHED) -> dict[str, Summary]:
    """The speedup of every row whose file exists, by id.

    `published` is the folder with the published run, which may not be in its final location yet.
    """
    found = {}
    for row in ROWS.values():
        folder, _, rest = row.file.partition("/")
        path = published / rest if folder == "published" else ROOT / "outputs" / row.file
        if path.is_file():
            found[row.id] = ratio(json.loads(path.read_text(encoding="utf-8")), row)
    return found


# ------------------------------------------------------------------ in the README


def with_speedups(readme: str) -> str:
    """The README's text, with the short table between its two marks, if it has them."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(TABLE_END)
    if not end:
        return readme
    return f"{before}{begin}\n\n{readme_table()}\n\n{end}{after}"


def readme_table() -> str:
    """The rows of the README as a Markdown table, each with an anchor."""
    values = measured()
    lines = [
        "| what is timed | speedup | compared with | model, new tokens | machine |",
        "|---|---|---|---|---|",
    ]
    for row in ROWS.values():
        if row.short and row.id in values:
            value = values[row.id]
            factor = f"**{number(value['median'])}** [{spread(value)}]"
            link = f'<a id="{row.anchor}"></a>[{row.what}](outputs/{row.file})'
            model = f"{row.model}, {row.tokens:,}"
            lines.append(f"| {link} | {factor} | {row.against} | {model} | {row.machine} |")
    return "\n".join(lines)
