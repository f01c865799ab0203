"""The notebooks of a run, one after another or side by side, and what is kept of each."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from ..system.console import PROGRESS
from ..system.files import sha256
from . import kernel
from .execute import NotebookError, execute, kernel_environment
from .lanes import Turns, in_lanes
from .nbfile import read
from .output_folder import Folder
from .plan import Pace, is_timing, ordered
from .progress import Screen, table

INTERRUPTED = "interrupted"
SHOWN = 20  # lines at most of what a failed notebook's kernel has logged


class Series:
    """One run of some notebooks into an output folder."""

    def __init__(self, sources: list[Path], values: dict[str, dict], folder: Folder, pace: Pace):
        self.sources, self.values, self.folder, self.pace = sources, values, folder, pace
        self.turns, self.writing = Turns(), threading.Lock()
        self.stopped = threading.Event()
        self.screen = Screen(pace.seconds([source.stem for source in sources]))
        self.entries: list[dict] = []
        self.begun = 0

    def run(self, *, timeout: int, fail_fast: bool) -> list[dict]:
        """Run them and print how each went: their entries, in the order of their numbers.

        Only a Ctrl-C stops the others, and with `fail_fast` the first that fails.
        """

        def work(source: Path) -> bool:
            entry = self._one(source, timeout)
            if entry["error"] == INTERRUPTED:
                raise KeyboardInterrupt
            return entry["ok"] or not fail_fast

        with kernel_environment({}), self.screen.shown():
            try:
                in_lanes(ordered(self.sources, self.pace), work, self.pace.lanes, stop=self._stop)
            except KeyboardInterrupt:
                self._stop()
                if not any(entry["error"] == INTERRUPTED for entry in self.entries):
                    raise
        self.entries.sort(key=lambda entry: entry["notebook"])
        if self.entries:
            print(f"\n{table(self.entries)}\n", flush=True)
        return self.entries

    def _stop(self) -> None:
        self.stopped.set()
        logging.getLogger("papermill").disabled = True  # the user asked for the kernels' death
        kernel.kill_all()

    def _one(self, source: Path, timeout: int) -> dict:
        """Run one notebook and return its entry in the manifest; a Ctrl-C is an error like others.

        Its time counts from its first turn on.
        """
        with self.writing:
            self.begun += 1
            self.screen.print(f"[{self.begun}/{len(self.sources)}] {source.stem}")
        with self.turns.taken() as change, self.folder.staging(source.stem) as staged:
            start = time.perf_counter()
            error = self._execute(source, staged, timeout, change)
            with self.writing:
                return self._keep(source, staged, error, time.perf_counter() - start)

    def _execute(self, source: Path, staged: Path, timeout: int, change) -> str | None:
        """Why the notebook stopped, or None."""
        told = staged / ".progress"
        variables = {**self.folder.environment(staged), PROGRESS: str(told)}
        options = {"variables": variables, "timeout": timeout}
        try:
            with self.screen.watch(source.stem, len(read(source).cells), told) as at:

                def on_cell(index: int, cell) -> None:
                    change(self.pace.lanes > 1 and is_timing(cell))
                    at(index, cell)

                name = source.stem
                execute(source, staged / source.name, self.values[name], on_cell=on_cell, **options)
        except NotebookError as failure:
            return INTERRUPTED if self.stopped.is_set() else str(failure)
        except KeyboardInterrupt:
            logging.getLogger("asyncio").disabled = True  # the user asked for the kernel's death
            return INTERRUPTED
        finally:
            told.unlink(missing_ok=True)
        return None

    def _keep(self, source: Path, staged: Path, error: str | None, seconds: float) -> dict:
        """Move its files to where they belong, and note it in the manifest."""
        name, executed, log = source.stem, staged / source.name, kernel.log_of(staged)
        if error and error != INTERRUPTED:
            lines = [f"{name} failed: {error}", *log.splitlines()[-SHOWN:]]
            self.screen.print("\n    ".join(lines))
        if not (error and log):
            (staged / kernel.LOG).unlink(missing_ok=True)
        digest = sha256(executed) if executed.is_file() else None
        files = (self.folder.set_aside if error else self.folder.keep)(name, staged)
        entry = {
            "notebook": name,
            "ok": error is None,
            "seconds": round(seconds, 1),
            "error": error,
            "parameters": self.values[name],
            "corpus": self.folder.card["corpus"]["name"],
            "source_sha256": sha256(source),
            "sha256": digest,
            "files": files,
        }
        self.folder.note(entry)
        self.entries.append(entry)
        return entry
