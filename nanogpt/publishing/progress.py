"""What a run prints: a bar while a notebook runs, a table and where to look at the end."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm


@contextmanager
def cell_bar(source: Path):
    """On a terminal, a bar that counts cells; gives the function to call with the index of each."""
    total = len(json.loads(source.read_text(encoding="utf-8"))["cells"])
    hidden = not sys.stderr.isatty()
    with tqdm(total=total, desc=source.stem, unit="cell", leave=False, disable=hidden) as bar:
        yield lambda index: bar.update(index - bar.n)


def table(entries: list[dict]) -> str:
    """The closing table: notebook, seconds, passed or the error."""
    width = max(len(entry["notebook"]) for entry in entries)
    lines = [f"{'notebook':{width}}  seconds  result"]
    for entry in entries:
        result = "passed" if entry["ok"] else f"FAILED  {entry['error']}"
        lines.append(f"{entry['notebook']:{width}}  {entry['seconds']:7.1f}  {result}")
    return "\n".join(lines)


def report(entries: list[dict], asked: int, profile: str, out: Path) -> None:
    """Print how many of the notebooks asked for passed, and where to look."""
    passed = sum(entry["ok"] for entry in entries)
    print(f"{passed} of {asked} passed, profile {profile}, in {short(out)}")
    if passed < len(entries):
        print(f"what failed, up to its error: {short(out / 'failed')}")
    if (page := out / "html" / "index.html").is_file():
        print(f"to read: {short(page)}")


def short(path: Path) -> str:
    """The path as seen from here, where that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
