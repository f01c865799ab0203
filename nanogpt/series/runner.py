"""Run notebooks headless and keep their results.

Each notebook writes to its own staging folder. If it passes, its files move to the output folder
with one rename each. If not, they are kept in failed/ and replace nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from ..bench.environment import environment
from ..bench.tables import clock_text, table
from ..engines.toolchain import cache_folder
from ..files import (
    OURS,
    PUBLISHED,
    check_replaceable,
    read_json,
    sha256,
    write_json,
)
from ..site import build
from ..site.nbfile import SyncError, read
from ..training.folders import held
from ..training.signals import uninterrupted
from . import execute, publish
from .plan import Plan, Purpose

INTERRUPTED = "interrupted"
_SHOWN = 20  # most log lines printed from a failed notebook's kernel
EVERY = 10  # seconds between progress lines; a terminal's line is updated every second


def run_series(plan: Plan) -> bool:
    """Execute a plan. Returns whether all notebooks passed and, if asked, equal the published ones.

    Raises OSError for a full disk and KeyboardInterrupt after a Ctrl-C; their messages say how many
    results were kept.
    """
    series = Series(plan)
    publishing = plan.purpose is Purpose.PUBLISH
    out = series.prepare()
    # No other run may write into this folder meanwhile.
    with held(out / ".lock", f"into {out}"):
        # 1. Run the notebooks, and render their pages. What has passed is kept, whatever happens.
        try:
            series.watch()
            if plan.html and any(out.glob("*.ipynb")):
                build.render(out, PUBLISHED if publishing else out)
        except OSError as error:
            raise OSError(f"{out}: {error}: {series.so_far}") from error
        except KeyboardInterrupt:  # a second one
            raise KeyboardInterrupt(series.so_far) from None
        # 2. Only a complete run replaces the published one.
        green = series.passed == len(plan.sources)
        if publishing and green:
            for name in publish.publish(out, PUBLISHED):
                print(f"not from this run, so kept: {PUBLISHED / name}")
        # 3. Say what came of it.
        series.report(PUBLISHED if publishing and green else out)
        if series.interrupted:
            raise KeyboardInterrupt(series.so_far)
        same = plan.purpose is not Purpose.REPRODUCE or publish.print_comparison(PUBLISHED, out)
    if plan.whole and green and same:
        shutil.rmtree(out)  # created by this very run
    return same and green


class Series:
    """A plan that is carried out, and its results so far."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.out = plan.out
        self.entries: list[dict[str, Any]] = []  # for the manifest
        self.interrupted = False
        self.cell: tuple[str, float] | None = None  # the running cell, and its start time
        self.erase = "\x1b[K" if sys.stdout.isatty() else ""  # the rest of a terminal's line

    @property
    def passed(self) -> int:
        """How many notebooks have run and passed."""
        return sum(entry["ok"] for entry in self.entries)

    @property
    def so_far(self) -> str:
        """What a stopped run has kept, in words."""
        return f"{self.passed} of {len(self.plan.sources)} notebooks had passed and are kept"

    def prepare(self) -> Path:
        """Create the output folder, with a manifest; always a new one for a publication run."""
        if self.plan.whole:
            publish.BUILD.mkdir(parents=True, exist_ok=True)
            kind = self.plan.purpose.value.strip("-")
            self.out = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=publish.BUILD))
        self.manifest = publish.entries(self.out)  # by notebook, including earlier runs
        self.card = self._card()
        self._write_manifest()
        return self.out

    def watch(self) -> None:
        """Run all notebooks in a thread, show progress, and stop them after a Ctrl-C.

        Re-raises their OSErrors.
        """
        print(f"{self.plan.corpus.banner or self.plan.corpus}\n{self.plan.pace}", flush=True)
        self.begun = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self.run_all)
            try:
                while not wait([future], 1 if self.erase else EVERY).done:
                    self._tick()
                future.result()
            except BaseException as error:
                self.interrupted = True
                with uninterrupted():
                    execute.kill_all()
                    wait([future])
                if not isinstance(error, KeyboardInterrupt):
                    raise

    def run_all(self) -> None:
        """Run the notebooks one after another, and keep the files of each."""
        for number, source in enumerate(self.plan.sources, 1):
            print(f"{self.erase}[{number}/{len(self.plan.sources)}] {source.stem}", flush=True)
            start = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix=".running-", dir=self.out) as folder:
                staged = Path(folder)
                error = self.run_one(source, staged)
                self._show_log(source.stem, staged / execute.LOG, error)
                self._keep(source, staged, error, time.perf_counter() - start)
            if self.interrupted:
                break

    def run_one(self, source: Path, staged: Path) -> str | None:
        """Run a notebook; its error in one line, or None."""
        n_cells = len(read(source).cells) + 1  # including the cell with the given parameters

        def before_cell(index: int, cell: NotebookNode) -> None:
            if self.interrupted:
                raise execute.NotebookError(INTERRUPTED)
            place = f"{source.stem}: cell {index + 1} of {n_cells}, {cell.get('id', '')}"
            self.cell = (place, time.monotonic())

        try:
            execute.execute(
                source,
                staged / source.name,
                self.plan.values[source.stem],
                variables=self._environment(staged),
                timeout=self.plan.timeout,
                before_cell=before_cell,
            )
        except (
            execute.NotebookError,
            SyncError,
            RuntimeError,
        ) as failure:  # RuntimeError: no kernel
            return INTERRUPTED if self.interrupted else str(failure).strip().partition("\n")[0]
        finally:
            self.cell = None
        return None

    def _tick(self) -> None:
        """Show the running cell's progress; on a terminal, overwrite the line."""
        cell = self.cell
        if cell is None:
            return
        spent = time.monotonic() - self.begun
        expected = self.plan.pace.total
        total = f" of about {clock_text(max(spent, expected))}" if expected else " so far"
        line = f"{clock_text(spent)}{total} | {cell[0]}, {clock_text(time.monotonic() - cell[1])}"
        if self.erase:
            line = f"{self.erase}{line[: shutil.get_terminal_size().columns - 1]}\r"
        print(line, end="" if self.erase else "\n", flush=True)

    def _environment(self, staged: Path) -> dict[str, str | None]:
        """The kernel's variables: its folders, the run's, and whether to fetch the corpus."""
        variables: dict[str, str | None] = {
            "NANOGPT_OUT": str(staged),
            "NANOGPT_RUN": str(self.out),
        }
        # A kernel has a temporary folder of its own. What torch.compile keeps there would end with
        # it, and every run would compile again.
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            variables["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder() / "inductor")
        if not self.plan.corpus.real:
            # The download has failed once: do not wait for it in each kernel.
            variables["NANOGPT_OFFLINE"] = "1"
            variables["NANOGPT_OFFLINE_REASON"] = self.plan.corpus.note
        if self.plan.whole:
            variables["NANOGPT_CHECKPOINT"] = None  # it is the reader's; the run uses its own model
        return variables

    def _keep(self, source: Path, staged: Path, error: str | None, seconds: float) -> None:
        """Move a notebook's files to the output folder, and add its entry to the manifest."""
        folder = self.out / "failed" / source.stem if error else self.out
        staged_files = sorted(path for path in staged.rglob("*") if path.is_file())
        names = [path.relative_to(staged).as_posix() for path in staged_files]
        saved = read_json(staged / "json" / f"{source.stem[:2]}.json")
        # Notebooks 00 and 13 show models from elsewhere: no number in them depends on the corpus.
        elsewhere = isinstance(saved, dict) and saved.get("corpus", "") is None
        target = staged / source.name
        entry = {
            "notebook": source.stem,
            "ok": error is None,
            "seconds": round(seconds, 1),
            "error": error,
            "parameters": self.plan.values[source.stem],
            "corpus": "" if elsewhere else self.plan.corpus.name,
            "real": self.plan.corpus.real or elsewhere,
            "source_sha256": sha256(source),
            "sha256": sha256(target) if target.is_file() else None,
            "files": names,
        }
        for name, path in zip(names, staged_files, strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            check_replaceable(folder / name)
            os.replace(path, folder / name)
        self.manifest[source.stem] = entry
        self.entries.append(entry)
        self._write_manifest()

    def _show_log(self, name: str, log: Path, error: str | None) -> None:
        """Print why a notebook failed, and the end of its log, which is kept only for that."""
        lines = log.read_text("utf-8", "replace").strip().splitlines() if log.is_file() else []
        if error and error != INTERRUPTED:
            words = "\n    ".join([f"{name} failed: {error}", *lines[-_SHOWN:]])
            print(f"{self.erase}{words}", flush=True)
        if not (error and lines):
            log.unlink(missing_ok=True)

    def _write_manifest(self) -> None:
        notebooks = [self.manifest[name] for name in sorted(self.manifest)]
        write_json(self.out / "manifest.json", {**self.card, "notebooks": notebooks})

    def _card(self) -> dict[str, Any]:
        """The settings of the whole run, for the manifest."""
        corpus = self.plan.corpus
        card: dict[str, Any] = {
            "format": f"{OURS} run",
            "profile": self.plan.profile.name,
            "settings": self.plan.settings,
            "corpus": {
                "name": corpus.name,
                "real": corpus.real,
                "note": corpus.note,
                "characters": len(corpus.text),
                "sha256": corpus.sha256,
            },
        }
        if self.plan.pace.work:
            card["work_seconds"] = self.plan.pace.work
        card["environment"] = environment()
        # The kernels' threads: this process, which computes nothing, may have more.
        threads = self.plan.profile.threads
        if threads:
            card["environment"]["threads"] = threads
        return card

    def report(self, out: Path) -> None:
        """Print a table of the notebooks that ran, how many passed, and where to look."""
        rows = []
        for entry in sorted(self.entries, key=lambda entry: entry["notebook"]):
            result = "passed" if entry["ok"] else f"FAILED  {entry['error']}"
            seconds = f"{entry['seconds']:.1f}"
            rows.append({"notebook": entry["notebook"], "seconds": seconds, "result": result})
        if rows:
            print(f"{self.erase}\n{table(rows)}\n\n{findings_line(out, self.plan.sources)}")
        of = f"{self.passed} of {len(self.plan.sources)}"
        print(f"{of} passed, profile {self.plan.profile.name}, in {out}")
        if self.passed < len(rows):
            print(f"failed notebooks, up to the error: {out / 'failed'}")
        page = out / "html" / "index.html"
        if page.is_file():
            print(f"read it: {page}")


def findings_line(out: Path, sources: Sequence[Path]) -> str:
    """One line: how many of these notebooks' findings the run at `out` supports, and which not."""
    holds = 0
    not_so = []
    too_short = 0
    for source in sources:
        number = source.stem[:2]
        saved = read_json(out / "json" / f"{number}.json")
        for finding in saved.get("findings", []) if isinstance(saved, dict) else []:
            if not finding["enough"]:
                too_short += 1
            elif finding["holds"]:
                holds += 1
            else:
                not_so.append(f"{finding['name']} of {number}")
    short = f", {too_short} need a longer run" if too_short else ""
    named = f" ({', '.join(not_so)})" if not_so else ""
    return f"findings: {holds} supported by this run, {len(not_so)} not{named}{short}"
