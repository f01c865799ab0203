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
from types import SimpleNamespace
from typing import Any

from nbformat import NotebookNode

from ..bench.environment import environment
from ..bench.tables import clock_text, table
from ..data import Corpus, CorpusError, fewest_characters, load_corpus
from ..device import pick_device
from ..files import (
    OURS,
    PUBLISHED,
    ROOT,
    check_replaceable,
    read_json,
    real_path,
    sha256,
    write_json,
)
from ..site import build
from ..site.nbfile import SyncError, is_student_edition, read
from ..training.folders import check_folder, held
from ..training.signals import uninterrupted
from . import execute, publish
from .plan import DEFAULT, RunError, assign, estimate
from .profiles import Profile, get_profile

INTERRUPTED = "interrupted"
LONGEST = 512  # characters in notebook 08's longest window of validation text
_SHOWN = 20  # most log lines printed from a failed notebook's kernel
EVERY = 10  # seconds between progress lines; a terminal's line is updated every second


def run_series(plan: SimpleNamespace) -> bool:
    """Execute a plan. Returns whether all notebooks passed and, if asked, equal the published ones.

    Its fields are the options of the command `run`. Raises RunError or ValueError before anything
    has run, OSError for a full disk, KeyboardInterrupt after a Ctrl-C; the messages of the last two
    say how many results were kept.
    """
    series = Series(plan)
    if plan.dry:
        print(series.pace)
        return True
    out = series.prepare()
    with held(out / ".lock", f"into {out}"):
        try:
            series.watch()
            if (plan.html or plan.publish) and any(out.glob("*.ipynb")):
                build.render(out, PUBLISHED if plan.publish else out)
        except OSError as error:
            raise OSError(f"{out}: {error}: {series.so_far}") from error
        except KeyboardInterrupt:  # a second one
            raise KeyboardInterrupt(series.so_far) from None
        green = series.passed == len(series.sources)
        if plan.publish and green:
            for name in publish.publish(out, PUBLISHED):
                print(f"not from this run, so kept: {PUBLISHED / name}")
        series.report(PUBLISHED if plan.publish and green else out)
        if series.interrupted:
            raise KeyboardInterrupt(series.so_far)
        same = not plan.reproduce or publish.print_comparison(PUBLISHED, out)
    if series.whole and green and same:
        shutil.rmtree(out)  # created by this very run
    return same and green


class Series:
    """The notebooks of a run, and its results so far. Raises RunError or CorpusError."""

    def __init__(self, plan: SimpleNamespace):
        self.plan = plan
        self.whole = plan.publish or plan.reproduce
        profile = find_profile("full" if self.whole and plan.profile == "auto" else plan.profile)
        default = () if plan.all or self.whole or profile.name == "smoke" else DEFAULT
        self.sources = select(plan.notebooks, plan.source or ROOT / "notebooks", default)
        if plan.all and plan.notebooks:
            raise RunError("--all runs all notebooks: leave it out, or the names")
        check_edition(self.sources)
        self.out = real_path(plan.out or ROOT / "outputs" / "run" / profile.name)
        check_out(self.out)
        if plan.out:
            check_folder(self.out, "manifest.json", plan.overwrite)
        self.corpus = load_corpus()
        check_length(self.corpus)
        if self.whole:
            publish.check(plan, profile.name, self.corpus)
        self.values = assign(self.sources, plan.settings, profile.name)
        names = [path.stem for path in self.sources]
        text = self.corpus.text
        self.pace = estimate(profile.name, names, len(text), len(set(text)))
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
        return f"{self.passed} of {len(self.sources)} notebooks had passed and are kept"

    def prepare(self) -> Path:
        """Create the output folder, with a manifest; always a new one for a publication run."""
        if self.whole:
            publish.BUILD.mkdir(parents=True, exist_ok=True)
            kind = "publish-" if self.plan.publish else "reproduce-"
            self.out = Path(tempfile.mkdtemp(prefix=kind, dir=publish.BUILD))
        self.manifest = publish.entries(self.out)  # by notebook, including earlier runs
        self.card = self._card()
        self._write_manifest()
        return self.out

    def watch(self) -> None:
        """Run all notebooks in a thread, show progress, and stop them after a Ctrl-C.

        Re-raises their OSErrors.
        """
        print(f"{self.corpus.banner or self.corpus}\n{self.pace}", flush=True)
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
        for number, source in enumerate(self.sources, 1):
            print(f"{self.erase}[{number}/{len(self.sources)}] {source.stem}", flush=True)
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
                self.values[source.stem],
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
        expected = self.pace.total
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
        if not self.corpus.real:
            # The download has failed once: do not wait for it in each kernel.
            variables["NANOGPT_OFFLINE"] = "1"
            variables["NANOGPT_OFFLINE_REASON"] = self.corpus.note
        if self.whole:
            variables["NANOGPT_CHECKPOINT"] = None  # it is the reader's; the run uses its own model
        return variables

    def _keep(self, source: Path, staged: Path, error: str | None, seconds: float) -> None:
        """Move a notebook's files to the output folder, and add its entry to the manifest."""
        folder = self.out / "failed" / source.stem if error else self.out
        staged_files = sorted(path for path in staged.rglob("*") if path.is_file())
        names = [path.relative_to(staged).as_posix() for path in staged_files]
        target = staged / source.name
        entry = {
            "notebook": source.stem,
            "ok": error is None,
            "seconds": round(seconds, 1),
            "error": error,
            "parameters": self.values[source.stem],
            "corpus": self.corpus.name,
            "real": self.corpus.real,
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
        corpus = self.corpus
        card: dict[str, Any] = {
            "format": f"{OURS} run",
            "profile": self.pace.profile,
            "settings": list(self.plan.settings),
            "corpus": {
                "name": corpus.name,
                "real": corpus.real,
                "note": corpus.note,
                "characters": len(corpus.text),
                "sha256": corpus.sha256,
            },
        }
        if self.pace.work:
            card["work_seconds"] = self.pace.work
        card["environment"] = environment()
        # The kernels' threads: this process, which computes nothing, may have more.
        threads = get_profile(self.pace.profile).threads
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
            print(f"{self.erase}\n{table(rows)}\n\n{findings_line(out, self.sources)}")
        print(f"{self.passed} of {len(self.sources)} passed, profile {self.pace.profile}, in {out}")
        if self.passed < len(rows):
            print(f"failed notebooks, up to the error: {out / 'failed'}")
        page = out / "html" / "index.html"
        if page.is_file():
            print(f"read it: {page}")


def findings_line(out: Path, sources: Sequence[Path]) -> str:
    """One line that says how many of these notebooks' findings the run at `out` supports."""
    holds = 0
    not_so = 0
    too_short = 0
    for source in sources:
        saved = read_json(out / "json" / f"{source.stem[:2]}.json")
        for finding in saved.get("findings", []) if isinstance(saved, dict) else []:
            holds += finding["enough"] and finding["holds"]
            not_so += finding["enough"] and not finding["holds"]
            too_short += not finding["enough"]
    short = f", {too_short} need a longer run" if too_short else ""
    return f"findings: {holds} supported by this run, {not_so} not{short}"


# ------------------------------------------------------------------ the notebooks of a run


def check_edition(sources: Sequence[Path]) -> None:
    """Raise RunError for the student edition: a headless run needs the solutions."""
    for path in sources:
        if is_student_edition(read(path)):
            raise RunError(
                f"{path} belongs to the student edition, which has no solutions to fill in: run "
                "the repository's notebooks, or step through this one in JupyterLab"
            )


def find_profile(name: str) -> Profile:
    """The profile of that name. Raises ValueError, and RunError for "gpu" without a CUDA device."""
    cuda = pick_device().device.type == "cuda"
    profile = get_profile(name, cuda=cuda)
    if profile.name == "gpu" and not cuda:
        raise RunError(
            "profile 'gpu' needs a CUDA device, and torch sees none: choose laptop, or auto"
        )
    return profile


def select(names: Sequence[str], folder: Path, default: Sequence[str] = ()) -> list[Path]:
    """The notebooks of `folder` given by name: 3, 03, last, 03_last, or a path.

    Without names, those with a number in `default`, or all if there are none. Always ordered by
    number. Raises RunError for an unknown name.
    """
    sources = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not sources:
        raise RunError(f"no notebooks in {folder}: they must be named NN_title.ipynb")
    if not names:
        return [path for path in sources if path.stem[:2] in default] or sources
    paths_by_name: dict[str | Path, Path] = {}
    chosen = set()
    for path in sources:
        number = path.stem[:2]
        for word in (path.stem, number, str(int(number)), path.stem[3:], real_path(path)):
            paths_by_name[word] = path
    for name in map(Path, names):
        key = real_path(name) if len(name.parts) > 1 else name.name.removesuffix(".ipynb")
        if key not in paths_by_name:
            stems = ", ".join(path.stem for path in sources)
            raise RunError(f"there is no notebook '{name}': choose from {stems}")
        chosen.add(paths_by_name[key])
    return sorted(chosen)


def check_length(corpus: Corpus) -> None:
    """Raise CorpusError for a text that is too short for the notebooks."""
    fewest = fewest_characters(LONGEST)
    if len(corpus.text) < fewest:
        raise CorpusError(
            f"{corpus.name} has {len(corpus.text):,} characters, but the notebooks need at least "
            f"{fewest:,}: use a longer text"
        )


def check_out(out: Path) -> None:
    """Raise RunError for an output folder in which executed copies would replace our own files."""
    inside = ROOT / "outputs" not in out.parents and ROOT in (out, *out.parents)
    if inside or PUBLISHED in (out, *out.parents):
        raise RunError(f"{out} is part of the project itself: choose a folder below outputs/run")
