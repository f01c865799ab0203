"""What a run prints: how far it is while it runs, a table and where to look at the end."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path

from ..system.console import clock

EVERY = 10  # seconds between two lines where no terminal is; there, one line once a second


class Screen:
    """Says how far the running notebooks are, whenever `tick` is called.

    On a terminal in one line that changes, elsewhere in a line for each notebook.
    """

    def __init__(self, expected: float | None):
        self.expected, self.begun = expected, time.monotonic()
        self.running: dict[str, tuple[str, float, Path]] = {}
        self.lock, self.terminal = threading.RLock(), sys.stdout.isatty()
        self.pause = 1 if self.terminal else EVERY

    def at(self, name: str, what: str, told: Path) -> None:
        """A notebook begins a cell, whose kernel tells of it in a file (console.Progress)."""
        told.unlink(missing_ok=True)
        self.running[name] = (f"{name}: {what}", time.monotonic(), told)

    def ended(self, name: str) -> None:
        """A notebook has ended."""
        self.running.pop(name, None)

    def print(self, text: str) -> None:
        """Print lines that stay."""
        with self.lock:
            self._erase()
            print(text, flush=True)

    def tick(self) -> None:
        """Say how far everything is."""
        lines, spent = [], time.monotonic() - self.begun
        for what, since, told in list(self.running.values()):
            try:
                said = told.read_text(encoding="utf-8").strip()
            except (OSError, ValueError):
                said = ""
            lines.append(f"{what}, {said or clock(time.monotonic() - since)}")
        total = f" of about {clock(max(spent, self.expected))}" if self.expected else " so far"
        with self.lock:
            if self.terminal:
                width, text = shutil.get_terminal_size().columns - 1, " | ".join(lines)
                print(f"\r\x1b[K{clock(spent)}{total} | {text}"[:width], end="", flush=True)
            else:
                print("\n".join(f"  {line}; {clock(spent)}{total}" for line in lines), flush=True)

    def _erase(self) -> None:
        if self.terminal:
            print("\r\x1b[K", end="", flush=True)


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
