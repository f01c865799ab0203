"""The referee on a small model of every transformers architecture: a table, and bug scripts.

The scripts use only transformers, so that a maintainer can paste them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from ..console import first_line
from ..files import read_json, write_json, write_whole
from ..kv_referee.report import Report, Verdict
from .architectures import NotBuilt, small
from .by_hand import BY_HAND, Hand, report_name
from .referee import referee

_TOKENS = 4_000  # that each kind reads before no longer text follows
_HEAD = """\
# The referee on every causal architecture of transformers

{made}; {kinds} kinds, a budget of {tokens:,} tokens each: {counted}.
Each is a small model with random weights. A bug here is a difference between a cached and a plain
pass in float64 that rounding does not explain; the script shows it with transformers alone. One
short scenario of each kind is always tried; *left* counts those beyond the budget. Made by
`python -m nanogpt verify kinds`.

*By hand* is what a person found by reading the code: {by_hand}. These sentences are kept in
nanogpt/verify/by_hand.py, with the versions that were examined.
"""
SURVEY_COLUMNS = (
    "kind",
    "verdict",
    "by hand",
    "scenarios",
    "left",
    "shown by, or reason",
    "size",
    "script",
)


_Row = dict[str, Any]  # of the table


class Unjudged(str, Enum):
    """Why an architecture has no verdict."""

    NOT_REACHED = "not reached"
    NOT_BUILT = "not built"
    REFUSED = "refused"
    STOPPED = "stopped"

    def __str__(self) -> str:
        return self.value


def kinds() -> list[str]:
    """The names of all causal architectures in transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def survey(
    names: Iterable[str], minutes: float, seconds: float, say: Callable[[str], object]
) -> Iterator[_Row]:
    """Yield the row of each kind, for this many minutes; kinds not reached also get a row."""
    end = time.monotonic() + 60 * minutes
    for kind in names:
        if time.monotonic() > end:
            yield {"kind": kind, "verdict": Unjudged.NOT_REACHED}
            continue
        row = _row(kind, seconds)
        say(f"{kind:28} {row['verdict']:12} {row.get('way') or row.get('why', '')}"[:110])
        yield row


def _row(kind: str, seconds: float) -> _Row:
    """The referee's result for one architecture, as plain data."""
    began = time.monotonic()
    row: _Row = {"kind": kind}
    try:
        report = referee(small(kind), tokens=_TOKENS, seconds=seconds)
    except NotBuilt as error:
        return row | {"verdict": Unjudged.NOT_BUILT, "why": first_line(error)}
    except ValueError as error:
        return row | {"verdict": Unjudged.REFUSED, "why": first_line(error)}
    except Exception as error:  # of any type: it depends on the model
        reason = f"{type(error).__name__}: {first_line(error)}"
        return row | {"verdict": Unjudged.STOPPED, "why": reason}
    row |= {"verdict": report.verdict, "ways": len(report.findings)}
    row |= {"left": len(report.unreached), "seconds": round(time.monotonic() - began, 1)}
    if report.verdict is Verdict.BUG:
        row |= _evidence(report)
    return row


def _evidence(report: Report) -> _Row:
    """The bug that has a script, and its size; a wrong plain pass comes first."""
    bugs = [f for f in report.findings if f.verdict is Verdict.BUG]
    first = min(bugs, key=lambda bug: (bug.cache is not None, not bug.code))
    size = first.size if first.size < float("inf") else None
    row = {"way": first.way, "size": size, "words": first.words}
    return row | {"bugs": len(bugs), "code": first.code}


def write(folder: Path, rows: list[_Row]) -> None:
    """Write the table as kinds.json and README.md, and a script for each bug that has one."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    data = {"what": "kinds", **versions, "tokens": _TOKENS, "rows": rows}
    write_json(folder / "kinds.json", data)
    render(folder)


def render(folder: Path) -> None:
    """Write README.md and the scripts from kinds.json, with the manual verdicts.

    A bug gets a generated script unless the folder has a report on it.
    """
    data = read_json(folder / "kinds.json")
    rows = data["rows"]
    scripts = {}
    for row in rows:
        report = report_name(row["kind"])
        if (folder / report).is_file():
            scripts[row["kind"]] = report
        elif row.get("code"):
            scripts[row["kind"]] = _script_name(row)
            write_whole(folder / _script_name(row), row["code"].encode())
    write_whole(folder / "README.md", table(rows, data, data["tokens"], scripts).encode())


def _script_name(row: _Row) -> str:
    """Not just the kind: a script named xlstm.py would be imported instead of the package xlstm."""
    return f"{row['kind']}_shown.py"


def table(rows: list[_Row], versions: dict[str, str], tokens: int, scripts: dict[str, str]) -> str:
    """The survey as a Markdown page. `scripts` has the file name of each kind's script."""
    counts = Counter(row["verdict"] for row in rows)
    counted = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    made = f"transformers {versions['transformers']}, torch {versions['torch']}"
    hands = Counter(BY_HAND[row["kind"]].verdict for row in rows if row["kind"] in BY_HAND)
    by_hand = ", ".join(f"{hands[verdict]} {verdict}" for verdict in Hand)
    head = _HEAD.format(made=made, kinds=len(rows), tokens=tokens, counted=counted, by_hand=by_hand)
    titles = f"| {' | '.join(SURVEY_COLUMNS)} |"
    lines = [*head.splitlines(), "", titles, "|---" * len(SURVEY_COLUMNS) + "|"]
    rank = {verdict: i for i, verdict in enumerate(reversed(Verdict))}  # worst first
    for row in sorted(rows, key=lambda row: (rank.get(row["verdict"], 9), row["kind"])):
        reason = (row.get("way") or row.get("why") or "").replace("|", "/")
        size = "" if row.get("size") is None else f"{row['size']:.1e}"
        hand = BY_HAND.get(row["kind"])
        script = scripts.get(row["kind"])
        cells = [
            row["kind"],
            row["verdict"],
            hand.cell(versions["transformers"]) if hand else "",
            row.get("ways", ""),
            row.get("left", ""),
            reason,
            size,
            f"[{script}]({script})" if script else "",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"
