"""What a run prints: how far it is while it runs, a table and where to look at the end."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from ..system.console import clock

EVERY = 10  # seconds between two lines where no terminal is; there, one line once a second


class Screen:
    """Says how far the running notebooks are, at least every ten seconds.

    On a terminal one line that changes, elsewhere a line for each notebook now and then.
    """

    def __init__(self, expected: float | None = None, every: float = EVERY):
        self.expected, self.every, self.begun = expected, every, time.monotonic()
        self.running: dict[str, Watched] = {}
        self.lock, self.ended = threading.RLock(), threading.Event()
        self.terminal = sys.stdout.isatty()

    @contextmanager
    def shown(self):
        """A with-block during which a thread of its own says how far everything is."""
        thread = threading.Thread(target=self._tick, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            thread.join()
            self._erase()

    @contextmanager
    def watch(self, name: str, cells: int, told: Path):
        """A with-block of one notebook; gives the function to call with the index of each cell.

        `told` is the file in which its kernel says how far a cell is (system.console.Progress).
        """
        watched = self.running[name] = Watched(name, cells, told)
        try:
            yield watched.at
        finally:
            del self.running[name]

    def print(self, text: str) -> None:
        """Print lines that stay."""
        with self.lock:
            self._erase()
            print(text, flush=True)

    def _tick(self) -> None:
        pause = 1 if self.terminal else self.every
        while not self.ended.wait(pause):
            lines = [str(watched) for watched in list(self.running.values())]
            left = self._left()
            with self.lock:
                if self.terminal:
                    width = shutil.get_terminal_size().columns - 1
                    print(f"\r\x1b[K{' | '.join([*lines, left])[:width]}", end="", flush=True)
                else:
                    print("\n".join(f"  {line}; {left}" for line in lines), flush=True)

    def _left(self) -> str:
        spent = time.monotonic() - self.begun
        if self.expected is None:
            return f"{clock(spent)} so far"
        return f"{clock(spent)} of about {clock(max(spent, self.expected))}"

    def _erase(self) -> None:
        if self.terminal:
            print("\r\x1b[K", end="", flush=True)


class Watched:
    """One running notebook: which cell it is at, and what its kernel says of it."""

    def __init__(self, name: str, cells: int, told: Path):
        self.name, self.cells, self.told = name, cells, told
        self.cell, self.since = "starting", time.monotonic()

    def at(self, index: int, cell) -> None:
        """A cell begins."""
        self.cell = f"cell {index + 1} of {self.cells}, {cell.get('id', '')}"
        self.since = time.monotonic()
        self.told.unlink(missing_ok=True)

    def __str__(self) -> str:
        try:
            said = self.told.read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            said = ""
        return f"{self.name}: {self.cell}, {said or clock(time.monotonic() - self.since)}"


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
